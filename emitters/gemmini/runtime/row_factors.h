/* What the core computes of a row where Gemmini does the rest: a factor, with which the row's results are stored. */
#ifndef FADIFF_ROW_FACTORS_H
#define FADIFF_ROW_FACTORS_H

#include "rows.h"

#ifndef ELEM_T_IS_FLOAT

ALWAYS_INLINE elem_t counted(elem_t e, wide_t *sum)
{
    *sum += e;
    return e;
}

/* exp(x - largest) of `table` for every element of a row, 0 for what `blank` leaves out, and 1 / their sum. */
ALWAYS_INLINE float exponentials_row(
    const elem_t *x, elem_t *y, int32_t length, const int8_t *table, const int8_t *blank)
{
    wide_t largest = elem_t_min;
    wide_t sum = 0;
    if (blank == NULL) {
        EACH(l, length, largest = MAX(largest, x[l]));
        const int8_t *of_zero = table + 255 - (ptrdiff_t)largest;
        MAP(l, length, elem_t, y[l], counted(of_zero[x[l]], &sum));
    } else {
        EACH(l, length, largest = blank[l] == 0 ? MAX(largest, x[l]) : largest);
        const int8_t *of_zero = table + 255 - (ptrdiff_t)largest;
        MAP(l, length, elem_t, y[l], counted(blank[l] == 0 ? of_zero[x[l]] : 0, &sum));
    }
    return 1.0f / (float)MAX(sum, 1);
}

/* Rows next to each other.  Nonzero elements of row (o modulo mask_rows) of the mask leave an element out. */
static inline void exponentials(
    const rows_t *rows, const elem_t *input, const int8_t *table, const int8_t *mask, int32_t mask_rows,
    elem_t *output, float *reciprocals)
{
    for (int32_t o = 0; o < rows->outer; o++) {
        const int8_t *blank = mask == NULL ? NULL : mask + (ptrdiff_t)(o % mask_rows) * rows->length;
        const ptrdiff_t start = row_start(rows, o, 0);
        reciprocals[o] = exponentials_row(input + start, output + start, rows->length, table, blank);
    }
}

/* 1 / root(squares * scale + epsilon) of row o, whose squares are at o modulo the length of a row of products. */
static inline void inverse_root(
    const rows_t *rows, const int32_t *products, float *factors, float scale, float epsilon)
{
    for (int32_t o = 0; o < rows->outer; o++) {
        const float mean = (float)products[row_start(rows, o, 0) + o % rows->length] * scale;
        const float shifted = mean + epsilon;
        factors[o] = 1.0f / sqrtf(shifted);
    }
}

#endif
#endif
