/* Tensors that stay in the scratchpad between the layers of a fusion group. */
#ifndef FADIFF_HELD_ROWS_H
#define FADIFF_HELD_ROWS_H

#include "accumulator.h"
#include "region.h"
#include "store_spad.h"

/* A fused tensor that stays in the scratchpad: a row per pixel, DIM channels each, block after block. */
typedef struct {
    int32_t row;       /* scratchpad row of the box's first pixel */
    int32_t n, y, x;   /* which pixel that is */
    int32_t lines, line_rows, block_rows, blocks;
    int32_t ring;      /* line y is at y modulo ring; 0: lines count from the first */
    int32_t activation;
    acc_scale_t scale;
} held_t;

static inline int32_t held_row(const held_t *held, int32_t n, int32_t y, int32_t x)
{
    const int32_t line = held->ring == 0 ? y - held->y : (y + held->ring) % held->ring;
    return held->row + ((n - held->n) * held->lines + line) * held->line_rows + x - held->x;
}

/* Copies a finished tile from the accumulator to where later layers read it.  Nothing keeps a product from
 * overwriting rows that are still to be copied: wait. */
static inline void hold_tile(
    const held_t *held, int32_t row, int32_t n, int32_t n_count, int32_t p, int32_t p_count, int32_t q,
    int32_t q_count, int32_t k, int32_t k_count)
{
    if (held->ring == 0 && q_count == held->line_rows) { /* whole lines adjoin */
        q_count *= p_count;
        p_count = 1;
    }
    gemmini_extended_config_st(0, held->activation, held->scale);
    for (int32_t m = 0; m < k_count; m += DIM) {
        for (int32_t i = 0; i < n_count; i++) {
            for (int32_t j = 0; j < p_count; j++) {
                const int32_t to = held_row(held, n + i, p + j, q) + (k + m) / DIM * held->block_rows;
                for (int32_t l = 0; l < q_count; l += DIM) {
                    store_spad(
                        (uint32_t)(to + l), OVERWRITE | (uint32_t)(row + l), MIN(DIM, k_count - m),
                        MIN(DIM, q_count - l));
                }
                row += q_count;
            }
        }
    }
    wait_for_gemmini();
}

static inline void clear_rows(const held_t *held, int32_t row, int32_t count)
{
    for (int32_t b = 0; b < held->blocks; b += MAX_BLOCK_LEN) {
        for (int32_t i = 0; i < count; i += DIM) {
            gemmini_extended_mvin(
                0, (uint32_t)(row + b * held->block_rows + i), MIN(MAX_BLOCK_LEN, held->blocks - b) * DIM,
                MIN(DIM, count - i));
        }
    }
}

/* Zeroes what of a box lies outside an image of height x width. */
static inline void clear_padding(
    const held_t *held, interval_t n, interval_t y, interval_t x, int32_t height, int32_t width)
{
    const int32_t left = MIN(MAX(-x.start, 0), x.end - x.start);
    const int32_t right = MIN(MAX(x.end - width, 0), x.end - x.start - left);
    gemmini_extended4_config_ld(0, MVIN_SCALE_IDENTITY, false, held->block_rows, 0);
    for (int32_t i = n.start; i < n.end; i++) {
        for (int32_t j = y.start; j < y.end; j++) {
            const int32_t row = held_row(held, i, j, x.start);
            if (j < 0 || j >= height) {
                clear_rows(held, row, x.end - x.start);
            } else {
                clear_rows(held, row, left);
                clear_rows(held, row + x.end - x.start - right, right);
            }
        }
    }
}

#endif
