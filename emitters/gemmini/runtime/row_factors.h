/* What the core computes of a row where Gemmini does the rest: a factor, with which the row's results are stored. */
#ifndef FADIFF_ROW_FACTORS_H
#define FADIFF_ROW_FACTORS_H

#include "rows.h"

#ifndef ELEM_T_IS_FLOAT

/* What a table's entry stores, its lowest byte. */
ALWAYS_INLINE elem_t counted(int32_t entry, wide_t *sum)
{
    *sum += entry;
    return (elem_t)entry;
}

/* exp(x - largest) of `table` for every element of a row, 0 for what the mask leaves out, and their sum. */
ALWAYS_INLINE wide_t exponentials_row(
    const elem_t *x, elem_t *y, int32_t length, const int32_t *table, const int8_t *mask)
{
    const int32_t *of_zero = entry_of_zero(table, largest_of(x, 1, length, mask));
    wide_t sum = 0;
    EACH_STRETCH(part, mask, length) {
        const elem_t *from = x + part.first;
        elem_t *to = y + part.first;
        if (part.masked) {
            EACH(l, part.count, to[l] = 0);
        } else {
#ifdef FADIFF_VECTOR
            sum += vector_store_entries(of_zero, from, to, part.count);
            continue;
#endif
            MAP(l, part.count, elem_t, to[l], counted(of_zero[from[l]], &sum));
        }
    }
    return sum;
}

/* Rows next to each other.  Nonzero elements of row (o modulo mask_rows) of the mask leave an element out.  A reciprocal
 * is stored when the next row is done, while which the core divides.  No part of the run, which would take its
 * registers. */
static __attribute__((noinline, unused)) void exponentials(
    const rows_t *rows, const elem_t *input, const int32_t *table, const int8_t *mask, int32_t mask_rows,
    elem_t *output, float *reciprocals, float one)
{
    const int32_t masks = mask == NULL ? 1 : mask_rows;
    float *place = reciprocals;
    float reciprocal = 0.0f;
    for (int32_t m = 0; m < masks; m++) {
        const left_t left = left_of(mask == NULL ? NULL : mask + (ptrdiff_t)m * rows->length, rows->length);
        for (int32_t o = m; o < rows->outer; o += masks) {
            const elem_t *x = input + row_start(rows, o, 0);
            elem_t *y = output + row_start(rows, o, 0);
            HIDE(y);
            const wide_t sum = exponentials_row(x, y, left.count, table, left.mask);
            *place = reciprocal;
            place = reciprocals + o;
            reciprocal = one / (float)MAX(sum, 1);
            if (left.count < rows->length) { /* else GCC calls it for nothing */
                clear(y + left.count, rows->length - left.count);
            }
        }
    }
    *place = reciprocal;
}

/* The sum of squares of row o: its product with itself.  Rows come in blocks of `length`, each multiplied by all of its
 * block; the last block ends with the last row. */
static inline int32_t squares_of(const rows_t *rows, const int32_t *products, int32_t o)
{
    const int32_t first = MIN(o - o % rows->length, rows->outer - rows->length);
    return products[(ptrdiff_t)o * rows->length + o - first];
}

/* 1 / root(squares * scale + epsilon) of each row. */
static inline void inverse_root(
    const rows_t *rows, const int32_t *products, float *factors, float scale, float epsilon)
{
    for (int32_t o = 0; o < rows->outer; o++) {
        const float mean = (float)squares_of(rows, products, o) * scale;
        const float shifted = mean + epsilon;
        factors[o] = 1.0f / sqrtf(shifted);
    }
}

/* A number from -128 to 127 as the nearest integer and 16ths of what is left. */
ALWAYS_INLINE void split(float value, int8_t *to)
{
    const int32_t whole = nearest(value);
    const float rest = value - (float)whole;
    to[0] = (int8_t)whole;
    to[1] = (int8_t)nearest(rest * 16.0f);
}

/* Of every row of `width` elements mean and deviation, split, in the room behind each block of the output, and
 * 1 / deviation.  The deviation in units of elements is at most 127. */
static inline void moments(
    const rows_t *rows, const int32_t *products, const int32_t *sums, elem_t *output, float *factors, int32_t width,
    int32_t block, int32_t room, float part, float variance_scale, float epsilon, float steps)
{
    for (int32_t o = 0; o < rows->outer; o++) {
        const int64_t total = sums[o];
        const int64_t spread = (int64_t)squares_of(rows, products, o) * width - total * total;
        const float variance = (float)spread * variance_scale;
        const float shifted = variance + epsilon;
        const float root = sqrtf(shifted);
        factors[o] = 1.0f / root;
        int8_t row[4];
        split((float)total * part, row);
        split(smaller(root * steps, 127.0f), row + 2);
        for (int32_t c = 0; c < width; c += block) {
            output += block;
            clear(output, room);
            memcpy(output, row, sizeof row);
            output += room;
        }
    }
}

#endif
#endif
