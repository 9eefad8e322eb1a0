/* PRELOAD, COMPUTE_PRELOADED and COMPUTE_ACCUMULATED in both dataflows. */
#include "compute.h"

#include "array.h"
#include "fail.h"
#include "local.h"
#include "machine.h"
#include "numerics.h"
#include "timing.h"

/* Operands as the array sees them, at element width. */
static int8_t a_i8[MAX_DIM][PITCH], b_i8[MAX_DIM][PITCH];
static float a_f32[MAX_DIM][PITCH], b_f32[MAX_DIM][PITCH];
static int32_t sums_i32[MAX_DIM][PITCH];
static float sums_f32[MAX_DIM][PITCH];

static void check_operand(const Operand *operand, const char *name) {
  const uint32_t dim = machine.config.dim;
  if (operand->garbage) return;
  if (operand->rows < 1 || operand->rows > dim || operand->cols < 1 || operand->cols > dim)
    fail("operand %s has %u rows and %u columns: both are 1 to DIM=%u", name, operand->rows, operand->cols, dim);
  if (operand->accumulator && !machine.config.ex_read_from_acc)
    fail("operand %s is in the accumulator: this Gemmini has no ex_read_from_acc", name);
  if (operand->accumulator && (operand->full_width || operand->norm))
    fail("operand %s: only plain accumulator addresses", name);
}

/* Reads an operand of `rows` x `cols` local elements, `stride` rows apart, into matrix rows. */
static double read_operand(const Operand *operand, uint32_t rows, uint32_t cols, uint32_t stride, int8_t i8[][PITCH],
                           float f32[][PITCH]) {
  const ExecuteState *execute = &machine.execute;
  const Span span = {memory_of(operand), operand->row, stride, rows, 0, cols};
  const double ready = span_read(&span, READ_OPERAND);
  const bool relu = execute->activation == 1;
  for (uint32_t i = 0; i < rows; i++) {
    const uint32_t row = operand->row + i * stride;
    if (machine.config.is_float) {
      if (operand->accumulator)
        scale_row_f32(acc_f32(row), cols, execute->acc_scale, relu, f32[i]);
      else
        memcpy(f32[i], spad_f32(row), 4 * (size_t)cols);
    } else {
      if (operand->accumulator)
        scale_row_to_i8(acc_i32(row), cols, execute->acc_scale, relu, i8[i]);
      else
        memcpy(i8[i], spad_i8(row), cols);
    }
  }
  return ready;
}

static void release_operand(const Operand *operand, uint32_t rows, uint32_t stride, double cycle) {
  if (operand->garbage) return;
  const Span span = {memory_of(operand), operand->row, stride, rows, 0, 1};
  span_free(&span, cycle);
}

static void set_stationary(const Operand *matrix) {
  Array *array = &machine.array;
  const bool transposed = machine.execute.dataflow == WEIGHT_STATIONARY && machine.execute.b_transpose;
  array_clear_next(machine.config.dim);
  const uint32_t rows = transposed ? matrix->cols : matrix->rows, cols = transposed ? matrix->rows : matrix->cols;
  array->ready = matrix->garbage ? 0 : read_operand(matrix, rows, cols, 1, b_i8, b_f32);
  for (uint32_t k = 0; k < rows && !matrix->garbage; k++)
    if (machine.config.is_float)
      array_set_next_f32(k, b_f32[k], cols, transposed);
    else
      array_set_next_i8(k, b_i8[k], cols, transposed);
  release_operand(matrix, rows, 1, timing_start(EXECUTE_QUEUE, array->ready));
}

/* Scratchpad bank that an operand begins in. */
#define NO_BANK UINT32_MAX
static uint32_t bank_of(const Operand *operand) {
  if (operand->garbage || operand->accumulator) return NO_BANK;
  return operand->row / machine.config.bank_rows;
}

void preload(uint64_t rs1, uint64_t rs2) {
  const Operand matrix = decode(rs1), result = decode(rs2);
  Array *array = &machine.array;
  if (!machine.execute.configured) fail("no config_ex yet");
  if (array->pending) fail("a PRELOAD already waits for its COMPUTE");
  check_operand(&matrix, machine.execute.dataflow == WEIGHT_STATIONARY ? "B" : "D");
  if (!result.garbage) {
    const uint32_t dim = machine.config.dim;
    if (result.rows < 1 || result.rows > dim || result.cols < 1 || result.cols > dim)
      fail("result C has %u rows and %u columns: both are 1 to DIM=%u", result.rows, result.cols, dim);
    if (!result.accumulator && !machine.config.ex_write_to_spad)
      fail("result C is in the scratchpad: this Gemmini has no ex_write_to_spad");
    if (result.accumulator && result.norm) fail("normalisation commands are not modelled");
  }
  set_stationary(&matrix);
  array->pending = true;
  array->pending_new = !matrix.garbage;
  array->bank = bank_of(&matrix);
  array->result = result;
}

