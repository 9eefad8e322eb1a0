/* MVIN, MVOUT and STORE_SPAD: rows between DRAM and local memory, scaled on the way. */
#include "move.h"

#include <float.h>

#include "cache.h"
#include "dram.h"
#include "fail.h"
#include "local.h"
#include "machine.h"
#include "numerics.h"
#include "timing.h"

/* ---- mvin ---- */

static void check_load(const Operand *to, const LoadState *state, uint32_t state_id) {
  const fadiff_config *config = &machine.config;
  if (!state->configured) fail("no config_ld for load state %u yet", state_id);
  if (to->garbage) fail("cannot load to the garbage address");
  if (to->norm) fail("normalisation commands are not modelled");
  const bool words = to->accumulator && !state->shrunk;
  const uint32_t max_cols = (words ? config->max_block_len_acc : config->max_block_len) * config->dim;
  if (to->rows < 1 || to->rows > config->dim) fail("%u rows: one mvin moves 1 to DIM=%u", to->rows, config->dim);
  if (to->cols < 1 || to->cols > max_cols)
    fail("%u columns: one mvin moves 1 to %u here (%s)", to->cols, max_cols,
         words ? "MAX_BLOCK_LEN_ACC * DIM" : "MAX_BLOCK_LEN * DIM");
  if (state->block_stride < to->rows)
    fail("block_stride %u is less than the %u rows: the hardware asserts block_stride >= rows", state->block_stride,
         to->rows);
  if (state->pixels > 1) {
    if (!config->has_row_packing) fail("pixel_repeats %u needs HAS_FIRST_LAYER_OPTIMIZATIONS", state->pixels);
    if (to->accumulator) fail("pixel_repeats %u into the accumulator", state->pixels);
    if (state->pixels * to->cols > config->dim)
      fail("pixel_repeats %u of %u columns do not fit a row of %u", state->pixels, to->cols, config->dim);
  }
}

static void load_row_i8(const Operand *to, const LoadState *state, const void *source, uint32_t row, uint32_t first,
                        uint32_t cols) {
  if (!to->accumulator) {
    int8_t *target = spad_i8(row) + first;
    if (!source)
      memset(target, 0, cols);
    else if (state->scale == 1.0f)
      memcpy(target, source, cols);
    else
      for (uint32_t j = 0; j < cols; j++) target[j] = scale_to_i8(((const int8_t *)source)[j], state->scale);
    return;
  }
  int32_t *target = acc_i32(row) + first;
  for (uint32_t j = 0; j < cols; j++) {
    int32_t value = 0;
    if (source && state->shrunk)
      value = scale_to_i8(((const int8_t *)source)[j], state->scale);
    else if (source)
      memcpy(&value, (const char *)source + 4 * (size_t)j, 4);
    target[j] = to->accumulate ? wrapping_add(target[j], value) : value;
  }
}

static void load_row_f32(const Operand *to, const LoadState *state, const void *source, uint32_t row, uint32_t first,
                         uint32_t cols) {
  float *target = (to->accumulator ? acc_f32(row) : spad_f32(row)) + first;
  for (uint32_t j = 0; j < cols; j++) {
    float value = 0;
    if (source) memcpy(&value, (const char *)source + 4 * (size_t)j, 4);
    value *= state->scale;
    target[j] = to->accumulator && to->accumulate ? target[j] + value : value;
  }
}

/* Lowest row the pixel repeater writes when asked to write below it: it drops those writes. */
static uint32_t repeat_floor(uint32_t row) {
  const uint32_t half = machine.spad.count / 2;
  return row >= half ? half : 0;
}

