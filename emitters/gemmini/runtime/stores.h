/* Stores of results, and moves of partial sums, instruction by instruction. */
#ifndef FADIFF_STORES_H
#define FADIFF_STORES_H

#include <stddef.h>

#include "accumulator.h"
#include "pace.h"
#include "region.h"

/* A tile's destination N P Q K.  Strides are in elements of `size` bytes, channels are contiguous. */
typedef struct {
    uintptr_t data;
    ptrdiff_t first; /* elements before those at `data`, as in image_t */
    ptrdiff_t stride_n, stride_p, stride_q;
    int32_t size;
    int32_t block; /* channels in an accumulator row */
    int32_t activation;
    acc_scale_t scale;
} output_t;

/* The moves of a tile: lines of pixels to or from consecutive accumulator rows, in the order that products finish
 * them.  Unfinished sums travel as acc_t. */
typedef struct {
    output_t output;
    bool load;
    int32_t row, left; /* of the next move; moves left */
    int32_t n, n_count, p, p_count, q, q_count, k, k_count;
    ptrdiff_t pitch;
    int32_t i, j, l, m; /* where it starts: image n + i, line p + j, pixel q + l, channel k + m */
    pace_t pace;
} tile_t;

static inline tile_t tile_of(
    const output_t *output, bool load, int32_t row, int32_t n, int32_t n_count, int32_t p, int32_t p_count, int32_t q,
    int32_t q_count, int32_t k, int32_t k_count, int32_t products)
{
    const ptrdiff_t pitch
        = join_lines(output->stride_n, output->stride_p, output->stride_q, &n_count, &p_count, &q_count);
    const int32_t blocks = (k_count + output->block - 1) / output->block;
    const int32_t moves = blocks * n_count * p_count * ((q_count + DIM - 1) / DIM);
    return (tile_t){
        .output = *output, .load = load, .row = row, .pitch = pitch, .left = moves,
        .n = n, .n_count = n_count, .p = p, .p_count = p_count, .q = q, .q_count = q_count, .k = k, .k_count = k_count,
        .pace = pace_of(moves, products),
    };
}

/* Issues up to `count` moves. */
static inline void move_tile(tile_t *tile, int32_t count)
{
    const output_t *output = &tile->output;
    const uint32_t stride = (uint32_t)(tile->pitch * output->size);
    count = MIN(count, tile->left);
    if (count == 0) {
        return;
    }
    if (tile->load) {
        gemmini_extended4_config_ld(stride, MVIN_SCALE_IDENTITY, false, DIM, 2);
    } else {
        gemmini_extended_config_st(stride, output->activation, output->scale);
    }
    tile->left -= count;
    for (; count > 0; count--) {
        const ptrdiff_t pixel = (tile->n + tile->i) * output->stride_n + (tile->p + tile->j) * output->stride_p
                                + tile->q * output->stride_q + tile->l * tile->pitch - output->first;
        const uintptr_t place = output->data + (uintptr_t)(pixel + tile->k + tile->m) * (uintptr_t)output->size;
        const int32_t columns = MIN(output->block, tile->k_count - tile->m);
        const int32_t rows = MIN(DIM, tile->q_count - tile->l);
        if (tile->load) {
            gemmini_extended_mvin3(place, OVERWRITE | (uint32_t)tile->row, columns, rows);
        } else if (output->size == (int32_t)sizeof(elem_t)) {
            gemmini_extended_mvout(place, OVERWRITE | (uint32_t)tile->row, columns, rows);
        } else {
            gemmini_extended_mvout(place, FULL_WIDTH | (uint32_t)tile->row, columns, rows);
        }
        tile->row += rows;
        tile->l += rows;
        if (tile->l == tile->q_count) {
            tile->l = 0;
            tile->j++;
        }
        if (tile->j == tile->p_count) {
            tile->j = 0;
            tile->i++;
        }
        if (tile->i == tile->n_count) {
            tile->i = 0;
            tile->m += output->block;
        }
    }
}

/* Issues all moves of a tile. */
static inline void move_outputs(
    const output_t *output, bool load, int32_t row, int32_t n, int32_t n_count, int32_t p, int32_t p_count, int32_t q,
    int32_t q_count, int32_t k, int32_t k_count)
{
    tile_t tile = tile_of(output, load, row, n, n_count, p, p_count, q, q_count, k, k_count, 1);
    move_tile(&tile, INT32_MAX);
}

/* A factor for each pixel.  Strides: floats from one image, line and pixel to the next. */
typedef struct {
    const float *data;
    ptrdiff_t stride_n, stride_p, stride_q;
} row_scales_t;