/* Weight stationary: sums = D + A * weights. */
static double multiply_ws(const Operand *a, const Operand *d, uint32_t rows, uint32_t depth) {
  const uint32_t dim = machine.config.dim;
  double ready = 0;
  for (uint32_t i = 0; i < dim; i++) {
    memset(sums_i32[i], 0, dim * sizeof sums_i32[i][0]);
    memset(sums_f32[i], 0, dim * sizeof sums_f32[i][0]);
  }
  if (!d->garbage) {
    ready = read_operand(d, d->rows, d->cols, 1, b_i8, b_f32);
    for (uint32_t i = 0; i < d->rows; i++)
      for (uint32_t j = 0; j < d->cols; j++)
        if (machine.config.is_float)
          sums_f32[i][j] = b_f32[i][j];
        else
          sums_i32[i][j] = b_i8[i][j];
  }
  if (a->garbage) return ready;
  if (machine.config.is_float) {
    array_multiply_f32(a_f32, rows, depth, sums_f32);
    return ready;
  }
  array_multiply_i8(a_i8, rows, depth, sums_i32);
  if (dim < 32) return ready; /* 16 products of -128 * -128 fit */
  int32_t lowest = 0, highest = 0;
  for (uint32_t i = 0; i < rows; i++)
    for (uint32_t j = 0; j < dim; j++) {
      lowest = sums_i32[i][j] < lowest ? sums_i32[i][j] : lowest;
      highest = sums_i32[i][j] > highest ? sums_i32[i][j] : highest;
    }
  if (lowest < -(1 << 19) || highest >= 1 << 19)
    fail("a sum inside the array is %d: it does not fit the 20 bits between processing elements; keep weights in "
         "[-127, 127]",
         highest >= 1 << 19 ? highest : lowest);
  return ready;
}

/* Output stationary: the array's sums += A * B; sums leave it shifted. */
static double multiply_os(const Operand *a, const Operand *b, uint32_t rows, uint32_t depth) {
  const uint32_t dim = machine.config.dim;
  double ready = 0;
  if (!a->garbage && !b->garbage) {
    const bool transposed = machine.execute.b_transpose;
    const uint32_t local_rows = transposed ? b->cols : b->rows, local_cols = transposed ? b->rows : b->cols;
    ready = read_operand(b, local_rows, local_cols, 1, b_i8, b_f32);
    const uint32_t common = minimum(depth, b->rows);
    for (uint32_t i = 0; i < rows; i++)
      for (uint32_t k = 0; k < common; k++)
        for (uint32_t j = 0; j < b->cols; j++)
          if (machine.config.is_float)
            array_sums_f32[i][j] += a_f32[i][k] * (transposed ? b_f32[j][k] : b_f32[k][j]);
          else
            array_sums_i32[i][j] =
                wrapping_add(array_sums_i32[i][j], a_i8[i][k] * (transposed ? b_i8[j][k] : b_i8[k][j]));
  }
  for (uint32_t i = 0; i < dim; i++)
    for (uint32_t j = 0; j < dim; j++) {
      sums_f32[i][j] = array_sums_f32[i][j];
      sums_i32[i][j] = rounding_shift(array_sums_i32[i][j], machine.execute.shift);
    }
  return ready;
}

static void write_result(const Operand *result) {
  const uint32_t stride = machine.execute.c_stride;
  const bool relu = machine.execute.activation == 1, os = machine.execute.dataflow == OUTPUT_STATIONARY;
  for (uint32_t i = 0; i < result->rows; i++) {
    const uint32_t row = result->row + i * stride;
    if (machine.config.is_float) {
      float *target = result->accumulator ? acc_f32(row) : spad_f32(row);
      for (uint32_t j = 0; j < result->cols; j++)
        target[j] = result->accumulator && result->accumulate ? target[j] + sums_f32[i][j]
                    : !result->accumulator && relu && sums_f32[i][j] < 0 ? 0
                                                                         : sums_f32[i][j];
      continue;
    }
    for (uint32_t j = 0; os && j < result->cols; j++)
      if (sums_i32[i][j] < -(1 << 19) || sums_i32[i][j] >= 1 << 19)
        fail("an output-stationary sum is %d after the shift: the array saturates it to 20 bits", sums_i32[i][j]);
    if (result->accumulator) {
      int32_t *target = acc_i32(row);
      if (result->accumulate)
        for (uint32_t j = 0; j < result->cols; j++) target[j] = wrapping_add(target[j], sums_i32[i][j]);
      else
        memcpy(target, sums_i32[i], result->cols * sizeof *target);
    } else {
      int8_t *target = spad_i8(row);
      for (uint32_t j = 0; j < result->cols; j++) {
        const int32_t value = relu && sums_i32[i][j] < 0 ? 0 : sums_i32[i][j];
        target[j] = (int8_t)(value > 127 ? 127 : value < -128 ? -128 : value);
      }
    }
  }
}

