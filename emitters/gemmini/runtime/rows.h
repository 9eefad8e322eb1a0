/* Host operators along one axis: softmax, normalisation, gathering.  Where elements of a row are next to
 * each other (inner = 1), `step`, the distance from one to the next, is a constant. */
#ifndef FADIFF_ROWS_H
#define FADIFF_ROWS_H

#include "reduce.h"

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

ALWAYS_INLINE full_t
sum_of_exponentials(const int32_t *of_zero, const elem_t *x, ptrdiff_t step, int32_t count, wide_t largest)
{
    full_t sum = 0;
#ifdef FADIFF_VECTOR
    if (step == 1) {
        return vector_sum_of_entries(of_zero, x, count);
    }
#endif
    EACH(l, count, sum += (full_t)exponential(of_zero, x[l * step], largest));
    return sum;
}

/* Elements of a row that are all masked, or all not. */
typedef struct {
    int32_t first, count;
    bool masked;
} stretch_t;

/* The stretch that begins at `first`; without a mask (NULL) the whole row. */
static inline stretch_t stretch_from(const int8_t *mask, int32_t first, int32_t length)
{
    if (mask == NULL || first == length) {
        return (stretch_t){first, length - first, false};
    }
    const bool masked = mask[first] != 0;
    int32_t end = first + 1;
    while (end < length) {
        const packed_t eight = is_packed(mask + end, 0) && length - end >= 8 ? load_packed(mask + end) : 1;
        if (masked ? no_lane_is_zero(eight) : eight == 0) {
            end += 8;
        } else if ((mask[end] != 0) == masked) {
            end++;
        } else {
            break;
        }
    }
    return (stretch_t){first, end - first, masked};
}

#define EACH_STRETCH(part, mask, length)                                                        \
    for (stretch_t part = stretch_from(mask, 0, length); part.first < (length);                 \
         part = stretch_from(mask, part.first + part.count, length))

/* What a mask leaves of a row: of its first `count` elements all (NULL), or what `mask` says; nothing of the others. */
typedef struct {
    const int8_t *mask;
    int32_t count;
} left_t;

/* `mask` NULL leaves everything.  A mask of the last elements alone, as of later tokens, is told from its first one: it
 * is read once for all rows that it is for. */
static inline left_t left_of(const int8_t *mask, int32_t length)
{
    const stretch_t first = stretch_from(mask, 0, length);
    const int32_t left = first.masked ? 0 : first.count;
    const stretch_t rest = stretch_from(mask, left, length);
    const bool is_last = left == length || rest.count == length - left;
    return is_last ? (left_t){NULL, left} : (left_t){mask, length};
}

/* Zeros, in words where they may be. */
static inline void clear(elem_t *y, int32_t count)
{
#ifndef ELEM_T_IS_FLOAT
    for (; count > 0 && !is_packed(y, 0); count--) {
        *y++ = 0;
    }
    EACH(i, count / 8, store_packed(y, 0); y += 8);
    count %= 8;
#endif
    EACH(i, count, y[i] = 0);
}

/* The largest element that the mask leaves. */
ALWAYS_INLINE wide_t largest_of(const elem_t *x, ptrdiff_t step, int32_t length, const int8_t *mask)
{
    wide_t largest = elem_t_min;
    EACH_STRETCH(part, mask, length) {
        if (!part.masked) {
            const wide_t found = reduced_row(x + part.first * step, step, part.count, REDUCE_MAX);
            largest = MAX(largest, found);
        }
    }
    return largest;
}

/* What `mask` leaves of a row; NULL leaves everything. */
ALWAYS_INLINE void softmax_row(
    const elem_t *x, elem_t *y, ptrdiff_t step, int32_t length, const int32_t *table, const int8_t *mask, float scale)
{
    const wide_t largest = largest_of(x, step, length, mask);
    full_t sum = 0;
    const int32_t *e = entry_of_zero(table, largest);
    EACH_STRETCH(part, mask, length) {
        if (!part.masked) {
            sum += sum_of_exponentials(e, x + part.first * step, step, part.count, largest);
        }
    }
    const float gain = scale / (float)sum;
    EACH_STRETCH(part, mask, length) {
        const elem_t *from = x + part.first * step;
        elem_t *to = y + part.first * step;
        if (part.masked) {
            EACH(l, part.count, to[l * step] = 0);
        } else {
#ifdef FADIFF_VECTOR
            if (step == 1) {
                vector_entries_scaled(e, from, to, part.count, gain);
                continue;
            }
#endif
            MAP_POSITIVE(l, part.count, to[l * step], (float)exponential(e, from[l * step], largest) * gain);
        }
    }
}

