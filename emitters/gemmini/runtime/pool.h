/* Host operators on images: pooling and resizing. */
#ifndef FADIFF_POOL_H
#define FADIFF_POOL_H

#include "packed.h"
#include "vector.h"

/* A pooling window over images N H W C. */
typedef struct {
    int32_t images, height, width, channels;
    int32_t out_height, out_width;
    int32_t kernel[2], stride[2], dilation[2];
    int32_t pads[4]; /* top, left, bottom, right */
} window_t;

/* Taps first to end - 1 of one axis. */
typedef struct {
    int32_t first, end;
} taps_t;

/* Taps that lie in [low, high), tap 0 at `start`. */
static inline taps_t taps_inside(int32_t start, int32_t kernel, int32_t dilation, int32_t low, int32_t high)
{
    taps_t taps = {0, kernel};
    if (start >= low && start + (kernel - 1) * dilation < high) {
        return taps;
    }
    while (taps.first < kernel && start + taps.first * dilation < low) {
        taps.first++;
    }
    while (taps.end > taps.first && start + (taps.end - 1) * dilation >= high) {
        taps.end--;
    }
    return taps;
}

/* Pixels that are folded into one: `lines` times `pixels` of them, at these distances in elements. */
typedef struct {
    const elem_t *first;
    int32_t lines, pixels;
    ptrdiff_t line, pixel;
} patch_t;

/* The part of a window inside of the image, for output pixel (p, q). */
static inline patch_t patch_of(const window_t *w, const elem_t *image, int32_t p, int32_t q)
{
    const int32_t y = p * w->stride[0] - w->pads[0];
    const int32_t x = q * w->stride[1] - w->pads[1];
    const taps_t r = taps_inside(y, w->kernel[0], w->dilation[0], 0, w->height);
    const taps_t s = taps_inside(x, w->kernel[1], w->dilation[1], 0, w->width);
    const ptrdiff_t line = (ptrdiff_t)w->width * w->channels;
    const ptrdiff_t top = y + r.first * w->dilation[0];
    const ptrdiff_t left = x + s.first * w->dilation[1];
    return (patch_t){
        .first = r.end > r.first && s.end > s.first ? image + top * line + left * w->channels : image,
        .lines = r.end - r.first,
        .pixels = s.end - s.first,
        .line = line * w->dilation[0],
        .pixel = (ptrdiff_t)w->channels * w->dilation[1],
    };
}

/* Folds `width` (1 or 4) neighbouring channels of a patch into their largest values, or sums. */
ALWAYS_INLINE void fold(const patch_t *patch, ptrdiff_t channel, bool largest, int32_t width, wide_t folded[4])
{
    const elem_t *line = patch->first + channel;
    for (int32_t r = 0; r < patch->lines; r++) {
        const elem_t *x = line;
        for (int32_t s = 0; s < patch->pixels; s++) {
            folded[0] = largest ? MAX(folded[0], x[0]) : folded[0] + x[0];
            if (width == 4) {
                folded[1] = largest ? MAX(folded[1], x[1]) : folded[1] + x[1];
                folded[2] = largest ? MAX(folded[2], x[2]) : folded[2] + x[2];
                folded[3] = largest ? MAX(folded[3], x[3]) : folded[3] + x[3];
            }
            x += patch->pixel;
        }
        line += patch->line;
    }
}

#ifndef ELEM_T_IS_FLOAT
/* The statement for every pixel of a patch, x where it begins. */
#define EACH_PIXEL(x, patch, statement)                                          \
    do {                                                                         \
        const elem_t *line = (patch)->first;                                     \
        for (int32_t r = 0; r < (patch)->lines; r++, line += (patch)->line) {    \
            const elem_t *x = line;                                              \
            for (int32_t s = 0; s < (patch)->pixels; s++, x += (patch)->pixel) { \
                statement;                                                       \
            }                                                                    \
        }                                                                        \
    } while (0)

/* The largest values of 8 * `words` channels, 1 or 2: a loop's own instructions cost as much as half a word. */
ALWAYS_INLINE void largest_packed(const patch_t *patch, ptrdiff_t channel, elem_t *output, int32_t words)
{
    packed_t first = LANES(0x80);
    packed_t second = LANES(0x80);
    EACH_PIXEL(
        x, patch, first = larger_packed(load_packed(x + channel), first);
        second = words == 2 ? larger_packed(load_packed(x + channel + 8), second) : second);
    store_packed(output, first);
    if (words == 2) {
        store_packed(output + 8, second);
    }
}

/* float(sum) * factor of eight channels, as elements. */
ALWAYS_INLINE void mean_packed(const patch_t *patch, ptrdiff_t channel, elem_t *output, float factor)
{
    HIDE(output);
    packed_sums_t sums = {0, 0};
    EACH_PIXEL(x, patch, add_packed(&sums, load_packed(x + channel)));
    const int32_t taps = patch->lines * patch->pixels;
    MAP_ROUNDED(lane, 8, output[lane], (float)sum_of_lane(&sums, lane, taps) * factor);
}

