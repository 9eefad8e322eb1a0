/* Host operators that work element by element: docs/host-ops.md of FADiff has their meaning. */
#ifndef FADIFF_ELEMENTWISE_H
#define FADIFF_ELEMENTWISE_H

#include <float.h>

#include "packed.h"
#include "vector.h"

/* Four bytes of any type. */
typedef int32_t __attribute__((may_alias)) word_t;

static inline bool copied_packed(const run_t *run, const void *x, const void *y)
{
    return run->dense && run->count >= LONG_RUN && is_packed(x, 0) && is_packed(y, 0);
}

/* Not memmove: C libraries for small machines copy byte by byte.  Forward, as below. */
static inline void copy_packed(packed_t *y, const packed_t *x, int32_t bytes)
{
    const int32_t whole = bytes / 8;
    MAP(i, whole, packed_t, y[i], x[i]);
    MAP(i, bytes % 8, int8_t, ((int8_t *)(y + whole))[i], ((const int8_t *)(x + whole))[i]);
}

/* From one strided box to another: a transposition, a slice, part of a concatenation. */
/* (forward: a window that slides in its buffer reads ahead of what it writes) */
static inline void copy_bytes(const loops_t *loops, const void *input, void *output)
{
    run_t run = first_run(loops);
    do {
        const int8_t *x = (const int8_t *)input + run.at[0];
        int8_t *y = (int8_t *)output + run.at[1];
        if (copied_packed(&run, x, y)) {
            copy_packed((packed_t *)(void *)y, (const packed_t *)(const void *)x, run.count);
        } else {
            MAP_RUN(&run, i, int8_t, y[i * step[1]], x[i * step[0]]);
        }
    } while (next_run(loops, &run));
}

static inline void copy_words(const loops_t *loops, const void *input, void *output)
{
    run_t run = first_run(loops);
    do {
        const word_t *x = (const word_t *)input + run.at[0];
        word_t *y = (word_t *)output + run.at[1];
        if (copied_packed(&run, x, y)) {
            copy_packed(
                (packed_t *)(void *)y, (const packed_t *)(const void *)x,
                run.count * (int32_t)sizeof *y);
        } else {
            MAP_RUN(&run, i, word_t, y[i * step[1]], x[i * step[0]]);
        }
    } while (next_run(loops, &run));
}

/* out = table[x + 128]. */
static inline void lookup(const loops_t *loops, const int8_t *input, const int8_t *table, int8_t *output)
{
    const int8_t *of_zero = table + 128;
    run_t run = first_run(loops);
    do {
        const int8_t *x = input + run.at[0];
        int8_t *y = output + run.at[1];
#ifdef FADIFF_VECTOR
        if (run.dense) {
            vector_lookup(x, table, y, run.count);
            continue;
        }
#endif
        for (; run.dense && run.count >= 16; run.count -= 16) { /* a turn of MAP takes three instructions besides */
            MAP(i, 8, int8_t, y[i], of_zero[x[i]]);
            MAP(i, 8, int8_t, y[i + 8], of_zero[x[i + 8]]);
            x += 16;
            y += 16;
        }
        MAP_RUN(&run, i, int8_t, y[i * step[1]], of_zero[x[i * step[0]]]);
        run.count = loops->shape[loops->rank - 1];
    } while (next_run(loops, &run));
}