/* Stores a tile of which each pixel's results have a scale of their own, that of `output` times its factor. */
static inline void store_scaled_rows(
    const output_t *output, const row_scales_t *scales, ptrdiff_t first, int32_t row, int32_t n, int32_t n_count,
    int32_t p, int32_t p_count, int32_t q, int32_t q_count, int32_t k, int32_t k_count)
{
    const int32_t pixels = n_count * p_count * q_count;
    for (int32_t i = n; i < n + n_count; i++) {
        for (int32_t j = p; j < p + p_count; j++) {
            for (int32_t l = q; l < q + q_count; l++) {
                const float factor
                    = scales->data[first + i * scales->stride_n + j * scales->stride_p + l * scales->stride_q];
                const ptrdiff_t pixel = i * output->stride_n + j * output->stride_p + l * output->stride_q;
                const uintptr_t place = output->data + (uintptr_t)(pixel + k) * sizeof(elem_t);
                const acc_scale_t scale = output->scale * factor;
                gemmini_extended_config_st(0, output->activation, scale);
                for (int32_t m = 0, block = row; m < k_count; m += output->block, block += pixels) {
                    const int32_t columns = MIN(output->block, k_count - m);
                    gemmini_extended_mvout(place + (uintptr_t)m * sizeof(elem_t), OVERWRITE | (uint32_t)block, columns, 1);
                }
                row++;
            }
        }
    }
}

/* Stores a tile of which each channel's results have a scale of their own, that of `output` times its factor.  A store
 * takes the first channels of a block: the last channel's takes all, the next but one less, and so on, so that each
 * store leaves the last of its channels behind it. */
static inline void store_scaled_channels(
    const output_t *output, const float *factors, int32_t row, int32_t n, int32_t n_count, int32_t p, int32_t p_count,
    int32_t q, int32_t q_count, int32_t k, int32_t k_count)
{
    output_t scaled = *output;
    for (int32_t m = 0; m < k_count; m += output->block, row += n_count * p_count * q_count) {
        for (int32_t count = MIN(output->block, k_count - m); count > 0; count--) {
            scaled.scale = output->scale * factors[m + count - 1];
            move_outputs(&scaled, false, row, n, n_count, p, p_count, q, q_count, k + m, count);
        }
    }
}

/* Stores what of a tile lies at or beyond row fresh_p and column fresh_q: earlier group tiles stored the rest. */
static inline void store_fresh(
    const output_t *output, int32_t fresh_p, int32_t fresh_q, int32_t row, int32_t n, int32_t n_count, int32_t p,
    int32_t p_count, int32_t q, int32_t q_count, int32_t k, int32_t k_count)
{
    const int32_t skip = MAX(fresh_q - q, 0);
    for (int32_t m = 0; skip < q_count && m < k_count; m += output->block) {
        for (int32_t i = 0; i < n_count; i++) {
            for (int32_t j = MAX(fresh_p - p, 0); j < p_count; j++) {
                const int32_t line = row + (m / output->block * n_count + i) * p_count * q_count + j * q_count;
                move_outputs(
                    output, false, line + skip, n + i, 1, p + j, 1, q + skip, q_count - skip, k + m,
                    MIN(output->block, k_count - m));
            }
        }
    }
}

/* A max pool: window p takes `size` rows of the image from p * stride - up on, and columns alike. */
typedef struct {
    int32_t size, stride, up, left;
} pool_t;

/* Stores the largest value of each window p, q over a tile of the image; padding counts as zero.  One
 * instruction takes one image and block, and as many rows of windows as Gemmini's counter of taps holds; where
 * rows of the destination are too long, one row. */
static inline void store_pooled(
    const output_t *output, const pool_t *pool, interval_t p, interval_t q, int32_t row, int32_t n, int32_t n_count,
    int32_t y, int32_t y_count, int32_t x, int32_t x_count, int32_t k, int32_t k_count)
{
    const ptrdiff_t pitch = output->stride_p / output->stride_q;
    const int32_t taps = (q.end - q.start) * pool->size * pool->size;
    const int32_t most = pitch <= 255 ? MAX(BANK_NUM * BANK_ROWS, ACC_ROWS) / taps : 1;
    const int32_t left = MAX(pool->left - q.start * pool->stride + x, 0);
    for (int32_t i = p.start; i < p.end; i += most) {
        const int32_t top = i * pool->stride - pool->up - y; /* the first window's first row in the tile */
        const int32_t skip = MAX(top, 0);
        const int32_t rows = MIN(most, p.end - i);
        gemmini_extended2_config_st(
            (uint32_t)(output->stride_q * output->size), output->activation, output->scale, pool->stride, pool->size,
            rows == 1 ? 0 : pitch, rows, q.end - q.start, y_count - skip, x_count, MAX(-top, 0), left);
        for (int32_t j = 0; j < n_count; j++) {
            const ptrdiff_t line = (n + j) * output->stride_n + i * output->stride_p + q.start * output->stride_q
                                   + k - output->first;
            for (int32_t m = 0; m < k_count; m += output->block) {
                const int32_t plane = row + (m / output->block * n_count + j) * y_count * x_count;
                gemmini_extended_mvout(
                    output->data + (uintptr_t)(line + m) * (uintptr_t)output->size,
                    OVERWRITE | (uint32_t)(plane + skip * x_count), MIN(output->block, k_count - m), 0);
            }
        }
    }
}

#endif
