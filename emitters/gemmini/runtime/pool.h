/* Host operators on images: pooling and resizing. */
#ifndef FADIFF_POOL_H
#define FADIFF_POOL_H

#include "elements.h"

/* A pooling window over images N H W C. */
typedef struct {
    int32_t images, height, width, channels;
    int32_t out_height, out_width;
    int32_t kernel[2], stride[2], dilation[2];
    int32_t pads[4]; /* top, left, bottom, right */
} window_t;

/* Largest value of each window; positions outside of the image do not take part. */
static inline void max_pool(const window_t *w, const elem_t *input, elem_t *output)
{
    for (int32_t n = 0; n < w->images; n++) {
        for (int32_t p = 0; p < w->out_height; p++) {
            for (int32_t q = 0; q < w->out_width; q++) {
                for (int32_t c = 0; c < w->channels; c++) {
                    output[c] = elem_t_min;
                }
                for (int32_t r = 0; r < w->kernel[0]; r++) {
                    const int32_t y = p * w->stride[0] + r * w->dilation[0] - w->pads[0];
                    for (int32_t s = 0; y >= 0 && y < w->height && s < w->kernel[1]; s++) {
                        const int32_t x = q * w->stride[1] + s * w->dilation[1] - w->pads[1];
                        if (x < 0 || x >= w->width) {
                            continue;
                        }
                        const elem_t *pixel = input + ((ptrdiff_t)y * w->width + x) * w->channels;
                        for (int32_t c = 0; c < w->channels; c++) {
                            output[c] = MAX(output[c], pixel[c]);
                        }
                    }
                }
                output += w->channels;
            }
        }
        input += (ptrdiff_t)w->height * w->width * w->channels;
    }
}

/* Taps of one axis that lie in [low, high). */
static inline int32_t taps_inside(int32_t first, int32_t kernel, int32_t dilation, int32_t low, int32_t high)
{
    int32_t count = 0;
    for (int32_t r = 0; r < kernel; r++) {
        const int32_t at = first + r * dilation;
        count += at >= low && at < high;
    }
    return count;
}

/* Mean of each window: float(sum) * (ratio / float(count)), as an element; zero where nothing counts. */
static inline void average_pool(
    const window_t *w, const elem_t *input, elem_t *output, bool count_include_pad, float ratio)
{
    const int32_t low[2] = {count_include_pad ? -w->pads[0] : 0, count_include_pad ? -w->pads[1] : 0};
    const int32_t high[2]
        = {w->height + (count_include_pad ? w->pads[2] : 0), w->width + (count_include_pad ? w->pads[3] : 0)};
    for (int32_t n = 0; n < w->images; n++) {
        for (int32_t p = 0; p < w->out_height; p++) {
            for (int32_t q = 0; q < w->out_width; q++) {
                const int32_t y0 = p * w->stride[0] - w->pads[0];
                const int32_t x0 = q * w->stride[1] - w->pads[1];
                const int32_t count = taps_inside(y0, w->kernel[0], w->dilation[0], low[0], high[0])
                                      * taps_inside(x0, w->kernel[1], w->dilation[1], low[1], high[1]);
                const float factor = ratio / (float)(count > 0 ? count : 1);
                for (int32_t c = 0; c < w->channels; c++) {
                    acc_t sum = 0;
                    for (int32_t r = 0; r < w->kernel[0]; r++) {
                        const int32_t y = y0 + r * w->dilation[0];
                        for (int32_t s = 0; y >= 0 && y < w->height && s < w->kernel[1]; s++) {
                            const int32_t x = x0 + s * w->dilation[1];
                            if (x >= 0 && x < w->width) {
                                sum += input[((ptrdiff_t)y * w->width + x) * w->channels + c];
                            }
                        }
                    }
                    output[c] = to_elem((float)sum * factor);
                }
                output += w->channels;
            }
        }
        input += (ptrdiff_t)w->height * w->width * w->channels;
    }
}

/* Mean over all pixels: float(sum) * scale, as an element. */
static inline void global_average_pool(
    const elem_t *input, elem_t *output, int32_t images, int32_t pixels, int32_t channels, float scale)
{
    for (int32_t n = 0; n < images; n++) {
        for (int32_t c = 0; c < channels; c++) {
            acc_t sum = 0;
            for (int32_t i = 0; i < pixels; i++) {
                sum += input[(ptrdiff_t)i * channels + c];
            }
            output[c] = to_elem((float)sum * scale);
        }
        input += (ptrdiff_t)pixels * channels;
        output += channels;
    }
}

/* Linear interpolation: two rows and two columns, each with a weight, per output pixel. */
static inline void resize_linear(
    const elem_t *input, const int32_t *rows, const float *row_weights, const int32_t *columns,
    const float *column_weights, elem_t *output, const int32_t size[4], const int32_t out_size[2], float scale)
{
    const ptrdiff_t channels = size[3];
    const ptrdiff_t line = size[2] * channels;
    for (int32_t n = 0; n < size[0]; n++) {
        for (int32_t p = 0; p < out_size[0]; p++) {
            for (int32_t q = 0; q < out_size[1]; q++) {
                const elem_t *left = input + columns[2 * q] * channels;
                const elem_t *right = input + columns[2 * q + 1] * channels;
                for (ptrdiff_t c = 0; c < channels; c++) {
                    float value[2];
                    for (int32_t i = 0; i < 2; i++) {
                        const ptrdiff_t at = rows[2 * p + i] * line + c;
                        const float a = (float)left[at] * column_weights[2 * q];
                        const float b = (float)right[at] * column_weights[2 * q + 1];
                        const float sum = a + b;
                        value[i] = sum * row_weights[2 * p + i];
                    }
                    const float sum = value[0] + value[1];
                    output[c] = to_elem(sum * scale);
                }
                output += channels;
            }
        }
        input += size[1] * line;
    }
}

#endif
