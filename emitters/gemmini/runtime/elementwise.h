/* Host operators that work element by element: docs/host-ops.md of FADiff has their meaning. */
#ifndef FADIFF_ELEMENTWISE_H
#define FADIFF_ELEMENTWISE_H

#include <string.h>

#include "elements.h"

/* Elements of `size` bytes from one strided box to another: a transposition, a slice, part of a concatenation. */
static inline void strided_copy(const loops_t *loops, const void *input, void *output, size_t size)
{
    const int32_t last = loops->rank - 1;
    const ptrdiff_t step = loops->strides[0][last];
    const ptrdiff_t out_step = loops->strides[1][last];
    const ptrdiff_t bytes = (ptrdiff_t)size;
    int32_t index[8] = {0};
    ptrdiff_t at[4] = {0};
    do {
        const int8_t *from = (const int8_t *)input + at[0] * bytes;
        int8_t *to = (int8_t *)output + at[1] * bytes;
        if (step == 1 && out_step == 1) {
            memcpy(to, from, (size_t)loops->shape[last] * size);
        } else {
            for (int32_t i = 0; i < loops->shape[last]; i++) {
                memcpy(to + i * out_step * bytes, from + i * step * bytes, size);
            }
        }
    } while (next_run(loops, index, at));
}

/* out = table[x + 128]. */
static inline void lookup(const loops_t *loops, const int8_t *input, const int8_t *table, int8_t *output)
{
    const int32_t last = loops->rank - 1;
    const ptrdiff_t step = loops->strides[0][last];
    const ptrdiff_t out_step = loops->strides[1][last];
    int32_t index[8] = {0};
    ptrdiff_t at[4] = {0};
    do {
        for (int32_t i = 0; i < loops->shape[last]; i++) {
            output[at[1] + i * out_step] = table[input[at[0] + i * step] + 128];
        }
    } while (next_run(loops, index, at));
}

/* out = formula(x). */
static inline void map_elements(const loops_t *loops, const elem_t *input, elem_t *output, elem_t (*formula)(elem_t x))
{
    const int32_t last = loops->rank - 1;
    const ptrdiff_t step = loops->strides[0][last];
    const ptrdiff_t out_step = loops->strides[1][last];
    int32_t index[8] = {0};
    ptrdiff_t at[4] = {0};
    do {
        for (int32_t i = 0; i < loops->shape[last]; i++) {
            output[at[1] + i * out_step] = formula(input[at[0] + i * step]);
        }
    } while (next_run(loops, index, at));
}

static inline void fill(elem_t *output, size_t count, elem_t value)
{
    for (size_t i = 0; i < count; i++) {
        output[i] = value;
    }
}

typedef enum {
    BINARY_ADD, BINARY_SUB, BINARY_MUL, BINARY_DIV, BINARY_MAX, BINARY_MIN, BINARY_PRELU, BINARY_EQUAL,
    BINARY_GREATER, BINARY_GREATER_OR_EQUAL, BINARY_LESS, BINARY_LESS_OR_EQUAL, BINARY_AND, BINARY_OR, BINARY_XOR
} binary_t;

static inline elem_t binary_value(
    binary_t function, elem_t a, elem_t b, float a_scale, float b_scale, float scale, bool relu)
{
    const float fa = (float)a * a_scale;
    const float fb = (float)b * b_scale;
    float value = 0.0f;
    switch (function) {
    case BINARY_MAX:
        return MAX(to_elem(fa), to_elem(fb));
    case BINARY_MIN:
        return MIN(to_elem(fa), to_elem(fb));
    case BINARY_PRELU:
        return to_elem(a >= 0 ? fa : (float)(a * b) * scale);
    case BINARY_EQUAL:
        return (elem_t)(fa == fb);
    case BINARY_GREATER:
        return (elem_t)(fa > fb);
    case BINARY_GREATER_OR_EQUAL:
        return (elem_t)(fa >= fb);
    case BINARY_LESS:
        return (elem_t)(fa < fb);
    case BINARY_LESS_OR_EQUAL:
        return (elem_t)(fa <= fb);
    case BINARY_AND:
        return (elem_t)(a != 0 && b != 0);
    case BINARY_OR:
        return (elem_t)(a != 0 || b != 0);
    case BINARY_XOR:
        return (elem_t)((a != 0) != (b != 0));
    case BINARY_ADD:
        value = fa + fb;
        break;
    case BINARY_SUB:
        value = fa - fb;
        break;
    case BINARY_MUL:
        value = (float)(a * b);
        break;
    case BINARY_DIV:
#ifndef ELEM_T_IS_FLOAT
        if (b == 0) {
            return a == 0 || (relu && a < 0) ? 0 : (elem_t)(a > 0 ? 127 : -128);
        }
#endif
        value = (float)a / (float)b;
        break;
    }
    return to_elem((relu ? MAX(value, 0.0f) : value) * scale);
}

static inline void binary(
    const loops_t *loops, const elem_t *a, const elem_t *b, elem_t *output, binary_t function, float a_scale,
    float b_scale, float scale, bool relu)
{
    const int32_t last = loops->rank - 1;
    int32_t index[8] = {0};
    ptrdiff_t at[4] = {0};
    do {
        for (int32_t i = 0; i < loops->shape[last]; i++) {
            const elem_t x = a[at[0] + (ptrdiff_t)i * loops->strides[0][last]];
            const elem_t y = b[at[1] + (ptrdiff_t)i * loops->strides[1][last]];
            output[at[2] + (ptrdiff_t)i * loops->strides[2][last]]
                = binary_value(function, x, y, a_scale, b_scale, scale, relu);
        }
    } while (next_run(loops, index, at));
}

static inline void where(
    const loops_t *loops, const elem_t *condition, const elem_t *a, const elem_t *b, elem_t *output, float a_scale,
    float b_scale)
{
    const int32_t last = loops->rank - 1;
    int32_t index[8] = {0};
    ptrdiff_t at[4] = {0};
    do {
        for (int32_t i = 0; i < loops->shape[last]; i++) {
            const float x = (float)a[at[1] + (ptrdiff_t)i * loops->strides[1][last]] * a_scale;
            const float y = (float)b[at[2] + (ptrdiff_t)i * loops->strides[2][last]] * b_scale;
            const bool first = condition[at[0] + (ptrdiff_t)i * loops->strides[0][last]] != 0;
            output[at[3] + (ptrdiff_t)i * loops->strides[3][last]] = to_elem(first ? x : y);
        }
    } while (next_run(loops, index, at));
}

/* act(x * multiplier + addend), product and sum rounded one after the other. */
static inline void scale_shift(
    const loops_t *loops, const elem_t *input, const float *multiplier, const float *addend, elem_t *output, bool relu)
{
    const int32_t last = loops->rank - 1;
    int32_t index[8] = {0};
    ptrdiff_t at[4] = {0};
    do {
        for (int32_t i = 0; i < loops->shape[last]; i++) {
            const float x = (float)input[at[0] + (ptrdiff_t)i * loops->strides[0][last]];
            const float product = x * multiplier[at[1] + (ptrdiff_t)i * loops->strides[1][last]];
            const float sum = product + addend[at[2] + (ptrdiff_t)i * loops->strides[2][last]];
            output[at[3] + (ptrdiff_t)i * loops->strides[3][last]] = to_elem(relu ? MAX(sum, 0.0f) : sum);
        }
    } while (next_run(loops, index, at));
}

#endif
