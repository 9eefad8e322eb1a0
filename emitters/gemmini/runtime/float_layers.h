/* Layers that stay in float32 beside an int8 array: docs/host-ops.md of FADiff has their meaning.
 * Products and sums round one by one, in the order that is written here: the reference is compared bit for bit. */
#ifndef FADIFF_FLOAT_LAYERS_H
#define FADIFF_FLOAT_LAYERS_H

#include <float.h>

#include "elements.h"
#include "pool.h"

#ifndef ELEM_T_IS_FLOAT

static inline void to_float(const int8_t *input, float *output, int32_t count, float scale)
{
    MAP(i, count, float, output[i], (float)input[i] * scale);
}

static inline void to_int8(const float *input, int8_t *output, int32_t count, float scale)
{
    MAP(i, count, int8_t, output[i], to_elem(input[i] / scale));
}

static inline float bounded(float x, bool relu, float ceiling)
{
    return smaller(relu ? larger(x, 0.0f) : x, ceiling);
}

/* 128 high + low, in steps of the largest magnitude / 16256: `count` high parts, then the low ones. */
static inline void planes(const float *input, int8_t *output, float *step, int32_t count)
{
    float largest = 0.0f;
    EACH(i, count, largest = larger(largest, fabsf(input[i])));
    *step = largest > 1e-30f ? largest / 16256.0f : 1.0f;
    for (int32_t i = 0; i < count; i++) {
        const float steps = rintf(input[i] / *step);
        const float high = floorf((steps + 64.0f) * 0.0078125f);
        output[i] = (int8_t)high;
        output[count + i] = (int8_t)(steps - high * 128.0f);
    }
}

/* Sums of the high parts, then those of the low ones, as numbers: `channels` of each pixel have a scale and a bias. */
static inline void float_sums(
    const int32_t *sums, const float *step, const float *scales, const float *bias, float *output, int32_t count,
    int32_t channels, bool relu, float ceiling)
{
    for (int32_t i = 0; i < count; i += channels) {
        for (int32_t k = 0; k < channels; k++) {
            const float high = (float)sums[i + k] * 128.0f;
            const float sum = high + (float)sums[count + i + k];
            const float scale = *step * scales[k];
            const float value = sum * scale;
            output[i + k] = bounded(bias == NULL ? value : value + bias[k], relu, ceiling);
        }
    }
}

/* out = formula(x). */
static inline void float_formula(const loops_t *loops, const float *input, float *output, float (*formula)(float x))
{
    run_t run = first_run(loops);
    do {
        for (int32_t i = 0; i < run.count; i++) {
            output[run.at[1] + i * run.step[1]] = formula(input[run.at[0] + i * run.step[0]]);
        }
    } while (next_run(loops, &run));
}

typedef enum { FLOAT_ADD, FLOAT_SUB, FLOAT_MUL, FLOAT_DIV, FLOAT_MAX, FLOAT_MIN, FLOAT_PRELU } float_binary_t;

ALWAYS_INLINE float float_binary_value(float_binary_t function, float a, float b)
{
    switch (function) {
    case FLOAT_ADD:
        return a + b;
    case FLOAT_SUB:
        return a - b;
    case FLOAT_MUL:
        return a * b;
    case FLOAT_DIV:
        return a / b;
    case FLOAT_MAX:
        return larger(a, b);
    case FLOAT_MIN:
        return smaller(a, b);
    case FLOAT_PRELU:
        break;
    }
    return a >= 0.0f ? a : a * b;
}

/* Its function is constant: each call has loops of its own. */
ALWAYS_INLINE void float_binary(
    const loops_t *loops, const float *a, const float *b, float *output, float_binary_t function, bool relu,
    float ceiling)
{
    run_t run = first_run(loops);
    do {
        const float *x = a + run.at[0];
        const float *y = b + run.at[1];
        float *z = output + run.at[2];
        MAP_RUN(
            &run, i, float, z[i * step[2]],
            bounded(float_binary_value(function, x[i * step[0]], y[i * step[1]]), relu, ceiling));
    } while (next_run(loops, &run));
}

/* act(x * multiplier + addend). */
static inline void float_scale_shift(
    const loops_t *loops, const float *input, const float *multiplier, const float *addend, float *output, bool relu)
{
    run_t run = first_run(loops);
    do {
        const float *x = input + run.at[0];
        const float *m = multiplier + run.at[1];
        const float *b = addend + run.at[2];
        float *y = output + run.at[3];
        MAP_RUN(
            &run, i, float, y[i * step[3]],
            bounded(x[i * step[0]] * m[i * step[1]] + b[i * step[2]], relu, INFINITY));
    } while (next_run(loops, &run));
}

