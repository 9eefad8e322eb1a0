/* Estimate of cycles.
 *
 * Three in-order queues (load, execute, store) run side by side, as in the reservation station:
 * - an instruction starts when its queue is free, its local-memory rows are ready (read after write)
 *   and free (write after read), the core has issued it, and its queue has an entry;
 * - a DMA transfer takes request_cycles per request of at most 64 bytes of one row (latency over
 *   requests in flight) or its bytes over the bandwidth, whichever is longer; loaded rows are ready
 *   load_latency later;
 * - a preload+compute pair takes max(rows, 4) cycles, max(rows, dim) when it brings new weights;
 * - loads and stores share the DRAM bandwidth: between two fences no less time passes than all bytes
 *   moved over that bandwidth.
 * Bank conflicts, TLB misses, cache hits and array fill are not modelled.
 */
#include "timing.h"

static struct {
  double core;
  double free[NUM_QUEUES], busy[NUM_QUEUES];
  double retired[NUM_QUEUES][MAX_QUEUE]; /* ring: when each entry was last given back */
  uint32_t next[NUM_QUEUES];
  double last_retired;
  double fence;                   /* time of the last fence */
  double dram, tile_buffer; /* bytes moved since */
} timing;

void timing_reset(void) { memset(&timing, 0, sizeof timing); }

static double latest(double a, double b) { return a > b ? a : b; }

void timing_issue(void) { timing.core += machine.config.issue_cycles; }

static uint32_t entries(int queue) {
  const uint32_t sizes[NUM_QUEUES] = {machine.config.load_queue, machine.config.execute_queue,
                                      machine.config.store_queue};
  return sizes[queue];
}

double timing_start(int queue, double operands) {
  const double entry = timing.retired[queue][timing.next[queue] % entries(queue)];
  return latest(latest(timing.core, entry), latest(timing.free[queue], operands));
}

double timing_dma(double start, uint64_t requests, uint64_t dram_bytes, uint64_t tile_buffer_bytes) {
  timing.dram += (double)dram_bytes;
  timing.tile_buffer += (double)tile_buffer_bytes;
  const double transfer = (double)dram_bytes / machine.config.dram_bytes_per_cycle +
                          (double)tile_buffer_bytes / machine.config.tile_buffer_bytes_per_cycle;
  return start + latest((double)requests * machine.config.request_cycles, transfer);
}

void timing_finish(int queue, double start, double end, double retired) {
  timing.free[queue] = end;
  timing.busy[queue] += end - start;
  timing.retired[queue][timing.next[queue]++ % entries(queue)] = retired;
  timing.last_retired = latest(timing.last_retired, retired);
}

double timing_now(void) {
  const double moved = timing.dram / machine.config.dram_bytes_per_cycle;
  const double cached = timing.tile_buffer / machine.config.tile_buffer_bytes_per_cycle;
  return latest(latest(timing.core, timing.last_retired), timing.fence + latest(moved, cached));
}

void timing_fence(void) {
  timing.core = timing.fence = timing_now();
  timing.dram = timing.tile_buffer = 0;
}

double timing_busy(int queue) { return timing.busy[queue]; }
