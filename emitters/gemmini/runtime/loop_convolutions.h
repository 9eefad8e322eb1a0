/* Tiles of convolutions on Gemmini's loop unit. */
#ifndef FADIFF_LOOP_CONVOLUTIONS_H
#define FADIFF_LOOP_CONVOLUTIONS_H

#include <stddef.h>

#include "elements.h"
#include "gemmini_system.h"

/* A convolution as Gemmini's hardware loop takes it: images N H W C, weights R S C K, strides as they lie in memory. */
typedef struct {
    int32_t height, width;                            /* of the input image */
    int32_t in_lines, in_pixels, in_stride;           /* lines per image, pixels per line, elements per pixel */
    int32_t out_lines, out_pixels, out_stride;
    ptrdiff_t in_first, out_first;                    /* elements before those of a part in the tile buffer */
    int32_t taps, tap_channels, weight_stride;        /* taps per kernel line, channels per tap, elements per channel */
    int32_t stride, dilation, up, left;
    int32_t pixels_per_row;                           /* of a scratchpad row */
    bool no_bias;
    int32_t activation;
    acc_scale_t scale;
} convolution_t;

/* Windows p, q of the max pool that the store of a tile does; rows and columns of padding count as zero. */
typedef struct {
    int32_t size, stride, up, left;                   /* of the pool */
    int32_t p, p_end, q, q_end;                       /* of the tile */
} windows_t;

/* Any address: the hardware loop then starts its sums at zero. */
#define ZEROS ((const acc_t *)(uintptr_t)DIM)

static inline void begin_convolution(const convolution_t *convolution)
{
    gemmini_extended_config_ex(WEIGHT_STATIONARY, NO_ACTIVATION, 0, convolution->stride, false, false);
    const size_t stride = (size_t)convolution->out_stride * sizeof(elem_t); /* of its own: GCC warns of the cast in it */
    gemmini_extended_config_st(stride, convolution->activation, convolution->scale);
}

/* One tile, loaded, computed and stored by one hardware loop while the loop before it still computes: outputs n, p, q
 * and taps r, s from the given ones on.  Operands start at the tile's channels; an input or weights of NULL are in the
 * scratchpad (in its half 1 or 2, 0: the other one every time), a bias of NULL adds to the sums in the accumulator, an
 * output of NULL leaves them there.  With windows the outputs are stored pooled. */
static inline void convolution_tile(
    const convolution_t *c, const windows_t *windows, const elem_t *input, const elem_t *weights, const acc_t *bias,
    elem_t *output, int32_t n, int32_t n_count, int32_t p, int32_t p_count, int32_t q, int32_t q_count, int32_t outputs,
    int32_t r, int32_t r_count, int32_t s, int32_t s_count, int32_t inputs, int32_t input_half, int32_t weight_half)
{
    const windows_t pixels = {1, 1, 0, 0, p, p + p_count, q, q + q_count};
    const windows_t *const to = windows == NULL ? &pixels : windows;
    /* The loop takes stride - 1 more lines and columns than the windows touch: zeros. */
    const int32_t extra = c->stride - 1;
    const int32_t lines = p_count * c->stride + (r_count - 1) * c->dilation;
    const int32_t columns = q_count * c->stride + (s_count - 1) * c->dilation;
    const int32_t y = p * c->stride + r * c->dilation - c->up;
    const int32_t x = q * c->stride + s * c->dilation - c->left;
    const int32_t top = MAX(y, 0), first = MAX(x, 0);
    const int32_t inside = MAX(MIN(y + lines - extra, c->height) - top, 0);
    const int32_t across = MAX(MIN(x + columns - extra, c->width) - first, 0);
    const int32_t upad = inside == 0 ? lines : top - y;
    const int32_t lpad = across == 0 ? columns : first - x;
    if (input != NULL) {
        input += (((ptrdiff_t)n * c->in_lines + top) * c->in_pixels + first) * c->in_stride - c->in_first;
    }
    if (weights != NULL) {
        weights += (ptrdiff_t)(r * c->taps + s) * c->tap_channels * c->weight_stride;
    }
    if (output != NULL) {
        output += (((ptrdiff_t)n * c->out_lines + to->p) * c->out_pixels + to->q) * c->out_stride - c->out_first;
    }
    gemmini_loop_conv_ws(
        0, c->in_lines, c->in_pixels, c->tap_channels, 0, c->out_lines, c->out_pixels, c->out_lines, c->out_pixels,
        c->stride, 0, c->taps, c->dilation, to->size, to->stride, 0, n_count, to->p_end - to->p, to->q_end - to->q,
        outputs, r_count, s_count, inputs, lpad, columns - lpad - across, upad, lines - upad - inside,
        MAX(to->left + q - to->q * to->stride, 0), 0, MAX(to->up + p - to->p * to->stride, 0), 0, p_count, q_count,
        weights, output, bias, input, c->no_bias, windows == NULL, false, false, false, c->activation, false, false,
        false, false, c->pixels_per_row, c->in_stride, c->weight_stride, c->out_stride, false, input_half, weight_half)
}

#endif
