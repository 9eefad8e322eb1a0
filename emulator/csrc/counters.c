/* The eight performance counters (COUNTER instruction), fed from the cycle estimate and the counts. */
#include "counters.h"

#include "machine.h"
#include "timing.h"

#define NUM_COUNTERS 8

/* Event codes of gemmini_counter.h that the model can answer; the others read zero. */
enum {
  MAIN_LD_CYCLES = 1, MAIN_ST_CYCLES = 2, MAIN_EX_CYCLES = 3, LOAD_ACTIVE_CYCLE = 9, STORE_ACTIVE_CYCLE = 12,
  RDMA_ACTIVE_CYCLE = 18, WDMA_ACTIVE_CYCLE = 21, EXE_ACTIVE_CYCLE = 24
};
/* External counters run on instead of restarting when configured. */
enum { EXTERNAL_RDMA_BYTES = 4, EXTERNAL_WDMA_BYTES = 5 };

typedef struct {
  uint32_t event;
  bool external;
  double base;
} Counter;

static Counter counters[NUM_COUNTERS];
static uint32_t snapshot[NUM_COUNTERS];
static bool snapshot_taken;

static double total(const Counter *counter) {
  const fadiff_counts *counts = &machine.counts;
  if (counter->external) switch (counter->event) {
      case EXTERNAL_RDMA_BYTES:
        return (double)(counts->dram_read + counts->tile_buffer_read);
      case EXTERNAL_WDMA_BYTES:
        return (double)(counts->dram_written + counts->tile_buffer_written);
      default:
        return 0;
    }
  switch (counter->event) {
    case MAIN_LD_CYCLES:
    case LOAD_ACTIVE_CYCLE:
    case RDMA_ACTIVE_CYCLE:
      return timing_busy(LOAD_QUEUE);
    case MAIN_ST_CYCLES:
    case STORE_ACTIVE_CYCLE:
    case WDMA_ACTIVE_CYCLE:
      return timing_busy(STORE_QUEUE);
    case MAIN_EX_CYCLES:
    case EXE_ACTIVE_CYCLE:
      return timing_busy(EXECUTE_QUEUE);
    default:
      return 0;
  }
}

static uint32_t value(const Counter *counter) {
  return (uint32_t)(total(counter) - (counter->external ? 0 : counter->base));
}

void counters_reset(void) {
  memset(counters, 0, sizeof counters);
  snapshot_taken = false;
}

uint64_t counter_instruction(uint64_t rs1) {
  Counter *counter = &counters[field(rs1, 4, 3)];
  if (rs1 & 1)
    for (int i = 0; i < NUM_COUNTERS; i++) counters[i].base = total(&counters[i]);
  if (rs1 & 2) snapshot_taken = false;
  if (rs1 & 4) {
    snapshot_taken = true;
    for (int i = 0; i < NUM_COUNTERS; i++) snapshot[i] = value(&counters[i]);
  }
  if (rs1 & 8) {
    *counter = (Counter){.event = field(rs1, 12, 6), .external = field(rs1, 31, 1)};
    counter->base = total(counter);
  }
  return snapshot_taken ? snapshot[counter - counters] : value(counter);
}
