/* Elements and loops over them, for all host operators. */
#ifndef FADIFF_ELEMENTS_H
#define FADIFF_ELEMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "include/gemmini_params.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* A number as an element: as it is, */
#ifdef ELEM_T_IS_FLOAT
static inline elem_t to_elem(float x)
{
    return x;
}
#else
/* or the nearest integer, ties to even, saturated to int8. */
static inline elem_t to_elem(float x)
{
    if (x >= 127.0f) {
        return 127;
    }
    if (!(x > -128.0f)) {
        return -128;
    }
    const float magic = 0x1.8p23f;      /* a float this large has no fraction bits: */
    volatile float shifted = x + magic; /* the addition rounds to even; volatile: under any compiler option */
    return (elem_t)(shifted - magic);
}
#endif

/* Nested loops over up to 8 axes; strides are in elements, one list per operand. */
typedef struct {
    int32_t rank;
    const int32_t *shape;
    const int32_t *strides[4];
    int32_t operands;
} loops_t;

/* Steps to the next run of the innermost axis; false after the last one. */
static inline bool next_run(const loops_t *loops, int32_t index[8], ptrdiff_t at[4])
{
    for (int32_t axis = loops->rank - 2; axis >= 0; axis--) {
        index[axis]++;
        const bool wraps = index[axis] == loops->shape[axis];
        for (int32_t i = 0; i < loops->operands; i++) {
            const ptrdiff_t stride = loops->strides[i][axis];
            at[i] += wraps ? -stride * (loops->shape[axis] - 1) : stride;
        }
        if (!wraps) {
            return true;
        }
        index[axis] = 0;
    }
    return false;
}

#endif