void move_in(uint64_t address, uint64_t rs2, int state_id) {
  const uint32_t dim = machine.config.dim;
  const LoadState *state = &machine.load[state_id];
  const Operand to = decode(rs2);
  check_load(&to, state, (uint32_t)state_id);

  machine.loads++;
  machine.completed[machine.loads % MAX_QUEUE] = false;
  const uint32_t blocks = ceil_div(to.cols, dim);
  const uint32_t item = to.accumulator && !state->shrunk ? 4 : element_bytes();

  Transfer transfer = {0};
  double available = 0;
  for (uint32_t block = 0; block < blocks; block++) {
    const Span span = {memory_of(&to), to.row + block * state->block_stride, 1, to.rows, 0,
                       minimum(dim, to.cols - block * dim)};
    const double free = span_load(&span, to.accumulator && to.accumulate);
    if (free > available) available = free;
  }
  for (uint32_t i = 0; i < to.rows; i++) {
    const char *source = NULL;
    if (address) {
      const uint64_t from = address + i * state->stride;
      const bool replicated = state->stride == 0 && i > 0;
      source = replicated ? (const char *)(uintptr_t)address : dram_load(from, to.cols * item, &transfer);
    }
    for (uint32_t block = 0; block < blocks; block++) {
      const uint32_t row = to.row + block * state->block_stride + i;
      const uint32_t cols = minimum(dim, to.cols - block * dim);
      const char *from = source ? source + (size_t)block * dim * item : NULL;
      (machine.config.is_float ? load_row_f32 : load_row_i8)(&to, state, from, row, 0, cols);
      for (uint32_t pixel = 1; pixel < state->pixels && row - repeat_floor(row) >= pixel; pixel++) {
        const Span span = {&machine.spad, row - pixel, 1, 1, pixel * cols, cols};
        const double free = span_load(&span, false);
        if (free > available) available = free;
        (machine.config.is_float ? load_row_f32 : load_row_i8)(&to, state, from, row - pixel, pixel * cols, cols);
      }
    }
  }
  machine.counts.rows_in += (uint64_t)to.rows * blocks;
  if (state->pixels > 1) {
    const uint32_t shift = minimum(state->pixels - 1, to.row - repeat_floor(to.row));
    const uint32_t tail = minimum(shift, to.rows);
    const Span untracked = {&machine.spad, to.row + to.rows - tail, 1, tail, 0, to.cols};
    span_untracked(&untracked);
  }

  const double start = timing_start(LOAD_QUEUE, available);
  double end = timing_dma(LOAD_QUEUE, start, &transfer);
  /* Written one a cycle: each copy of a pixel, and each part of a row that a request brings. */
  const double rows = (double)to.rows * blocks * state->pixels * ceil_div(minimum(dim, to.cols) * item, LINE);
  if (end < start + rows) end = start + rows;
  const double ready = end + (address ? machine.config.load_latency : 0);
  const uint32_t repeated = minimum(state->pixels - 1, to.row);
  for (uint32_t block = 0; block < blocks; block++) {
    const Span span = {memory_of(&to), to.row + block * state->block_stride - repeated, 1, to.rows + repeated, 0, 1};
    span_ready(&span, ready);
    if (!to.accumulator)
      timing_write(span.start / machine.config.bank_rows, start + (ready - end), ready, rows / blocks);
  }
  timing_finish(LOAD_QUEUE, start, end, ready);
}

/* ---- mvout ---- */

static void check_store(const Operand *from) {
  const fadiff_config *config = &machine.config;
  const StoreState *store = &machine.store;
  if (!store->configured) fail("no config_st yet");
  if (store->igelu && !store->has_polynomial) fail("I-GELU without a CONFIG_NORM before");
  if (from->garbage) fail("cannot store from the garbage address");
  if (from->norm) fail("normalisation commands are not modelled");
  const bool pooling = store->pool_stride != 0;
  const bool raw = from->accumulator && from->full_width;
  if (raw && !config->has_full_width_read) fail("full-width accumulator reads need ACC_READ_FULL_WIDTH");
  const uint32_t max_cols = (raw || pooling ? 1 : config->max_block_len) * config->dim;
  if (from->cols < 1 || from->cols > max_cols)
    fail("%u columns: this mvout moves 1 to %u (%s)", from->cols, max_cols,
         raw       ? "full width: one block"
         : pooling ? "pooling: one block"
                   : "MAX_BLOCK_LEN * DIM");
  if (!pooling && (from->rows < 1 || from->rows > config->dim))
    fail("%u rows: one mvout moves 1 to DIM=%u", from->rows, config->dim);
  if (pooling && raw) fail("pooling reads the accumulator at element width, not full width");
}

