/* Host operators on integers. */
#ifndef FADIFF_INTEGERS_H
#define FADIFF_INTEGERS_H

#include "elements.h"

/* out = table[x + 128], integers. */
static inline void lookup_integer(const loops_t *loops, const elem_t *input, const int32_t *table, int32_t *output)
{
    const int32_t last = loops->rank - 1;
    const ptrdiff_t step = loops->strides[0][last];
    const ptrdiff_t out_step = loops->strides[1][last];
    int32_t index[8] = {0};
    ptrdiff_t at[4] = {0};
    do {
        for (int32_t i = 0; i < loops->shape[last]; i++) {
            output[at[1] + i * out_step] = table[(int32_t)input[at[0] + i * step] + 128];
        }
    } while (next_run(loops, index, at));
}

typedef enum {
    INTEGER_ADD, INTEGER_SUB, INTEGER_MUL, INTEGER_DIV, INTEGER_MODULO, INTEGER_REMAINDER, INTEGER_MAX, INTEGER_MIN,
    INTEGER_AND, INTEGER_OR, INTEGER_XOR, INTEGER_SHIFT_LEFT, INTEGER_SHIFT_RIGHT, INTEGER_EQUAL, INTEGER_NOT_EQUAL,
    INTEGER_GREATER, INTEGER_GREATER_OR_EQUAL, INTEGER_LESS, INTEGER_LESS_OR_EQUAL
} integer_t;

/* Results wrap around in 32 bits; divisors are not zero. */
static inline int32_t integer_value(integer_t function, int32_t a, int32_t b)
{
    const uint32_t x = (uint32_t)a;
    const uint32_t y = (uint32_t)b;
    switch (function) {
    case INTEGER_ADD:
        return (int32_t)(x + y);
    case INTEGER_SUB:
        return (int32_t)(x - y);
    case INTEGER_MUL:
        return (int32_t)(x * y);
    case INTEGER_DIV:
        return a / b;
    case INTEGER_MODULO: {
        const int32_t rest = a % b;
        return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    }
    case INTEGER_REMAINDER:
        return a % b;
    case INTEGER_MAX:
        return MAX(a, b);
    case INTEGER_MIN:
        return MIN(a, b);
    case INTEGER_AND:
        return (int32_t)(x & y);
    case INTEGER_OR:
        return (int32_t)(x | y);
    case INTEGER_XOR:
        return (int32_t)(x ^ y);
    case INTEGER_SHIFT_LEFT:
        return (int32_t)(x << y);
    case INTEGER_SHIFT_RIGHT:
        return (int32_t)(x >> y);
    case INTEGER_EQUAL:
        return a == b;
    case INTEGER_NOT_EQUAL:
        return a != b;
    case INTEGER_GREATER:
        return a > b;
    case INTEGER_GREATER_OR_EQUAL:
        return a >= b;
    case INTEGER_LESS:
        return a < b;
    case INTEGER_LESS_OR_EQUAL:
        return a <= b;
    }
    return 0;
}

static inline void integer_arithmetic(
    const loops_t *loops, const int32_t *a, const int32_t *b, int32_t *output, integer_t function)
{
    const int32_t last = loops->rank - 1;
    int32_t index[8] = {0};
    ptrdiff_t at[4] = {0};
    do {
        for (int32_t i = 0; i < loops->shape[last]; i++) {
            const int32_t x = a[at[0] + (ptrdiff_t)i * loops->strides[0][last]];
            const int32_t y = b[at[1] + (ptrdiff_t)i * loops->strides[1][last]];
            output[at[2] + (ptrdiff_t)i * loops->strides[2][last]] = (int32_t)integer_value(function, x, y);
        }
    } while (next_run(loops, index, at));
}

static inline void integer_comparison(
    const loops_t *loops, const int32_t *a, const int32_t *b, elem_t *output, integer_t function)
{
    const int32_t last = loops->rank - 1;
    int32_t index[8] = {0};
    ptrdiff_t at[4] = {0};
    do {
        for (int32_t i = 0; i < loops->shape[last]; i++) {
            const int32_t x = a[at[0] + (ptrdiff_t)i * loops->strides[0][last]];
            const int32_t y = b[at[1] + (ptrdiff_t)i * loops->strides[1][last]];
            output[at[2] + (ptrdiff_t)i * loops->strides[2][last]] = (elem_t)integer_value(function, x, y);
        }
    } while (next_run(loops, index, at));
}

/* condition != 0 ? a : b. */
static inline void select_integer(
    const loops_t *loops, const elem_t *condition, const int32_t *a, const int32_t *b, int32_t *output)
{
    const int32_t last = loops->rank - 1;
    int32_t index[8] = {0};
    ptrdiff_t at[4] = {0};
    do {
        for (int32_t i = 0; i < loops->shape[last]; i++) {
            const int32_t x = a[at[1] + (ptrdiff_t)i * loops->strides[1][last]];
            const int32_t y = b[at[2] + (ptrdiff_t)i * loops->strides[2][last]];
            const bool first = condition[at[0] + (ptrdiff_t)i * loops->strides[0][last]] != 0;
            output[at[3] + (ptrdiff_t)i * loops->strides[3][last]] = first ? x : y;
        }
    } while (next_run(loops, index, at));
}

/* Integers as elements: float(x) * scale. */
static inline void quantise(const loops_t *loops, const int32_t *input, elem_t *output, float scale)
{
    const int32_t last = loops->rank - 1;
    const ptrdiff_t step = loops->strides[0][last];
    const ptrdiff_t out_step = loops->strides[1][last];
    int32_t index[8] = {0};
    ptrdiff_t at[4] = {0};
    do {
        for (int32_t i = 0; i < loops->shape[last]; i++) {
            output[at[1] + i * out_step] = to_elem((float)input[at[0] + i * step] * scale);
        }
    } while (next_run(loops, index, at));
}

#endif