/* Largest element of each window; the lowest number where it holds none. */
static inline void float_max_pool(const window_t *w, const float *input, float *output)
{
    for (int32_t i = 0; i < w->images * w->out_height * w->out_width; i++) {
        const int32_t q = i % w->out_width;
        const int32_t p = i / w->out_width % w->out_height;
        const float *image = input + (ptrdiff_t)(i / w->out_width / w->out_height) * w->height * w->width * w->channels;
        const int32_t top = p * w->stride[0] - w->pads[0];
        const int32_t left = q * w->stride[1] - w->pads[1];
        const taps_t rows = taps_inside(top, w->kernel[0], w->dilation[0], 0, w->height);
        const taps_t columns = taps_inside(left, w->kernel[1], w->dilation[1], 0, w->width);
        for (int32_t c = 0; c < w->channels; c++) {
            float largest = -FLT_MAX;
            for (int32_t r = rows.first; r < rows.end; r++) {
                for (int32_t s = columns.first; s < columns.end; s++) {
                    const ptrdiff_t y = top + r * w->dilation[0];
                    const ptrdiff_t x = left + s * w->dilation[1];
                    largest = larger(largest, image[(y * w->width + x) * w->channels + c]);
                }
            }
            output[(ptrdiff_t)i * w->channels + c] = largest;
        }
    }
}

/* A convolution or matrix product; strides are in elements. */
typedef struct {
    int32_t groups, images, channels, depth, rows, columns, kernel_rows, kernel_columns;
    int32_t height, width;
    int32_t stride[2], dilation[2], pads[2]; /* down, across */
    int32_t input[5];                        /* G N H W C */
    int32_t weight[5];                       /* G R S C K */
    int32_t output[5];                       /* G N P Q K */
    bool relu;
    float ceiling;
} float_product_t;

enum { FLOAT_SUMS = 4 }; /* Sums that grow side by side: one addition need not wait for the one before. */

/* Adds the products of one tap, channel after channel, to `count` sums. */
static inline void float_tap(
    const float_product_t *p, const float *input, const float *weight, float sums[FLOAT_SUMS], int32_t count)
{
    const ptrdiff_t next = p->weight[4];
    if (count == FLOAT_SUMS) {
        float a = sums[0], b = sums[1], c = sums[2], d = sums[3];
        for (int32_t i = 0; i < p->depth; i++) {
            const float x = *input;
            a += x * weight[0];
            b += x * weight[next];
            c += x * weight[2 * next];
            d += x * weight[3 * next];
            input += p->input[4];
            weight += p->weight[3];
        }
        sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d;
        return;
    }
    for (int32_t i = 0; i < p->depth; i++) {
        for (int32_t k = 0; k < count; k++) {
            sums[k] += *input * weight[k * next];
        }
        input += p->input[4];
        weight += p->weight[3];
    }
}

/* `count` channels of one pixel, whose window begins at (top, left). */
static inline void float_pixel(
    const float_product_t *p, const float *input, const float *weight, float sums[FLOAT_SUMS], int32_t count, int32_t top,
    int32_t left)
{
    for (int32_t r = 0; r < p->kernel_rows; r++) {
        const int32_t y = top + r * p->dilation[0];
        for (int32_t s = 0; s < p->kernel_columns && y >= 0 && y < p->height; s++) {
            const int32_t x = left + s * p->dilation[1];
            if (x >= 0 && x < p->width) {
                const float *pixel = input + (ptrdiff_t)y * p->input[2] + (ptrdiff_t)x * p->input[3];
                const float *tap = weight + (ptrdiff_t)r * p->weight[1] + (ptrdiff_t)s * p->weight[2];
                float_tap(p, pixel, tap, sums, count);
            }
        }
    }
}

/* Every sum begins with its bias (NULL: zero) and takes kernel rows, columns and channels in this order. */
static inline void float_product(
    const float_product_t *p, const float *input, const float *weight, const float *bias, float *output)
{
    for (int32_t g = 0; g < p->groups; g++) {
        for (int32_t n = 0; n < p->images; n++) {
            const float *image = input + (ptrdiff_t)g * p->input[0] + (ptrdiff_t)n * p->input[1];
            for (int32_t row = 0; row < p->rows; row++) {
                for (int32_t column = 0; column < p->columns; column++) {
                    float *pixel = output + (ptrdiff_t)g * p->output[0] + (ptrdiff_t)n * p->output[1]
                        + (ptrdiff_t)row * p->output[2] + (ptrdiff_t)column * p->output[3];
                    for (int32_t first = 0; first < p->channels; first += FLOAT_SUMS) {
                        const int32_t count = MIN(FLOAT_SUMS, p->channels - first);
                        float sums[FLOAT_SUMS] = {0.0f};
                        for (int32_t k = 0; bias != NULL && k < count; k++) {
                            sums[k] = bias[(ptrdiff_t)g * p->channels + first + k];
                        }
                        const float *kernel = weight + (ptrdiff_t)g * p->weight[0] + (ptrdiff_t)first * p->weight[4];
                        const int32_t top = row * p->stride[0] - p->pads[0];
                        const int32_t left = column * p->stride[1] - p->pads[1];
                        float_pixel(p, image, kernel, sums, count, top, left);
                        for (int32_t k = 0; k < count; k++) {
                            pixel[(ptrdiff_t)(first + k) * p->output[4]] = bounded(sums[k], p->relu, p->ceiling);
                        }
                    }
                }
            }
        }
    }
}

#endif
#endif