/* One row as it leaves local memory at element width. */
static void scaled_row_i8(const Operand *from, uint32_t row, uint32_t cols, int8_t *out) {
  const StoreState *store = &machine.store;
  if (from->accumulator && store->igelu)
    igelu_row_to_i8(acc_i32(row), cols, store->scale, store->qb, store->qc, out);
  else if (from->accumulator)
    scale_row_to_i8(acc_i32(row), cols, store->scale, store->relu, out);
  else
    memcpy(out, spad_i8(row), cols);
}

static void scaled_row_f32(const Operand *from, uint32_t row, uint32_t cols, float *out) {
  if (from->accumulator)
    scale_row_f32(acc_f32(row), cols, machine.store.scale, machine.store.relu, out);
  else
    memcpy(out, spad_f32(row), 4 * (size_t)cols);
}

static void store_block(const Operand *from, uint32_t row, uint32_t cols, void *target) {
  if (from->accumulator && from->full_width)
    memcpy(target, acc_i32(row), 4 * (size_t)cols);
  else if (machine.config.is_float)
    scaled_row_f32(from, row, cols, target);
  else
    scaled_row_i8(from, row, cols, target);
}

static void finish_store(const Span *spans, uint32_t count, double operands, const Transfer *transfer, uint32_t rows) {
  const double start = timing_start(STORE_QUEUE, operands);
  const double read = start + rows * machine.config.store_row_cycles;
  double end = timing_dma(STORE_QUEUE, start, transfer);
  if (end < read) end = read;
  for (uint32_t i = 0; i < count; i++) span_free(&spans[i], end);
  timing_finish(STORE_QUEUE, start, end, end + machine.config.store_latency);
}

/* A store that pools locks the accumulator from its first row to the end of that row's bank, one of two: products
 * in the other bank are neither waited for nor held up. */
static void check_bank(const Span *tile) {
  const uint32_t middle = tile->memory->count / 2, end = tile->start + tile->count;
  if (tile->memory != &machine.acc || tile->start >= middle) return;
  for (uint32_t number = middle; number < end && number < tile->memory->count; number++) {
    Row *row = &tile->memory->rows[number];
    if (row->writer_fence == machine.fence_count)
      fail("accumulator row %u is pooled from row %u on, across the middle of the accumulator, and was computed without a "
           "fence since: the hardware only tracks the bank of the first row",
           number, tile->start);
    row->copied_fence = machine.fence_count;
  }
}

/* Largest window value for every pooled pixel; positions outside the tile count as zero. */
static void pool_out(uint64_t address, const Operand *from) {
  const StoreState *store = &machine.store;
  if (!machine.config.has_max_pool) fail("pooling needs a Gemmini with max pooling");
  if (!store->orows || !store->ocols) fail("pooling a tile of %u x %u pixels", store->orows, store->ocols);
  const uint32_t most = machine.spad.count > machine.acc.count ? machine.spad.count : machine.acc.count;
  const uint32_t taps = store->porows * store->pocols * store->pool_size * store->pool_size;
  if (taps > most) fail("pooling %u taps in one mvout: the store controller counts up to %u", taps, most);
  const Span all = {memory_of(from), from->row, 1, store->orows * store->ocols, 0, from->cols};
  const double operands = span_read(&all, READ_STORE);
  check_bank(&all);
  Transfer transfer = {0};
  const uint32_t item = element_bytes();
  float best_f32[MAX_DIM], value_f32[MAX_DIM];
  int8_t best_i8[MAX_DIM], value_i8[MAX_DIM];
  for (uint32_t prow = 0; prow < store->porows; prow++)
    for (uint32_t pcol = 0; pcol < store->pocols; pcol++) {
      for (uint32_t j = 0; j < from->cols; j++) best_i8[j] = -128, best_f32[j] = -FLT_MAX;
      for (uint32_t w = 0; w < store->pool_size * store->pool_size; w++) {
        const int64_t row = (int64_t)prow * store->pool_stride + w / store->pool_size - store->pool_upad;
        const int64_t col = (int64_t)pcol * store->pool_stride + w % store->pool_size - store->pool_lpad;
        const bool inside = row >= 0 && col >= 0 && row < store->orows && col < store->ocols;
        const uint32_t local = inside ? from->row + (uint32_t)(row * store->ocols + col) : 0;
        if (machine.config.is_float) {
          memset(value_f32, 0, sizeof value_f32);
          if (inside) scaled_row_f32(from, local, from->cols, value_f32);
          for (uint32_t j = 0; j < from->cols; j++)
            if (value_f32[j] > best_f32[j]) best_f32[j] = value_f32[j];
        } else {
          memset(value_i8, 0, sizeof value_i8);
          if (inside) scaled_row_i8(from, local, from->cols, value_i8);
          for (uint32_t j = 0; j < from->cols; j++)
            if (value_i8[j] > best_i8[j]) best_i8[j] = value_i8[j];
        }
      }
      const uint64_t target = address + (uint64_t)(prow * store->pool_out_dim + pcol) * store->stride;
      memcpy(dram_store(target, from->cols * item, &transfer),
             machine.config.is_float ? (void *)best_f32 : (void *)best_i8, from->cols * item);
    }
  const uint32_t reads = store->porows * store->pocols * store->pool_size * store->pool_size;
  machine.counts.rows_out += reads;
  finish_store(&all, 1, operands, &transfer, reads);
}

