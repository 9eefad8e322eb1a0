/* Rows, and host operators that leave one number of each. */
#ifndef FADIFF_REDUCE_H
#define FADIFF_REDUCE_H

#include "packed.h"
#include "vector.h"

/* A tensor seen as [outer, length, inner]; the work is along length. */
typedef struct {
    int32_t outer, length, inner;
} rows_t;

static inline ptrdiff_t row_start(const rows_t *rows, int32_t o, int32_t i)
{
    return (ptrdiff_t)o * rows->length * rows->inner + i;
}

typedef enum { REDUCE_SUM, REDUCE_MAX, REDUCE_MIN } reduce_t;

ALWAYS_INLINE wide_t reduced(wide_t value, wide_t x, reduce_t function)
{
    return function == REDUCE_SUM ? value + x : function == REDUCE_MAX ? MAX(value, x) : MIN(value, x);
}

#ifndef ELEM_T_IS_FLOAT
ALWAYS_INLINE packed_t reduced_packed(packed_t value, packed_t x, reduce_t function)
{
    return function == REDUCE_MAX ? larger_packed(x, value) : smaller_packed(x, value);
}

/* The extremum of each lane of `words` words, `distance` elements apart. */
ALWAYS_INLINE packed_t extremum_packed(const elem_t *x, ptrdiff_t distance, int32_t words, reduce_t function)
{
    packed_t value = load_packed(x);
    EACH(i, words - 1, x += distance; value = reduced_packed(value, load_packed(x), function));
    return value;
}

/* The extremum of all lanes. */
ALWAYS_INLINE wide_t extremum_of_lanes(packed_t lanes, reduce_t function)
{
    return function == REDUCE_MAX ? largest_lane(lanes) : (int8_t)~largest_lane(~lanes);
}

/* The extremum of a long row that begins between words.  No part of its callers, whose registers it would take. */
#define RAGGED_EXTREMUM(name, function)                                                           \
    static __attribute__((noinline, unused)) wide_t name(const elem_t *x, int32_t length)         \
    {                                                                                             \
        wide_t value = x[0];                                                                      \
        const int32_t before = before_words(x), whole = (length - before) / 8;                    \
        EACH(l, before, value = reduced(value, x[l], function));                                  \
        const packed_t lanes = extremum_packed(x + before, 8, whole, function);                   \
        value = reduced(value, extremum_of_lanes(lanes, function), function);                     \
        const int32_t done = before + 8 * whole;                                                  \
        EACH(l, length - done, value = reduced(value, x[done + l], function));                    \
        return value;                                                                             \
    }
RAGGED_EXTREMUM(largest_of_ragged, REDUCE_MAX)
RAGGED_EXTREMUM(smallest_of_ragged, REDUCE_MIN)
#undef RAGGED_EXTREMUM

/* Eight neighbouring columns, reduced. */
ALWAYS_INLINE void
reduced_columns(const elem_t *x, ptrdiff_t step, int32_t length, reduce_t function, int32_t columns[8])
{
    EACH(lane, 8, columns[lane] = 0);
    for (int32_t first = 0; function == REDUCE_SUM && first < length; first += MOST_SUMMED) {
        const int32_t words = MIN(length - first, MOST_SUMMED);
        const packed_sums_t sums = add_words(x + first * step, step, words);
        EACH(lane, 8, columns[lane] += sum_of_lane(&sums, lane, words));
    }
    if (function != REDUCE_SUM) {
        const packed_t value = extremum_packed(x, step, length, function);
        EACH(lane, 8, columns[lane] = lane_of(value, lane));
    }
}
#endif

ALWAYS_INLINE wide_t reduced_row(const elem_t *x, ptrdiff_t step, int32_t length, reduce_t function)
{
    wide_t value = function == REDUCE_SUM ? 0 : x[0];
    int32_t done = 0;
#ifdef FADIFF_VECTOR
    if (step == 1 && function == REDUCE_MAX) {
        return vector_largest(x, length);
    }
#endif
#ifdef ELEM_T_IS_FLOAT
    if (function == REDUCE_SUM) {
        double sum = 0.0;
        EACH(l, length, sum += (double)x[l * step]);
        return (wide_t)sum;
    }
#else
    if (step == 1 && function != REDUCE_SUM && length >= LONG_EXTREMUM && !is_packed(x, 0)) {
        return function == REDUCE_MAX ? largest_of_ragged(x, length) : smallest_of_ragged(x, length);
    }
    const int32_t whole = step == 1 && length >= LONG_RUN && is_packed(x, 0) ? length / 8 : 0;
    for (; function == REDUCE_SUM && done < 8 * whole; done += 8 * MOST_SUMMED) {
        const int32_t words = MIN(whole - done / 8, MOST_SUMMED);
        const packed_sums_t sums = add_words(x + done, 8, words);
        value += sum_of_lanes(&sums, words);
    }
    if (function != REDUCE_SUM && whole > 0) {
        const packed_t lanes = extremum_packed(x, 8, whole, function);
        value = reduced(value, extremum_of_lanes(lanes, function), function);
    }
    done = 8 * whole;
#endif
    EACH(l, length - done, value = reduced(value, x[(done + l) * step], function));
    return value;
}

ALWAYS_INLINE void reduce(const rows_t *rows, const elem_t *input, elem_t *output, reduce_t function, float scale)
{
    const ptrdiff_t step = rows->inner;
    HIDE(output);
    for (int32_t o = 0; o < rows->outer; o++) {
        int32_t i = 0;
#ifdef FADIFF_VECTOR
        if (step > 1 && function == REDUCE_SUM) {
            vector_sum_columns(input + row_start(rows, o, 0), step, rows->length, output, rows->inner, scale);
            output += rows->inner;
            continue;
        }
#endif
#ifndef ELEM_T_IS_FLOAT
        if (step > 1 && is_packed(input + row_start(rows, o, 0), step)) {
            for (; i < rows->inner; i += 8) {
                int32_t columns[8];
                reduced_columns(input + row_start(rows, o, i), step, rows->length, function, columns);
                MAP_ROUNDED(lane, 8, output[lane], (float)columns[lane] * scale);
                output += 8;
            }
        }
#endif
        for (; i < rows->inner; i++) {
            const elem_t *x = input + row_start(rows, o, i);
            *output++ = to_elem((float)(step == 1 ? reduced_row(x, 1, rows->length, function)
                                                  : reduced_row(x, step, rows->length, function)) * scale);
        }
    }
}

/* One loop for each function. */
#define REDUCE(name, function)                                                                                      \
    static inline void reduce_##name(const rows_t *rows, const elem_t *input, elem_t *output, float scale)          \
    {                                                                                                               \
        reduce(rows, input, output, function, scale);                                                               \
    }
REDUCE(sum, REDUCE_SUM)
REDUCE(max, REDUCE_MAX)
REDUCE(min, REDUCE_MIN)
#undef REDUCE

/* Index of the extremum; of equals the first, or the last. */
static inline void arg_max(const rows_t *rows, const elem_t *input, int32_t *output, bool smallest, bool select_last)
{
    for (int32_t o = 0; o < rows->outer; o++) {
        for (int32_t i = 0; i < rows->inner; i++) {
            const elem_t *x = input + row_start(rows, o, i);
            wide_t champion = x[0];
            int32_t best = 0;
            for (int32_t l = 1; l < rows->length; l++) {
                const wide_t element = x[(ptrdiff_t)l * rows->inner];
                const bool better = smallest ? element < champion : element > champion;
                if (better || (select_last && element == champion)) {
                    champion = element;
                    best = l;
                }
            }
            *output++ = best;
        }
    }
}

#endif
