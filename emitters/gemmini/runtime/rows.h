/* Host operators along one axis: softmax, normalisation, reduction, gathering.  Where elements of a row are next to
 * each other (inner = 1), `step`, the distance from one to the next, is a constant. */
#ifndef FADIFF_ROWS_H
#define FADIFF_ROWS_H

#include "elements.h"

/* A tensor seen as [outer, length, inner]; the work is along length. */
typedef struct {
    int32_t outer, length, inner;
} rows_t;

static inline ptrdiff_t row_start(const rows_t *rows, int32_t o, int32_t i)
{
    return (ptrdiff_t)o * rows->length * rows->inner + i;
}

/* exp(x - largest); for int8 `table` has it for all differences, and `of_zero` is its entry for x = 0. */
static inline wide_t exponential(const int32_t *of_zero, elem_t x, wide_t largest)
{
#ifdef ELEM_T_IS_FLOAT
    (void)of_zero;
    return expf(x - largest);
#else
    (void)largest;
    return of_zero[x];
#endif
}

static inline const int32_t *entry_of_zero(const int32_t *table, wide_t largest)
{
    return table == NULL ? NULL : table + 255 - (ptrdiff_t)largest;
}

/* What `blank` leaves of a row; NULL leaves everything. */
ALWAYS_INLINE void softmax_row(
    const elem_t *x, elem_t *y, ptrdiff_t step, int32_t length, const int32_t *table, const int8_t *blank, float scale)
{
    wide_t largest = elem_t_min;
    full_t sum = 0;
    if (blank == NULL) {
        EACH(l, length, largest = MAX(largest, x[l * step]));
        const int32_t *e = entry_of_zero(table, largest);
        EACH(l, length, sum += (full_t)exponential(e, x[l * step], largest));
        const float gain = scale / (float)sum;
        MAP_ROUNDED(l, length, y[l * step], (float)exponential(e, x[l * step], largest) * gain);
        return;
    }
    EACH(l, length, largest = blank[l] == 0 ? MAX(largest, x[l * step]) : largest);
    const int32_t *e = entry_of_zero(table, largest);
    EACH(l, length, sum += blank[l] == 0 ? (full_t)exponential(e, x[l * step], largest) : 0);
    const float gain = scale / (float)sum;
    MAP_ROUNDED(l, length, y[l * step],
        blank[l] == 0 ? (float)exponential(e, x[l * step], largest) * gain : 0.0f);
}

/* Nonzero elements of row (o modulo mask_rows) of the mask leave an element out; NULL masks nothing. */
static inline void softmax(
    const rows_t *rows, const elem_t *input, const int32_t *exponentials, const int8_t *mask, int32_t mask_rows,
    elem_t *output, float scale)
{
    const int32_t length = rows->length;
    for (int32_t o = 0; o < rows->outer; o++) {
        const int8_t *blank = mask == NULL ? NULL : mask + (ptrdiff_t)(o % mask_rows) * length;
        for (int32_t i = 0; i < rows->inner; i++) {
            const elem_t *x = input + row_start(rows, o, i);
            elem_t *y = output + row_start(rows, o, i);
            if (rows->inner == 1) {
                softmax_row(x, y, 1, length, exponentials, blank, scale);
            } else {
                softmax_row(x, y, rows->inner, length, exponentials, blank, scale);
            }
        }
    }
}

/* Logarithm of a sum of exponentials; for int8 the number of thresholds it reaches, times `unit`. */
static inline float logarithm(full_t sum, const float *thresholds, int32_t count, float unit)
{
#ifdef ELEM_T_IS_FLOAT
    (void)thresholds;
    (void)count;
    (void)unit;
    return logf((float)sum);
#else
    int32_t reached = 0;
    for (int32_t above = count; reached < above;) {
        const int32_t middle = reached + (above - reached) / 2;
        if ((float)sum >= thresholds[middle]) {
            reached = middle + 1;
        } else {
            above = middle;
        }
    }
    return (float)reached * unit;
#endif
}

ALWAYS_INLINE float log_share(wide_t below, float ratio, float whole)
{
    const float scaled = (float)below * ratio;
    return scaled - whole;
}

/* (x - max) * ratio - log(sum of exp(x - max)). */
static inline void log_softmax(
    const rows_t *rows, const elem_t *input, const int32_t *exponentials, const float *thresholds, int32_t count,
    float ratio, float unit, elem_t *output)
{
    const ptrdiff_t step = rows->inner;
    for (int32_t o = 0; o < rows->outer; o++) {
        for (int32_t i = 0; i < rows->inner; i++) {
            const elem_t *x = input + row_start(rows, o, i);
            elem_t *y = output + row_start(rows, o, i);
            wide_t largest = elem_t_min;
            full_t sum = 0;
            EACH(l, rows->length, largest = MAX(largest, x[l * step]));
            const int32_t *e = entry_of_zero(exponentials, largest);
            EACH(l, rows->length, sum += (full_t)exponential(e, x[l * step], largest));
            const float whole = logarithm(sum, thresholds, count, unit);
            MAP_ROUNDED(l, rows->length, y[l * step], log_share(x[l * step] - largest, ratio, whole));
        }
    }
}

#ifdef ELEM_T_IS_FLOAT
typedef double normal_t; /* differences of large floats keep their digits */
#else
typedef float normal_t;
#endif

