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

/* For functions whose constant arguments decide which code is left of them; without optimisation nothing is, and their
 * variables would be as many on the stack as they have callers. */
#ifdef __OPTIMIZE__
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE static inline
#endif

/* Hides from the compiler what an address is: GCC packs bytes into words before it stores them where it knows that it
 * may, and that takes longer. */
#define HIDE(address) __asm__("" : "+r"(address))

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

/* sum + a * b, of integers that stay below 2^24: exact in any way. */
static inline float multiply_add(float sum, float a, float b)
{
#ifdef __riscv_flen
    __asm__("fmadd.s %0, %1, %2, %0" : "+f"(sum) : "f"(a), "f"(b));
    return sum;
#else
    return sum + a * b;
#endif
}

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

static inline float as_it_is(float x)
{
    return x;
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

/* The statement for i = at, at + 1, ... */
#define ONCE(i, at, statement)    \
    {                             \
        const int32_t i = (at);   \
        (void)i;                  \
        statement;                \
    }
#define FOUR_TIMES(i, at, statement) \
    ONCE(i, at, statement)           \
    ONCE(i, (at) + 1, statement)     \
    ONCE(i, (at) + 2, statement)     \
    ONCE(i, (at) + 3, statement)

/* The statement for i = 0 to count - 1, four times per turn: a loop's own instructions cost as much as short work. */
#define EACH(i, count, statement)               \
    do {                                        \
        int32_t done_ = 0;                       \
        for (; done_ < (count) - 3; done_ += 4) { \
            FOUR_TIMES(i, done_, statement)      \
        }                                       \
        for (; done_ < (count); done_++) {        \
            ONCE(i, done_, statement)            \
        }                                       \
    } while (0)

/* target = value for i = 0 to count - 1.  Eight values are computed before the first is stored: operands may be the
 * target, so nothing else lets the compiler fill the wait for one result with work on the next. */
#define MAP(i, count, type, target, value)                     \
    do {                                                       \
        int32_t done_ = 0;                                      \
        for (; done_ < (count) - 7; done_ += 8) {                \
            type eight[8];                                     \
            FOUR_TIMES(i, done_, eight[i - done_] = (value))     \
            FOUR_TIMES(i, done_ + 4, eight[i - done_] = (value)) \
            FOUR_TIMES(i, done_, target = eight[i - done_])      \
            FOUR_TIMES(i, done_ + 4, target = eight[i - done_])  \
        }                                                      \
        for (; done_ < (count); done_++) {                       \
            ONCE(i, done_, target = (value))                    \
        }                                                      \
    } while (0)

/* target = to_elem(value) for i = 0 to count - 1, as MAP, and each step of to_elem for four values before the next one:
 * a result of Rocket's FPU is used four instructions later at the earliest.  MAP_POSITIVE: of values that are not
 * negative. */
#ifdef ELEM_T_IS_FLOAT
#define MAP_ROUNDED(i, count, target, value) MAP(i, count, elem_t, target, value)
#define MAP_POSITIVE MAP_ROUNDED
#else
#define MAP_ROUNDED(i, count, target, value) MAP_TO_ELEMENTS(i, count, target, value, at_least_minus_128)
#define MAP_POSITIVE(i, count, target, value) MAP_TO_ELEMENTS(i, count, target, value, as_it_is)
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
#define ROUND_FOUR(i, at, target, value, lowest)              \
    {                                                         \
        float four[4];                                        \
        int32_t rounded[4];                                   \
        FOUR_TIMES(i, at, four[i - (at)] = (value))           \
        TOGETHER("f", four);                                  \
        STEP("f", four, lowest, four);                        \
        STEP("f", four, at_most_127, four);                   \
        STEP("r", rounded, nearest, four);                    \
        FOUR_TIMES(i, at, target = (elem_t)rounded[i - (at)]) \
    }
#define MAP_TO_ELEMENTS(i, count, target, value, lowest)               \
    do {                                                               \
        int32_t done_ = 0;                                             \
        for (; done_ < (count) - 7; done_ += 8) {                      \
            ROUND_FOUR(i, done_, target, value, lowest)                \
            ROUND_FOUR(i, done_ + 4, target, value, lowest)            \
        }                                                              \
        if (done_ < (count) - 3) {                                     \
            ROUND_FOUR(i, done_, target, value, lowest)                \
            done_ += 4;                                                \
        }                                                              \
        for (int32_t left_ = (count)&3; left_ > 0; left_--, done_++) { \
            ONCE(i, done_, target = to_elem(value))                    \
        }                                                              \
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
    ptrdiff_t next[4]; /* from a run to the next one of the axis around it, */
    int32_t left;      /* of which so many are still to come */
    int32_t count;
    bool dense; /* all strides are 1 */
    int32_t index[8];
} run_t;

/* Element by element: for a structure of zeros GCC calls memset and copies it, and loses what is constant. */
ALWAYS_INLINE run_t first_run(const loops_t *loops)
{
    const int32_t innermost = loops->rank - 1;
    run_t run;
    run.count = loops->shape[innermost];
    run.left = innermost > 0 ? loops->shape[innermost - 1] - 1 : 0;
    run.dense = true;
    for (int32_t axis = 0; axis < innermost; axis++) {
        run.index[axis] = 0;
    }
    FOUR_TIMES(i, 0, {
        const bool used = i < loops->operands;
        run.at[i] = 0;
        run.step[i] = used ? loops->strides[i][innermost] : 1;
        run.next[i] = used && innermost > 0 ? loops->strides[i][innermost - 1] : 0;
        run.dense = run.dense && run.step[i] == 1;
        HIDE(run.at[i]);
    })
    return run;
}

/* Steps to the first run of the next plane of runs; false after the last one. */
static inline bool next_plane(const loops_t *loops, run_t *run)
{
    const int32_t around = loops->rank - 2;
    if (around < 0) {
        return false;
    }
    run->left = loops->shape[around] - 1;
    for (int32_t i = 0; i < loops->operands; i++) {
        run->at[i] -= run->left * run->next[i];
    }
    for (int32_t axis = around - 1; axis >= 0; axis--) {
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

/* Steps to the next run; false after the last one. */
static inline bool next_run(const loops_t *loops, run_t *run)
{
    if (run->left == 0) {
        return next_plane(loops, run);
    }
    run->left--;
    run->at[0] += run->next[0];
    run->at[1] += run->next[1];
    run->at[2] += run->next[2];
    run->at[3] += run->next[3];
    return true;
}

/* MAP or MAP_ROUNDED over a run; `target` and `value` index operand k by i * step[k]. */
#define OVER_RUN(run, map, ...)                     \
    do {                                            \
        if ((run)->dense) {                         \
            const ptrdiff_t step[4] = {1, 1, 1, 1}; \
            map(__VA_ARGS__);                       \
        } else {                                    \
            const ptrdiff_t *step = (run)->step;    \
            map(__VA_ARGS__);                       \
        }                                           \
    } while (0)
#define MAP_RUN(run, i, ...) OVER_RUN(run, MAP, i, (run)->count, __VA_ARGS__)
#define MAP_ROUNDED_RUN(run, i, ...) OVER_RUN(run, MAP_ROUNDED, i, (run)->count, __VA_ARGS__)

#endif