#ifdef FADIFF_VECTOR
ALWAYS_INLINE void
vector_pool(const patch_t *patch, int32_t channels, elem_t *output, bool largest, float factor)
{
    EACH_VECTOR(
        c, vl, channels, if (largest) {
            vint8m2_t value = __riscv_vmv_v_x_i8m2(-128, vl);
            EACH_PIXEL(x, patch, value = __riscv_vmax_vv_i8m2(__riscv_vle8_v_i8m2(x + c, vl), value, vl));
            __riscv_vse8_v_i8m2(output + c, value, vl);
        } else {
            vint16m4_t sum = __riscv_vmv_v_x_i16m4(0, vl);
            EACH_PIXEL(x, patch, sum = __riscv_vwadd_wv_i16m4(sum, __riscv_vle8_v_i8m2(x + c, vl), vl));
            vector_store(output + c, __riscv_vfmul_vf_f32m8(vector_float(sum, vl), factor, vl), vl);
        })
}
#endif
#endif

/* One output pixel: largest values, or float(sum) * factor as elements. */
ALWAYS_INLINE void pool_pixel(const patch_t *patch, int32_t channels, elem_t *output, bool largest, float factor)
{
    int32_t c = 0;
#ifdef FADIFF_VECTOR
    if (largest || patch->lines * patch->pixels <= MOST_SUMMED) {
        vector_pool(patch, channels, output, largest, factor);
        return;
    }
#endif
#ifndef ELEM_T_IS_FLOAT
    if (is_packed(patch->first, channels) && is_packed(output, 0) && patch->lines * patch->pixels <= MOST_SUMMED) {
        for (; largest && c < channels - 8; c += 16) {
            largest_packed(patch, c, output + c, 2);
        }
        for (; c < channels; c += 8) {
            if (largest) {
                largest_packed(patch, c, output + c, 1);
            } else {
                mean_packed(patch, c, output + c, factor);
            }
        }
    }
#endif
    const wide_t start = largest ? elem_t_min : 0;
    for (; c < channels - 3; c += 4) {
        wide_t value[4] = {start, start, start, start};
        fold(patch, c, largest, 4, value);
        output[c] = largest ? (elem_t)value[0] : to_elem((float)value[0] * factor);
        output[c + 1] = largest ? (elem_t)value[1] : to_elem((float)value[1] * factor);
        output[c + 2] = largest ? (elem_t)value[2] : to_elem((float)value[2] * factor);
        output[c + 3] = largest ? (elem_t)value[3] : to_elem((float)value[3] * factor);
    }
    for (; c < channels; c++) {
        wide_t value[4] = {start};
        fold(patch, c, largest, 1, value);
        output[c] = largest ? (elem_t)value[0] : to_elem((float)value[0] * factor);
    }
}

/* Largest value of each window; positions outside of the image do not take part. */
static inline void max_pool(const window_t *w, const elem_t *input, elem_t *output)
{
    for (int32_t n = 0; n < w->images; n++) {
        for (int32_t p = 0; p < w->out_height; p++) {
            for (int32_t q = 0; q < w->out_width; q++) {
                const patch_t patch = patch_of(w, input, p, q);
                pool_pixel(&patch, w->channels, output, true, 0.0f);
                output += w->channels;
            }
        }
        input += (ptrdiff_t)w->height * w->width * w->channels;
    }
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
            const int32_t y = p * w->stride[0] - w->pads[0];
            const taps_t r = taps_inside(y, w->kernel[0], w->dilation[0], low[0], high[0]);
            for (int32_t q = 0; q < w->out_width; q++) {
                const int32_t x = q * w->stride[1] - w->pads[1];
                const taps_t s = taps_inside(x, w->kernel[1], w->dilation[1], low[1], high[1]);
                const int32_t count = (r.end - r.first) * (s.end - s.first);
                const patch_t patch = patch_of(w, input, p, q);
                pool_pixel(&patch, w->channels, output, false, ratio / (float)(count > 0 ? count : 1));
                output += w->channels;
            }
        }
        input += (ptrdiff_t)w->height * w->width * w->channels;
    }
}

/* Two neighbours, each with a weight. */
ALWAYS_INLINE float between(float a, float a_weight, float b, float b_weight)
{
    const float left = a * a_weight;
    const float right = b * b_weight;
    return left + right;
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
            const elem_t *upper = input + rows[2 * p] * line;
            const elem_t *lower = input + rows[2 * p + 1] * line;
            const float u = row_weights[2 * p];
            const float v = row_weights[2 * p + 1];
            for (int32_t q = 0; q < out_size[1]; q++) {
                const ptrdiff_t left = columns[2 * q] * channels;
                const ptrdiff_t right = columns[2 * q + 1] * channels;
                const float a = column_weights[2 * q];
                const float b = column_weights[2 * q + 1];
                const elem_t *x[4] = {upper + left, upper + right, lower + left, lower + right};
                HIDE(output);
                MAP_ROUNDED(c, channels, output[c],
                    between(
                        between((float)x[0][c], a, (float)x[1][c], b), u,
                        between((float)x[2][c], a, (float)x[3][c], b), v)
                        * scale);
                output += channels;
            }
        }
        input += size[1] * line;
    }
}

#endif
