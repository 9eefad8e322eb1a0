/* Host operators along one axis: softmax, normalisation, reduction, gathering. */
#ifndef FADIFF_ROWS_H
#define FADIFF_ROWS_H

#include <math.h>
#include <string.h>

#include "elements.h"

/* A tensor seen as [outer, length, inner]; the work is along length. */
typedef struct {
    int32_t outer, length, inner;
} rows_t;

/* exp(x - largest), for int8 from a table of all differences. */
static inline acc_t exponential(const int32_t *table, elem_t x, acc_t largest)
{
#ifdef ELEM_T_IS_FLOAT
    (void)table;
    return expf(x - largest);
#else
    return table[largest - x];
#endif
}

/* Nonzero elements of row (o modulo mask_rows) of the mask leave an element out; NULL masks nothing. */
static inline void softmax(
    const rows_t *rows, const elem_t *input, const int32_t *exponentials, const int8_t *mask, int32_t mask_rows,
    elem_t *output, float scale)
{
    for (int32_t o = 0; o < rows->outer; o++) {
        const int8_t *blank = mask == NULL ? NULL : mask + (ptrdiff_t)(o % mask_rows) * rows->length;
        for (int32_t i = 0; i < rows->inner; i++) {
            const elem_t *x = input + (ptrdiff_t)o * rows->length * rows->inner + i;
            elem_t *y = output + (ptrdiff_t)o * rows->length * rows->inner + i;
            acc_t largest = elem_t_min;
            for (int32_t l = 0; l < rows->length; l++) {
                if (blank == NULL || blank[l] == 0) {
                    largest = MAX(largest, x[(ptrdiff_t)l * rows->inner]);
                }
            }
            full_t sum = 0;
            for (int32_t l = 0; l < rows->length; l++) {
                if (blank == NULL || blank[l] == 0) {
                    sum += (full_t)exponential(exponentials, x[(ptrdiff_t)l * rows->inner], largest);
                }
            }
            for (int32_t l = 0; l < rows->length; l++) {
                const ptrdiff_t at = (ptrdiff_t)l * rows->inner;
                if (blank == NULL || blank[l] == 0) {
                    const float share = (float)exponential(exponentials, x[at], largest) / (float)sum;
                    y[at] = to_elem(share * scale);
                } else {
                    y[at] = 0;
                }
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

/* (x - max) * ratio - log(sum of exp(x - max)). */
static inline void log_softmax(
    const rows_t *rows, const elem_t *input, const int32_t *exponentials, const float *thresholds, int32_t count,
    float ratio, float unit, elem_t *output)
{
    for (int32_t o = 0; o < rows->outer; o++) {
        for (int32_t i = 0; i < rows->inner; i++) {
            const elem_t *x = input + (ptrdiff_t)o * rows->length * rows->inner + i;
            elem_t *y = output + (ptrdiff_t)o * rows->length * rows->inner + i;
            acc_t largest = elem_t_min;
            for (int32_t l = 0; l < rows->length; l++) {
                largest = MAX(largest, x[(ptrdiff_t)l * rows->inner]);
            }
            full_t sum = 0;
            for (int32_t l = 0; l < rows->length; l++) {
                sum += (full_t)exponential(exponentials, x[(ptrdiff_t)l * rows->inner], largest);
            }
            const float whole = logarithm(sum, thresholds, count, unit);
            for (int32_t l = 0; l < rows->length; l++) {
                const ptrdiff_t at = (ptrdiff_t)l * rows->inner;
                const float below = (float)(x[at] - largest) * ratio;
                y[at] = to_elem(below - whole);
            }
        }
    }
}

/* Layer norm (center 1) or RMS norm (center 0) from sums that are exact for int8, in double for float32. */
static inline void layer_norm(
    const rows_t *rows, const elem_t *input, const float *gamma, const float *beta, elem_t *output, int32_t center,
    bool per_inner, double epsilon, double variance_scale, float unit, float scale)
{
    const full_t n = rows->length;
    for (int32_t o = 0; o < rows->outer; o++) {
        for (int32_t i = 0; i < rows->inner; i++) {
            const elem_t *x = input + (ptrdiff_t)o * rows->length * rows->inner + i;
            elem_t *y = output + (ptrdiff_t)o * rows->length * rows->inner + i;
            full_t sum = 0;
            full_t squares = 0;
            for (int32_t l = 0; l < rows->length; l++) {
                const full_t value = x[(ptrdiff_t)l * rows->inner];
                sum += value;
                squares += value * value;
            }
            const full_t variance = n * squares - center * sum * sum;
            const double spread = (double)variance * variance_scale;
            const float gain = (float)(1.0 / sqrt(spread + epsilon)) * unit;
            for (int32_t l = 0; l < rows->length; l++) {
                const ptrdiff_t at = (ptrdiff_t)l * rows->inner;
                const int32_t parameter = per_inner ? i : l;
                const float normal = (float)(n * (full_t)x[at] - center * sum) * gain;
                const float scaled = normal * gamma[parameter];
                const float shifted = scaled + beta[parameter];
                y[at] = to_elem(shifted * scale);
            }
        }
    }
}

typedef enum { REDUCE_SUM, REDUCE_MAX, REDUCE_MIN } reduce_t;

static inline void reduce(const rows_t *rows, const elem_t *input, elem_t *output, reduce_t function, float scale)
{
    for (int32_t o = 0; o < rows->outer; o++) {
        for (int32_t i = 0; i < rows->inner; i++) {
            const elem_t *x = input + (ptrdiff_t)o * rows->length * rows->inner + i;
            acc_t value = function == REDUCE_SUM ? 0 : x[0];
            for (int32_t l = 0; l < rows->length; l++) {
                const acc_t element = x[(ptrdiff_t)l * rows->inner];
                if (function == REDUCE_SUM) {
                    value += element;
                } else {
                    value = function == REDUCE_MAX ? MAX(value, element) : MIN(value, element);
                }
            }
            output[(ptrdiff_t)o * rows->inner + i] = to_elem((float)value * scale);
        }
    }
}

/* Index of the extremum; of equals the first, or the last. */
static inline void arg_max(const rows_t *rows, const elem_t *input, int32_t *output, bool smallest, bool select_last)
{
    for (int32_t o = 0; o < rows->outer; o++) {
        for (int32_t i = 0; i < rows->inner; i++) {
            const elem_t *x = input + (ptrdiff_t)o * rows->length * rows->inner + i;
            int32_t best = 0;
            for (int32_t l = 1; l < rows->length; l++) {
                const acc_t element = x[(ptrdiff_t)l * rows->inner];
                const acc_t champion = x[(ptrdiff_t)best * rows->inner];
                const bool better = smallest ? element < champion : element > champion;
                if (better || (select_last && element == champion)) {
                    best = l;
                }
            }
            output[(ptrdiff_t)o * rows->inner + i] = best;
        }
    }
}

/* out[o, j, i] = x[o, indices[j], i], elements of `size` bytes. */
static inline void gather(
    const rows_t *rows, const void *input, const int32_t *indices, int32_t count, void *output, size_t size)
{
    const size_t run = (size_t)rows->inner * size;
    for (int32_t o = 0; o < rows->outer; o++) {
        const int8_t *from = (const int8_t *)input + (size_t)o * (size_t)rows->length * run;
        int8_t *to = (int8_t *)output + (size_t)o * (size_t)count * run;
        for (int32_t j = 0; j < count; j++) {
            memcpy(to + (size_t)j * run, from + (size_t)indices[j] * run, run);
        }
    }
}

#endif
