/* Elements and loops over them, for all host operators. */
#ifndef FADIFF_ELEMENTS_H
#define FADIFF_ELEMENTS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "include/gemmini_params.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* For functions whose constant arguments decide which code is left of them. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Sums and extrema of elements: registers of the core, which needs instructions to keep numbers narrower. */
#ifdef ELEM_T_IS_FLOAT
typedef float wide_t;
#else
typedef int64_t wide_t;
#endif

/* The larger and the smaller number; of a number and NaN the number.  Without branches: older GCC calls fmaxf. */
#ifdef __riscv_flen
static inline float larger(float a, float b)
{
    __asm__("fmax.s %0, %0, %1" : "+f"(a) : "f"(b));
    return a;
}

static inline float smaller(float a, float b)
{
    __asm__("fmin.s %0, %0, %1" : "+f"(a) : "f"(b));
    return a;
}
#else
static inline float larger(float a, float b)
{
    return a > b || b != b ? a : b;
}

static inline float smaller(float a, float b)
{
    return a < b || b != b ? a : b;
}
#endif

/* A number as an element: as it is, */
#ifdef ELEM_T_IS_FLOAT
static inline elem_t to_elem(float x)
{
    return x;
}
#else
static inline float at_least_minus_128(float x)
{
    return larger(x, -128.0f);
}

static inline float at_most_127(float x)
{
    return smaller(x, 127.0f);
}

/* The nearest integer to a number from -128 to 127, ties to even. */
static inline int32_t nearest(float x)
{
    int32_t integer;
#ifdef __riscv_flen
    __asm__("fcvt.w.s %0, %1, rne" : "=r"(integer) : "f"(x));
    return integer;
#else
    /* A float as large as `magic` has no fraction bits: the addition rounds, the integer is in the lowest bits. */
    const float magic = 0x1.8p23f;
    const float shifted = x + magic;
    memcpy(&integer, &shifted, sizeof integer);
    return (int8_t)integer;
#endif
}

/* or the nearest integer, ties to even, saturated to int8. */
static inline elem_t to_elem(float x)
{
    return (elem_t)nearest(at_most_127(at_least_minus_128(x)));
}
#endif

/* The statement for i = 0 to count - 1, four times per turn: a loop's own instructions cost as much as short work. */
#define EACH(i, count, statement)                   \
    do {                                            \
        int32_t i = 0;                              \
        while (i < (count) - 3) {                   \
            statement;                              \
            i++;                                    \
            statement;                              \
            i++;                                    \
            statement;                              \
            i++;                                    \
            statement;                              \
            i++;                                    \
        }                                           \
        for (; i < (count); i++) {                  \
            statement;                              \
        }                                           \
    } while (0)

/* target = value for i = 0 to count - 1.  Four values are computed before the first is stored: operands may be the
 * target, so nothing else lets the compiler fill the wait for one result with work on the next. */
#define MAP(i, count, type, target, value)          \
    do {                                            \
        int32_t i = 0;                              \
        while (i < (count) - 3) {                   \
            const type first = (value);             \
            i++;                                    \
            const type second = (value);            \
            i++;                                    \
            const type third = (value);             \
            i++;                                    \
            const type fourth = (value);            \
            i -= 3;                                 \
            target = first;                         \
            i++;                                    \
            target = second;                        \
            i++;                                    \
            target = third;                         \
            i++;                                    \
            target = fourth;                        \
            i++;                                    \
        }                                           \
        for (; i < (count); i++) {                  \
            target = (value);                       \
        }                                           \
    } while (0)

/* target = to_elem(value) for i = 0 to count - 1, as MAP, and each step of to_elem for four values before the next one:
 * a result of Rocket's FPU is used four instructions later at the earliest. */
#ifdef ELEM_T_IS_FLOAT
#define MAP_ROUNDED(i, count, target, value) MAP(i, count, elem_t, target, value)
#else
#ifdef __riscv_flen
#define TOGETHER(kind, of) __asm__("" : "+" kind(of[0]), "+" kind(of[1]), "+" kind(of[2]), "+" kind(of[3]))
#else
#define TOGETHER(kind, of) (void)of
#endif
#define STEP(kind, to, function, from) \
    to[0] = function(from[0]);         \
    to[1] = function(from[1]);         \
    to[2] = function(from[2]);         \
    to[3] = function(from[3]);         \
    TOGETHER(kind, to)
#define MAP_ROUNDED(i, count, target, value)               \
    do {                                                   \
        int32_t i = 0;                                     \
        while (i < (count) - 3) {                          \
            float four[4];                                 \
            int32_t rounded[4];                            \
            four[0] = (value);                             \
            i++;                                           \
            four[1] = (value);                             \
            i++;                                           \
            four[2] = (value);                             \
            i++;                                           \
            four[3] = (value);                             \
            i -= 3;                                        \
            TOGETHER("f", four);                           \
            STEP("f", four, at_least_minus_128, four);     \
            STEP("f", four, at_most_127, four);            \
            STEP("r", rounded, nearest, four);             \
            target = (elem_t)rounded[0];                   \
            i++;                                           \
            target = (elem_t)rounded[1];                   \
            i++;                                           \
            target = (elem_t)rounded[2];                   \
            i++;                                           \
            target = (elem_t)rounded[3];                   \
            i++;                                           \
        }                                                  \
        for (; i < (count); i++) {                         \
            target = to_elem(value);                       \
        }                                                  \
    } while (0)
#endif

/* Nested loops over up to 8 axes; strides are in elements, one list per operand. */
typedef struct {
    int32_t rank;
    const int32_t *shape;
    const int32_t *strides[4];
    int32_t operands;
} loops_t;

/* A run of the innermost axis: where each operand starts, and its stride. */
typedef struct {
    ptrdiff_t at[4], step[4];
    int32_t count;
    bool dense; /* all strides are 1 */
    int32_t index[8];
} run_t;

static inline run_t first_run(const loops_t *loops)
{
    run_t run = {.count = loops->shape[loops->rank - 1], .dense = true};
    for (int32_t i = 0; i < loops->operands; i++) {
        run.step[i] = loops->strides[i][loops->rank - 1];
        run.dense = run.dense && run.step[i] == 1;
    }
    return run;
}

/* Steps to the next run; false after the last one. */
static inline bool next_run(const loops_t *loops, run_t *run)
{
    for (int32_t axis = loops->rank - 2; axis >= 0; axis--) {
        const bool wraps = ++run->index[axis] == loops->shape[axis];
        for (int32_t i = 0; i < loops->operands; i++) {
            const ptrdiff_t stride = loops->strides[i][axis];
            run->at[i] += wraps ? -stride * (loops->shape[axis] - 1) : stride;
        }
        if (!wraps) {
            return true;
        }
        run->index[axis] = 0;
    }
    return false;
}

/* MAP over a run; `target` and `value` index operand k by i * step[k]. */
#define MAP_RUN(run, i, type, target, value)                                              \
    do {                                                                                  \
        if ((run)->dense) {                                                               \
            const ptrdiff_t step[4] = {1, 1, 1, 1};                                       \
            MAP(i, (run)->count, type, target, value);                                    \
        } else {                                                                          \
            const ptrdiff_t *step = (run)->step;                                          \
            MAP(i, (run)->count, type, target, value);                                    \
        }                                                                                 \
    } while (0)

#endif