/* (distance * factor + shift) * gamma + beta, each step rounded. */
ALWAYS_INLINE float normalised(full_t distance, normal_t factor, normal_t shift, float gamma, float beta)
{
    const normal_t product = (normal_t)distance * factor;
    const float normal = (float)(product + shift);
    const float scaled = normal * gamma;
    return scaled + beta;
}

/* Of int8 in 32 bits: Rocket's multiplier takes half as long. */
ALWAYS_INLINE full_t square(elem_t x)
{
#ifdef ELEM_T_IS_FLOAT
    return (full_t)x * (full_t)x;
#else
    return x * x;
#endif
}

ALWAYS_INLINE void layer_norm_row(
    const elem_t *x, elem_t *y, ptrdiff_t step, int32_t length, const float *gamma, const float *beta,
    ptrdiff_t parameter_step, int32_t center, double epsilon, double variance_scale, double unit)
{
    full_t sum = 0;
    full_t squares = 0;
    EACH(l, length, sum += (full_t)x[l * step]; squares += square(x[l * step]));
    const full_t total = center ? sum : 0;
    const full_t variance = length * squares - total * total;
    const double spread = (double)variance * variance_scale;
    const double gain = unit / sqrt(spread + epsilon);
    const full_t middle = total / length; /* the mean, for int8 the whole part: no digits are lost in the difference */
    const full_t rest = total - length * middle;
    const normal_t factor = (normal_t)(gain * length);
    const normal_t shift = (normal_t)(gain * (double)-rest);
    MAP_ROUNDED(l, length, y[l * step],
        normalised(
            (full_t)x[l * step] - middle, factor, shift, gamma[l * parameter_step], beta[l * parameter_step]));
}

/* Layer norm (center 1) or RMS norm (center 0) from sums that are exact for int8, in double for float32. */
static inline void layer_norm(
    const rows_t *rows, const elem_t *input, const float *gamma, const float *beta, elem_t *output, int32_t center,
    bool per_inner, double epsilon, double variance_scale, double unit)
{
    const int32_t length = rows->length;
    for (int32_t o = 0; o < rows->outer; o++) {
        for (int32_t i = 0; i < rows->inner; i++) {
            const elem_t *x = input + row_start(rows, o, i);
            elem_t *y = output + row_start(rows, o, i);
            if (rows->inner == 1 && !per_inner) {
                layer_norm_row(x, y, 1, length, gamma, beta, 1, center, epsilon, variance_scale, unit);
            } else {
                const ptrdiff_t of_row = per_inner ? i : 0;
                layer_norm_row(
                    x, y, rows->inner, length, gamma + of_row, beta + of_row, per_inner ? 0 : 1, center, epsilon,
                    variance_scale, unit);
            }
        }
    }
}

typedef enum { REDUCE_SUM, REDUCE_MAX, REDUCE_MIN } reduce_t;

ALWAYS_INLINE wide_t reduced(wide_t value, wide_t x, reduce_t function)
{
    return function == REDUCE_SUM ? value + x : function == REDUCE_MAX ? MAX(value, x) : MIN(value, x);
}

ALWAYS_INLINE void reduce(const rows_t *rows, const elem_t *input, elem_t *output, reduce_t function, float scale)
{
    const ptrdiff_t step = rows->inner;
    for (int32_t o = 0; o < rows->outer; o++) {
        for (int32_t i = 0; i < rows->inner; i++) {
            const elem_t *x = input + row_start(rows, o, i);
            wide_t value = function == REDUCE_SUM ? 0 : x[0];
            EACH(l, rows->length, value = reduced(value, x[l * step], function));
            *output++ = to_elem((float)value * scale);
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

/* A place in a row; negative ones count from its end. */
ALWAYS_INLINE ptrdiff_t place_of(int32_t index, int32_t length)
{
    return index < 0 ? index + length : index;
}

/* out[o, j, i] = x[o, indices[j], i], elements of `size` bytes. */
static inline void gather(
    const rows_t *rows, const void *input, const int32_t *indices, int32_t count, void *output, size_t size)
{
    const size_t run = (size_t)rows->inner * size;
    const int8_t *from = (const int8_t *)input;
    int8_t *to = (int8_t *)output;
    for (int32_t o = 0; o < rows->outer; o++) {
        if (run == 1) {
            MAP(j, count, int8_t, to[j], from[place_of(indices[j], rows->length)]);
        } else {
            for (int32_t j = 0; j < count; j++) {
                memcpy(to + (size_t)j * run, from + (size_t)place_of(indices[j], rows->length) * run, run);
            }
        }
        from += (size_t)rows->length * run;
        to += (size_t)count * run;
    }
}

/* out = x but for out[o, indices[j], i] = updates[o, j, i], elements of `size` bytes; places outside of a row
 * are left out.  Where output is x, only the updates are written. */
static inline void scatter(const rows_t *rows, const void *input, const int32_t *indices, int32_t count,
    const void *updates, void *output, size_t size)
{
    const size_t run = (size_t)rows->inner * size;
    const size_t row = (size_t)rows->length * run;
    const int8_t *from = (const int8_t *)updates;
    int8_t *to = (int8_t *)output;
    if (output != input) {
        memcpy(output, input, (size_t)rows->outer * row);
    }
    for (int32_t o = 0; o < rows->outer; o++) {
        for (int32_t j = 0; j < count; j++) {
            const ptrdiff_t place = place_of(indices[j], rows->length);
            if (place >= 0 && place < rows->length) {
                memcpy(to + (size_t)place * run, from + (size_t)j * run, run);
            }
        }
        from += (size_t)count * run;
        to += row;
    }
}

#endif
