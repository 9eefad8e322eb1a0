/* Host operators on integers. */
#ifndef FADIFF_INTEGERS_H
#define FADIFF_INTEGERS_H

#include "elements.h"

/* out = table[x + 128], integers. */
static inline void lookup_integer(const loops_t *loops, const elem_t *input, const int32_t *table, int32_t *output)
{
    run_t run = first_run(loops);
    do {
        const elem_t *x = input + run.at[0];
        int32_t *y = output + run.at[1];
        MAP_RUN(&run, i, int32_t, y[i * step[1]], table[(int32_t)x[i * step[0]] + 128]);
    } while (next_run(loops, &run));
}

typedef enum {
    INTEGER_ADD, INTEGER_SUB, INTEGER_MUL, INTEGER_DIV, INTEGER_MODULO, INTEGER_REMAINDER, INTEGER_MAX, INTEGER_MIN,
    INTEGER_AND, INTEGER_OR, INTEGER_XOR, INTEGER_SHIFT_LEFT, INTEGER_SHIFT_RIGHT, INTEGER_EQUAL, INTEGER_NOT_EQUAL,
    INTEGER_GREATER, INTEGER_GREATER_OR_EQUAL, INTEGER_LESS, INTEGER_LESS_OR_EQUAL
} integer_t;

/* Results wrap around in 32 bits; divisors are not zero. */
ALWAYS_INLINE int32_t integer_value(integer_t function, int32_t a, int32_t b)
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

/* One loop for each function. */
#define INTEGER(name, function, type)                                                                               \
    static inline void integer_##name(const loops_t *loops, const int32_t *a, const int32_t *b, type *output)       \
    {                                                                                                               \
        run_t run = first_run(loops);                                                                               \
        do {                                                                                                        \
            const int32_t *x = a + run.at[0];                                                                       \
            const int32_t *y = b + run.at[1];                                                                       \
            type *out = output + run.at[2];                                                                         \
            MAP_RUN(                                                                                                \
                &run, i, type, out[i * step[2]], (type)integer_value(function, x[i * step[0]], y[i * step[1]]));    \
        } while (next_run(loops, &run));                                                                            \
    }
INTEGER(add, INTEGER_ADD, int32_t)
INTEGER(sub, INTEGER_SUB, int32_t)
INTEGER(mul, INTEGER_MUL, int32_t)
INTEGER(div, INTEGER_DIV, int32_t)
INTEGER(modulo, INTEGER_MODULO, int32_t)
INTEGER(remainder, INTEGER_REMAINDER, int32_t)
INTEGER(max, INTEGER_MAX, int32_t)
INTEGER(min, INTEGER_MIN, int32_t)
INTEGER(and, INTEGER_AND, int32_t)
INTEGER(or, INTEGER_OR, int32_t)
INTEGER(xor, INTEGER_XOR, int32_t)
INTEGER(shift_left, INTEGER_SHIFT_LEFT, int32_t)
INTEGER(shift_right, INTEGER_SHIFT_RIGHT, int32_t)
INTEGER(equal, INTEGER_EQUAL, elem_t)
INTEGER(not_equal, INTEGER_NOT_EQUAL, elem_t)
INTEGER(greater, INTEGER_GREATER, elem_t)
INTEGER(greater_or_equal, INTEGER_GREATER_OR_EQUAL, elem_t)
INTEGER(less, INTEGER_LESS, elem_t)
INTEGER(less_or_equal, INTEGER_LESS_OR_EQUAL, elem_t)
#undef INTEGER

/* condition != 0 ? a : b. */
static inline void select_integer(
    const loops_t *loops, const elem_t *condition, const int32_t *a, const int32_t *b, int32_t *output)
{
    run_t run = first_run(loops);
    do {
        const elem_t *choice = condition + run.at[0];
        const int32_t *x = a + run.at[1];
        const int32_t *y = b + run.at[2];
        int32_t *out = output + run.at[3];
        MAP_RUN(
            &run, i, int32_t, out[i * step[3]], choice[i * step[0]] != 0 ? x[i * step[1]] : y[i * step[2]]);
    } while (next_run(loops, &run));
}

/* Integers as elements: float(x) * scale. */
static inline void quantise(const loops_t *loops, const int32_t *input, elem_t *output, float scale)
{
    run_t run = first_run(loops);
    do {
        const int32_t *x = input + run.at[0];
        elem_t *y = output + run.at[1];
        MAP_ROUNDED_RUN(&run, i, y[i * step[1]], (float)x[i * step[0]] * scale);
    } while (next_run(loops, &run));
}

#endif
