/* Lifecycle of the machine, its error, its counts. */
#include <stdio.h>
#include <stdlib.h>

#include "cache.h"
#include "counters.h"
#include "dram.h"
#include "machine.h"
#include "regions.h"
#include "timing.h"

static int refuse(const char *why) {
  snprintf(machine.error, sizeof machine.error, "configuration: %s", why);
  machine.failed = true;
  return -1;
}

static int allocate(Memory *memory, void **data, const char *name, uint32_t rows, size_t row_bytes) {
  free(memory->rows);
  free(*data);
  *memory = (Memory){.name = name, .rows = calloc(rows, sizeof(Row)), .count = rows};
  *data = calloc(rows, row_bytes);
  return memory->rows && *data ? 0 : -1;
}

int fadiff_configure(const fadiff_config *config) {
  machine.configured = machine.by_program = false;
  machine.config = *config;
  if (config->dim < 2 || config->dim > MAX_DIM || (config->dim & (config->dim - 1)))
    return refuse("DIM must be a power of two from 2 to 256");
  if (!config->bank_num || !config->bank_rows || !config->acc_rows || !config->max_block_len ||
      !config->max_block_len_acc)
    return refuse("a memory has no rows, or a move no columns");
  const uint32_t queues[] = {config->load_queue, config->execute_queue, config->store_queue};
  for (int i = 0; i < 3; i++)
    if (queues[i] < 1 || queues[i] > MAX_QUEUE) return refuse("queues have 1 to 64 entries");
  if (config->execute_queue < 2) return refuse("PRELOAD and its COMPUTE need two execute entries");
  const size_t word = 4, element = config->is_float ? 4 : 1;
  if (allocate(&machine.spad, &machine.spad_data, "scratchpad", config->bank_num * config->bank_rows,
               config->dim * element) ||
      allocate(&machine.acc, &machine.acc_data, "accumulator", config->acc_rows, config->dim * word))
    return refuse("out of memory");
  for (machine.mask_shift = 0; config->dim >> machine.mask_shift > 64;) machine.mask_shift++;
  machine.configured = true;
  machine.layer = -1;
  machine.layer_name[0] = 0;
  fadiff_reset();
  return 0;
}

void fadiff_configure_from_header(uint32_t dim, uint32_t bank_num, uint32_t bank_rows, uint32_t acc_rows,
                                  uint32_t max_block_len, uint32_t max_block_len_acc, int is_float,
                                  int has_mvin_scale) {
  const fadiff_config *now = &machine.config;
  if (machine.by_program && (now->dim != dim || now->bank_num != bank_num || now->bank_rows != bank_rows ||
                             now->acc_rows != acc_rows || now->is_float != (uint32_t)is_float)) {
    fprintf(stderr, "gemmini emulator: parts of this program were compiled with different gemmini_params.h\n");
    exit(1);
  }
  if (machine.configured) return; /* whoever loaded the program knows more */
  const fadiff_config config = {
      .dim = dim, .bank_num = bank_num, .bank_rows = bank_rows, .acc_rows = acc_rows, .max_block_len = max_block_len,
      .max_block_len_acc = max_block_len_acc, .is_float = (uint32_t)is_float, .has_mvin_scale = (uint32_t)has_mvin_scale,
      .has_max_pool = 1, .has_row_packing = 1, .has_full_width_read = 1, .has_normalizations = 1, .has_os = 1, .has_ws = 1,
      .has_transformed_conv = !is_float, .ex_read_from_acc = 1, .ex_write_to_spad = 1, .use_tl_ext_mem = 1, .exit_on_error = 1,
      .load_queue = 8, .execute_queue = 16, .store_queue = 4, .cache_bytes = 512 << 10, .dram_bytes_per_cycle = 8,
      .tile_buffer_bytes_per_cycle = 16, .request_cycles = 0.1, .store_row_cycles = 1.7, .load_latency = 20, .store_latency = 40,
      .array_latency = 2 * dim, .fence_cycles = 60, .issue_cycles = 12, .loop_issue_cycles = 4};
  if (fadiff_configure(&config)) {
    fprintf(stderr, "gemmini emulator: %s\n", machine.error);
    exit(1);
  }
  machine.by_program = true;
}

void fadiff_reset(void) {
  memset(machine.spad.rows, 0, machine.spad.count * sizeof(Row));
  memset(machine.acc.rows, 0, machine.acc.count * sizeof(Row));
  machine.spad.used = machine.spad.peak = machine.acc.used = machine.acc.peak = 0;
  memset(machine.load, 0, sizeof machine.load);
  machine.execute = (ExecuteState){0};
  machine.store = (StoreState){0};
  machine.array = (Array){0};
  memset(machine.loop_ws, 0, sizeof machine.loop_ws);
  memset(machine.loop_conv, 0, sizeof machine.loop_conv);
  machine.loop_ws_calls = machine.loop_conv_calls = 0;
  memset(machine.loop_ws_loads, 0, sizeof machine.loop_ws_loads);
  memset(machine.loop_conv_loads, 0, sizeof machine.loop_conv_loads);
  memset(machine.loop_ws_half, 0, sizeof machine.loop_ws_half);
  memset(machine.loop_ws_spad, 0, sizeof machine.loop_ws_spad);
  machine.loop_conv_d_half = machine.loop_conv_c_half = 0;
  machine.loads = machine.fence_load = 0;
  memset(machine.completed, 0, sizeof machine.completed);
  machine.fence_count = machine.layer_visit = 1;
  machine.counts = (fadiff_counts){0};
  memset(machine.executed, 0, sizeof machine.executed);
  machine.failed = false;
  machine.error[0] = 0;
  dram_fence();
  regions_reset();
  cache_reset(regions_bytes());
  timing_reset();
  counters_reset();
}

fadiff_counts fadiff_get_counts(void) {
  fadiff_counts counts = machine.counts;
  counts.peak_spad_rows = machine.spad.peak;
  counts.peak_acc_rows = machine.acc.peak;
  counts.cycles = timing_now();
  counts.load_busy = timing_busy(LOAD_QUEUE);
  counts.execute_busy = timing_busy(EXECUTE_QUEUE);
  counts.store_busy = timing_busy(STORE_QUEUE);
  counts.host_busy = timing_host_busy();
  return counts;
}

uint64_t fadiff_executed(uint32_t funct) { return funct < NUM_FUNCTS ? machine.executed[funct] : 0; }

const char *fadiff_error(void) { return machine.failed ? machine.error : NULL; }

uint64_t fadiff_cycles(void) { return (uint64_t)timing_now(); }
