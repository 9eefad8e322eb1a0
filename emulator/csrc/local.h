/* Scratchpad and accumulator rows: limits, initialisation, hazards the hardware does not track. */
#ifndef FADIFF_LOCAL_H
#define FADIFF_LOCAL_H

#include "machine.h"

/* `count` rows from `start`, `stride` apart, columns [first, first + cols). */
typedef struct {
  Memory *memory;
  uint32_t start, stride, count, first, cols;
} Span;

enum { READ_OPERAND, READ_STORE, READ_COPY, READ_ACCUMULATE };

Memory *memory_of(const Operand *operand);

/* Checks that the rows exist and hold initialised data; marks them used.  `reader` tells which
 * hazards apply.  Returns the estimated cycle at which the data are there. */
double span_read(const Span *span, int reader);
/* Checks a write by mvin number machine.loads; `accumulate` mvins commute and are exempt from WAW. */
double span_load(const Span *span, bool accumulate);
/* The reservation station moves the range of a packed mvin down by its pixel_repeats - 1 rows, so that
 * its last rows are not tracked: remember the span as such. */
void span_untracked(const Span *span);
/* The reservation station counts the rows of a scratchpad copy as adjacent: remember those beyond. */
void span_strewn(const Span *span);
/* Checks a write by a compute or a scratchpad copy.  Returns when the rows may be overwritten. */
double span_write(const Span *span);
/* A compute wrote the span: remember whose result it is. */
void span_computed(const Span *span);
/* A hardware loop starts only when the one before the last is over: so are its loads. */
void loads_over(uint32_t last_load);
/* Sets the estimated cycle at which a write lands or a read is over. */
void span_ready(const Span *span, double cycle);
void span_free(const Span *span, double cycle);
/* Sets the estimated cycle at which a compute's result has left the array. */
void span_settled(const Span *span, double cycle);

static inline int8_t *spad_i8(uint32_t row) {
  return (int8_t *)machine.spad_data + (size_t)row * machine.config.dim;
}
static inline float *spad_f32(uint32_t row) {
  return (float *)machine.spad_data + (size_t)row * machine.config.dim;
}
static inline int32_t *acc_i32(uint32_t row) {
  return (int32_t *)machine.acc_data + (size_t)row * machine.config.dim;
}
static inline float *acc_f32(uint32_t row) {
  return (float *)machine.acc_data + (size_t)row * machine.config.dim;
}
#endif