void compute(uint64_t rs1, uint64_t rs2, bool flip) {
  const Operand a = decode(rs1), bd = decode(rs2);
  const ExecuteState *execute = &machine.execute;
  Array *array = &machine.array;
  const bool os = execute->dataflow == OUTPUT_STATIONARY;
  if (!array->pending) fail("COMPUTE without a PRELOAD before it");
  if (!flip && array->pending_new)
    fail("the preloaded matrix is never used: COMPUTE_ACCUMULATED keeps the old one");
  if (!flip && !array->loaded) fail("COMPUTE_ACCUMULATED before any COMPUTE_PRELOADED: the array holds nothing");
  check_operand(&a, "A");
  check_operand(&bd, os ? "B" : "D");
  const Operand result = array->result;
  if (a.garbage && !result.garbage && !os) fail("operand A is garbage but the result is kept");

  if (flip) array_flip(os);
  array->loaded = true;
  array->pending = false;

  double operands = array->ready;
  uint32_t local_rows = 0;
  if (!a.garbage) {
    local_rows = execute->a_transpose ? a.cols : a.rows;
    const uint32_t local_cols = execute->a_transpose ? a.rows : a.cols;
    int8_t(*i8)[PITCH] = execute->a_transpose ? b_i8 : a_i8;
    float(*f32)[PITCH] = execute->a_transpose ? b_f32 : a_f32;
    const double ready = read_operand(&a, local_rows, local_cols, execute->a_stride, i8, f32);
    if (ready > operands) operands = ready;
    for (uint32_t k = 0; execute->a_transpose && k < a.cols; k++)
      for (uint32_t i = 0; i < a.rows; i++)
        if (machine.config.is_float)
          a_f32[i][k] = b_f32[k][i];
        else
          a_i8[i][k] = b_i8[k][i];
    for (uint32_t i = 0; i < a.rows && a.cols % 2; i++) a_i8[i][a.cols] = 0; /* products go in pairs of k */
  }
  const double ready = os ? multiply_os(&a, &bd, a.rows, a.cols) : multiply_ws(&a, &bd, a.rows, a.cols);
  if (ready > operands) operands = ready;

  Span target = {0};
  if (!result.garbage) {
    target = (Span){memory_of(&result), result.row, execute->c_stride, result.rows, 0, result.cols};
    if (result.accumulator && result.accumulate) {
      const double previous = span_read(&target, READ_ACCUMULATE);
      if (previous > operands) operands = previous;
    }
    const double available = span_write(&target);
    if (available > operands) operands = available;
    write_result(&result);
    span_computed(&target);
  }
  if (!a.garbage) machine.counts.macs += (uint64_t)a.rows * a.cols * (result.garbage ? bd.cols : result.cols);

  const double start = timing_array(timing_start(EXECUTE_QUEUE, operands));
  const uint32_t streamed = a.garbage ? result.rows : a.rows;
  const uint32_t least = array->pending_new && !os ? machine.config.dim : 4;
  double end = start + (streamed > least ? streamed : least);
  const bool preloads = array->pending_new && array->bank != NO_BANK, reads = !a.garbage && bank_of(&a) != NO_BANK;
  const bool together = preloads && reads && bank_of(&a) == array->bank;
  const double preloaded = preloads ? timing_read(array->bank, start, machine.config.dim + together * local_rows) : 0;
  const double read = reads && !together ? timing_read(bank_of(&a), start, local_rows) : 0;
  if (preloaded > end) end = preloaded;
  if (read > end) end = read;
  release_operand(&a, local_rows, execute->a_stride, end);
  release_operand(&bd, bd.rows, 1, end);
  const double retired = end + machine.config.array_latency;
  if (!result.garbage) {
    span_ready(&target, end);
    span_settled(&target, retired);
  }
  timing_result(retired);
  timing_finish(EXECUTE_QUEUE, start, end, retired);
}