/* out = formula(x). */
static inline void map_elements(const loops_t *loops, const elem_t *input, elem_t *output, elem_t (*formula)(elem_t x))
{
    run_t run = first_run(loops);
    do {
        for (int32_t i = 0; i < run.count; i++) {
            output[run.at[1] + i * run.step[1]] = formula(input[run.at[0] + i * run.step[0]]);
        }
    } while (next_run(loops, &run));
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

/* The value of an arithmetic function, before it is rounded. */
ALWAYS_INLINE float
binary_value(binary_t function, elem_t a, elem_t b, float a_scale, float b_scale, float scale, bool relu)
{
    const float fa = (float)a * a_scale;
    const float fb = (float)b * b_scale;
    const float product = (float)a * (float)b; /* exact for int8, and Rocket multiplies integers one at a time */
    float value = 0.0f;
    switch (function) {
    case BINARY_MAX:
        return larger(fa, fb);
    case BINARY_MIN:
        return smaller(fa, fb);
    case BINARY_PRELU:
        return a >= 0 ? fa : product * scale;
    case BINARY_ADD:
        value = fa + fb;
        break;
    case BINARY_SUB:
        value = fa - fb;
        break;
    case BINARY_MUL:
        value = product;
        break;
    default:
#ifndef ELEM_T_IS_FLOAT
        value = b == 0 ? (float)a * FLT_MAX : (float)a / (float)b; /* saturates, but for 0 / 0 */
#else
        value = a / b;
#endif
        break;
    }
    return (relu ? larger(value, 0.0f) : value) * scale;
}

/* Comparisons and logic: 1 or 0. */
ALWAYS_INLINE bool binary_truth(binary_t function, elem_t a, elem_t b, float a_scale, float b_scale)
{
    const float fa = (float)a * a_scale;
    const float fb = (float)b * b_scale;
    switch (function) {
    case BINARY_EQUAL:
        return fa == fb;
    case BINARY_GREATER:
        return fa > fb;
    case BINARY_GREATER_OR_EQUAL:
        return fa >= fb;
    case BINARY_LESS:
        return fa < fb;
    case BINARY_LESS_OR_EQUAL:
        return fa <= fb;
    case BINARY_AND:
        return a != 0 && b != 0;
    case BINARY_OR:
        return a != 0 || b != 0;
    default:
        return (a != 0) != (b != 0);
    }
}

ALWAYS_INLINE void binary(
    const loops_t *loops, const elem_t *a, const elem_t *b, elem_t *output, binary_t function, float a_scale,
    float b_scale, float scale, bool relu)
{
    run_t run = first_run(loops);
    do {
        const elem_t *x = a + run.at[0];
        const elem_t *y = b + run.at[1];
        elem_t *out = output + run.at[2];
#ifdef FADIFF_VECTOR
        if (run.dense && function == BINARY_MUL) {
            vector_multiply(x, y, out, run.count, scale, relu);
            continue;
        }
        if (run.dense && (function == BINARY_ADD || function == BINARY_SUB)) {
            const float signed_scale = function == BINARY_ADD ? b_scale : -b_scale;
            vector_add(x, y, out, run.count, a_scale, signed_scale, scale, relu);
            continue;
        }
#endif
        if (function < BINARY_EQUAL) {
            MAP_ROUNDED_RUN(
                &run, i, out[i * step[2]],
                binary_value(function, x[i * step[0]], y[i * step[1]], a_scale, b_scale, scale, relu));
        } else {
            MAP_RUN(
                &run, i, elem_t, out[i * step[2]],
                (elem_t)binary_truth(function, x[i * step[0]], y[i * step[1]], a_scale, b_scale));
        }
    } while (next_run(loops, &run));
}

/* One loop for each function: choosing it element by element would cost more than most of them. */
#define BINARY(name, function)                                                                                      \
    static inline void binary_##name(                                                                               \
        const loops_t *loops, const elem_t *a, const elem_t *b, elem_t *output, float a_scale, float b_scale,       \
        float scale, bool relu)                                                                                     \
    {                                                                                                               \
        if (relu) {                                                                                                 \
            binary(loops, a, b, output, function, a_scale, b_scale, scale, true);                                   \
        } else {                                                                                                    \
            binary(loops, a, b, output, function, a_scale, b_scale, scale, false);                                  \
        }                                                                                                           \
    }
BINARY(add, BINARY_ADD)
BINARY(sub, BINARY_SUB)
BINARY(mul, BINARY_MUL)
BINARY(div, BINARY_DIV)
BINARY(max, BINARY_MAX)
BINARY(min, BINARY_MIN)
BINARY(prelu, BINARY_PRELU)
BINARY(equal, BINARY_EQUAL)
BINARY(greater, BINARY_GREATER)
BINARY(greater_or_equal, BINARY_GREATER_OR_EQUAL)
BINARY(less, BINARY_LESS)
BINARY(less_or_equal, BINARY_LESS_OR_EQUAL)
BINARY(and, BINARY_AND)
BINARY(or, BINARY_OR)
BINARY(xor, BINARY_XOR)
#undef BINARY

#ifndef ELEM_T_IS_FLOAT
/* out = table[a + 128] * b * scale. */
static inline void table_product(
    const loops_t *loops, const int8_t *a, const int8_t *b, const int8_t *table, int8_t *output, float scale, bool relu)
{
    const int8_t *of_zero = table + 128;
    run_t run = first_run(loops);
    do {
        const int8_t *x = a + run.at[0];
        const int8_t *y = b + run.at[1];
        int8_t *out = output + run.at[2];
        MAP_ROUNDED_RUN(
            &run, i, out[i * step[2]],
            binary_value(BINARY_MUL, of_zero[x[i * step[0]]], y[i * step[1]], 1.0f, 1.0f, scale, relu));
    } while (next_run(loops, &run));
}
#endif

static inline void where(
    const loops_t *loops, const elem_t *condition, const elem_t *a, const elem_t *b, elem_t *output, float a_scale,
    float b_scale)
{
    run_t run = first_run(loops);
    do {
        const elem_t *choice = condition + run.at[0];
        const elem_t *x = a + run.at[1];
        const elem_t *y = b + run.at[2];
        elem_t *out = output + run.at[3];
        MAP_ROUNDED_RUN(
            &run, i, out[i * step[3]],
            choice[i * step[0]] != 0 ? (float)x[i * step[1]] * a_scale : (float)y[i * step[2]] * b_scale);
    } while (next_run(loops, &run));
}

/* Product and sum are rounded one after the other. */
ALWAYS_INLINE float scaled_and_shifted(elem_t x, float multiplier, float addend, bool relu)
{
    const float product = (float)x * multiplier;
    const float sum = product + addend;
    return relu ? larger(sum, 0.0f) : sum;
}

/* act(x * multiplier + addend). */
static inline void scale_shift(
    const loops_t *loops, const elem_t *input, const float *multiplier, const float *addend, elem_t *output, bool relu)
{
    run_t run = first_run(loops);
    do {
        const elem_t *x = input + run.at[0];
        const float *factor = multiplier + run.at[1];
        const float *term = addend + run.at[2];
        elem_t *y = output + run.at[3];
#ifdef FADIFF_VECTOR
        if (run.dense) {
            vector_scale_shift(x, factor, term, y, run.count, relu);
            continue;
        }
#endif
        MAP_ROUNDED_RUN(
            &run, i, y[i * step[3]],
            scaled_and_shifted(x[i * step[0]], factor[i * step[1]], term[i * step[2]], relu));
    } while (next_run(loops, &run));
}

#endif