/* 64 bytes on an array of side 1. */
enum { MAX_STORE_BLOCKS = 64 };

void move_out(uint64_t address, uint64_t rs2) {
  const uint32_t dim = machine.config.dim;
  const Operand from = decode(rs2);
  check_store(&from);
  if (!address) fail("cannot store to DRAM address 0");
  if (machine.store.pool_stride) {
    pool_out(address, &from);
    return;
  }
  const uint32_t blocks = ceil_div(from.cols, dim);
  const uint32_t item = from.accumulator && from.full_width ? 4 : element_bytes();
  Span spans[MAX_STORE_BLOCKS];
  double operands = 0;
  if (blocks > MAX_STORE_BLOCKS) fail("%u blocks in one mvout", blocks);
  for (uint32_t block = 0; block < blocks; block++) {
    spans[block] = (Span){memory_of(&from), from.row + block * dim, 1, from.rows, 0,
                          minimum(dim, from.cols - block * dim)};
    const double ready = span_read(&spans[block], READ_STORE);
    if (ready > operands) operands = ready;
  }
  Transfer transfer = {0};
  for (uint32_t i = 0; i < from.rows; i++) {
    char *target = dram_store(address + i * machine.store.stride, from.cols * item, &transfer);
    for (uint32_t block = 0; block < blocks; block++)
      store_block(&from, from.row + block * dim + i, spans[block].cols, target + (size_t)block * dim * item);
  }
  machine.counts.rows_out += (uint64_t)from.rows * blocks;
  finish_store(spans, blocks, operands, &transfer, from.rows * blocks);
}

/* ---- local to local ---- */

void store_to_spad(uint64_t rs1, uint64_t rs2) {
  if (!machine.config.use_tl_ext_mem)
    fail("STORE_SPAD needs a Gemmini with use_tl_ext_mem: elsewhere the data are silently dropped");
  const Operand from = decode(rs2);
  const uint32_t target = (uint32_t)rs1, stride = (uint32_t)(rs1 >> 32);
  check_store(&from);
  if (machine.store.pool_stride) fail("STORE_SPAD cannot pool");
  if (from.accumulator && from.full_width) fail("STORE_SPAD moves elements, not full-width sums");
  if (from.cols > machine.config.dim) fail("%u columns: STORE_SPAD moves at most DIM=%u", from.cols, machine.config.dim);
  if (target & ACC_BIT) fail("STORE_SPAD cannot write the accumulator");
  const Span source = {memory_of(&from), from.row, 1, from.rows, 0, from.cols};
  const Span destination = {&machine.spad, target, stride, from.rows, 0, from.cols};
  double operands = span_read(&source, READ_COPY);
  const double available = span_write(&destination);
  if (available > operands) operands = available;
  for (uint32_t i = 0; i < from.rows; i++) {
    const uint32_t row = target + i * stride;
    store_block(&from, from.row + i, from.cols, machine.config.is_float ? (void *)spad_f32(row) : (void *)spad_i8(row));
  }
  machine.counts.rows_out += from.rows;
  const double start = timing_start(STORE_QUEUE, operands), end = start + from.rows;
  span_free(&source, end);
  span_ready(&destination, end);
  span_strewn(&destination);
  timing_finish(STORE_QUEUE, start, end, end);
}