/* Nonzero elements of row (o modulo mask_rows) of the mask leave an element out; NULL masks nothing. */
static inline void softmax(
    const rows_t *rows, const elem_t *input, const int32_t *exponentials, const int8_t *mask, int32_t mask_rows,
    elem_t *output, float scale)
{
    const int32_t length = rows->length;
    const int32_t masks = mask == NULL ? 1 : mask_rows;
    for (int32_t m = 0; m < masks; m++) {
        const left_t left = left_of(mask == NULL ? NULL : mask + (ptrdiff_t)m * length, length);
        for (int32_t o = m; o < rows->outer; o += masks) {
            for (int32_t i = 0; i < rows->inner; i++) {
                const elem_t *x = input + row_start(rows, o, i);
                elem_t *y = output + row_start(rows, o, i);
                HIDE(y);
                if (rows->inner == 1) {
                    softmax_row(x, y, 1, left.count, exponentials, left.mask, scale);
                    clear(y + left.count, length - left.count);
                } else { /* (without a mask) */
                    softmax_row(x, y, rows->inner, length, exponentials, NULL, scale);
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
            HIDE(y);
            const wide_t largest = reduced_row(x, step, rows->length, REDUCE_MAX);
            const int32_t *e = entry_of_zero(exponentials, largest);
            const full_t sum = sum_of_exponentials(e, x, step, rows->length, largest);
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

/* Adds a row and its squares up.  Squares of int8 in float, as long as that is exact: Rocket multiplies integers one at
 * a time. */
ALWAYS_INLINE void
moments_of(const elem_t *x, ptrdiff_t step, int32_t length, full_t *sum, full_t *squares)
{
#ifdef FADIFF_VECTOR
    if (step == 1) {
        vector_moments(x, length, sum, squares);
        return;
    }
#endif
#ifdef ELEM_T_IS_FLOAT
    EACH(l, length, *sum += (full_t)x[l * step]; *squares += (full_t)x[l * step] * (full_t)x[l * step]);
#else
    enum { EXACT = (1 << 24) / (128 * 128) };
    for (int32_t first = 0; first < length; first += EXACT, x += EXACT * step) {
        float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        EACH(l, MIN(length - first, EXACT), const elem_t value = x[l * step]; *sum += value;
             part[l % 4] = multiply_add(part[l % 4], (float)value, (float)value));
        *squares += (full_t)(part[0] + part[1] + part[2] + part[3]);
    }
#endif
}

/* (distance * factor + shift) * gamma + beta, each step rounded; without `shift` where nothing is centred. */
ALWAYS_INLINE float
normalised(full_t distance, bool center, normal_t factor, normal_t shift, float gamma, float beta)
{
    const normal_t product = (normal_t)distance * factor;
    const float normal = (float)(center ? product + shift : product);
    const float scaled = normal * gamma;
    return scaled + beta;
}

ALWAYS_INLINE void layer_norm_row(
    const elem_t *x, elem_t *y, ptrdiff_t step, int32_t length, const float *gamma, const float *beta,
    ptrdiff_t parameter_step, bool center, double epsilon, double variance_scale, double unit)
{
    full_t sum = 0;
    full_t squares = 0;
    moments_of(x, step, length, &sum, &squares);
    const full_t total = center ? sum : 0;
    const full_t variance = length * squares - total * total;
    const double spread = (double)variance * variance_scale;
    const double gain = unit / sqrt(spread + epsilon);
    const full_t middle = total / length; /* the mean, for int8 the whole part: no digits are lost in the difference */
    const full_t rest = total - length * middle;
    const normal_t factor = (normal_t)(gain * length);
    const normal_t shift = (normal_t)(gain * (double)-rest);
#ifdef FADIFF_VECTOR
    if (step == 1 && parameter_step == 1) {
        vector_normalise(x, y, length, center, (int16_t)middle, factor, shift, gamma, beta);
        return;
    }
#endif
    MAP_ROUNDED(l, length, y[l * step],
        normalised(
            (full_t)x[l * step] - middle, center, factor, shift, gamma[l * parameter_step],
            beta[l * parameter_step]));
}

/* From sums that are exact for int8, in double for float32; for RMS norm nothing is centred. */
ALWAYS_INLINE void norm(
    const rows_t *rows, const elem_t *input, const float *gamma, const float *beta, elem_t *output, bool center,
    bool per_inner, double epsilon, double variance_scale, double unit)
{
    const int32_t length = rows->length;
    for (int32_t o = 0; o < rows->outer; o++) {
        for (int32_t i = 0; i < rows->inner; i++) {
            const elem_t *x = input + row_start(rows, o, i);
            elem_t *y = output + row_start(rows, o, i);
            HIDE(y);
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

static inline void layer_norm(
    const rows_t *rows, const elem_t *input, const float *gamma, const float *beta, elem_t *output, bool per_inner,
    double epsilon, double variance_scale, double unit)
{
    norm(rows, input, gamma, beta, output, true, per_inner, epsilon, variance_scale, unit);
}

static inline void rms_norm(
    const rows_t *rows, const elem_t *input, const float *gamma, const float *beta, elem_t *output, bool per_inner,
    double epsilon, double variance_scale, double unit)
{
    norm(rows, input, gamma, beta, output, false, per_inner, epsilon, variance_scale, unit);
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
