/* Tiles of products laid out as by Gemmini's loop unit, each command issued by the core: for what the unit cannot do,
 * taps of a kernel and results that are stored row by row or as sums. */
#ifndef FADIFF_CORE_PRODUCTS_H
#define FADIFF_CORE_PRODUCTS_H

#include "accumulator.h"

/* What the tiles of c = act(scale * (a b + bias)) share.  Strides: elements from row to row, and from tap to tap. */
typedef struct {
    size_t a, b, c, a_tap, b_tap;
    int32_t taps;
    bool b_transposed;
    int32_t activation;
    acc_scale_t scale;
    int32_t size;           /* bytes of a result */
    ptrdiff_t factor;       /* from the factor of a row to the next; without such factors 0 */
    int32_t channel_block;  /* factors are those of channels, the same for so many; 0: of rows */
    int32_t turn[2], final; /* halves of the scratchpad that are next, of the accumulator */
} core_product_t;

static inline void begin_core_product(const core_product_t *product)
{
    gemmini_extended_config_ex(WEIGHT_STATIONARY, NO_ACTIVATION, 0, 1, false, product->b_transposed);
    gemmini_extended3_config_ld(product->a * sizeof(elem_t), MVIN_SCALE_IDENTITY, false, 0);
    gemmini_extended3_config_ld(product->b * sizeof(elem_t), MVIN_SCALE_IDENTITY, false, 1);
    gemmini_extended3_config_ld(0, MVIN_SCALE_IDENTITY, false, 2); /* every row gets the bias */
    gemmini_extended_config_st((uint32_t)(product->c * (size_t)product->size), product->activation, product->scale);
}

/* The half of the scratchpad for a tile of an operand: 1, 2, or 0 for the other one every time. */
static inline int32_t half_for(int32_t given, int32_t *turn)
{
    const int32_t half = given != 0 ? given - 1 : *turn;
    *turn = 1 - half;
    return half;
}

/* Streams `rows` pixels of a block of a, `distance` rows of the scratchpad from one block to the next, through one of b.
 * Sums of a block are `to_next` rows apart. */
ALWAYS_INLINE void stream_blocks(
    uint32_t from, int32_t distance, uint32_t stationary, uint32_t to, int32_t to_next, int32_t rows, int32_t depth,
    int32_t columns)
{
    const int32_t whole = rows / DIM, rest = rows % DIM;
    if (whole > 0) {
        gemmini_extended_preload(stationary, to, columns, depth, columns, DIM);
        gemmini_extended_compute_preloaded(from, GARBAGE_ADDR, depth, DIM, columns, DIM);
        for (int32_t block = 1; block < whole; block++) {
            from += (uint32_t)distance;
            to += (uint32_t)to_next;
            gemmini_extended_preload(GARBAGE_ADDR, to, columns, depth, columns, DIM);
            gemmini_extended_compute_accumulated(from, GARBAGE_ADDR, depth, DIM, columns, DIM);
        }
        from += (uint32_t)distance;
        to += (uint32_t)to_next;
    }
    if (rest > 0) {
        gemmini_extended_preload(whole > 0 ? GARBAGE_ADDR : stationary, to, columns, depth, columns, rest);
        if (whole > 0) {
            gemmini_extended_compute_accumulated(from, GARBAGE_ADDR, depth, rest, columns, rest);
        } else {
            gemmini_extended_compute_preloaded(from, GARBAGE_ADDR, depth, rest, columns, rest);
        }
    }
}

/* Stores i rows of j results, `blocks` blocks of accumulator rows beside each other; channels of unlike scale as
 * store_scaled_channels does. */
static inline void store_core_tile(
    const core_product_t *product, uintptr_t c, const float *factors, uint32_t row, int32_t i, int32_t j,
    int32_t blocks)
{
    const int32_t most = product->size == (int32_t)sizeof(elem_t) ? MAX_BLOCK_LEN * DIM : DIM;
    const uint32_t from = row | (product->size == (int32_t)sizeof(elem_t) ? OVERWRITE : FULL_WIDTH);
    const size_t pitch = product->c * (size_t)product->size;
    if (factors == NULL) {
        for (int32_t p = 0; p < i; p += DIM) {
            for (int32_t k = 0; k < j; k += most) {
                gemmini_extended_mvout(
                    c + (uintptr_t)p * pitch + (uintptr_t)(k * product->size),
                    from + (uint32_t)(p * blocks + k), MIN(most, j - k), MIN(DIM, i - p));
            }
        }
        return;
    }
    if (product->channel_block > 0) {
        for (int32_t k = 0; k < j; k += DIM) {
            int32_t count = MIN(DIM, j - k);
            for (; count > 0; count = (count - 1) / product->channel_block * product->channel_block) {
                gemmini_extended_config_st(pitch, product->activation, product->scale * factors[k + count - 1]);
                for (int32_t p = 0; p < i; p += DIM) {
                    gemmini_extended_mvout(
                        c + (uintptr_t)p * pitch + (uintptr_t)k, from + (uint32_t)(p * blocks + k), count,
                        MIN(DIM, i - p));
                }
            }
        }
        return;
    }
    for (int32_t p = 0; p < i; p++) {
        const acc_scale_t scale = product->scale * factors[p * product->factor];
        const uint32_t line = from + (uint32_t)(p / DIM * DIM * blocks + p % DIM);
        gemmini_extended_config_st(0, product->activation, scale);
        int32_t k = 0;
        for (; k <= j - most; k += most) {
            gemmini_extended_mvout(c + (uintptr_t)k, line + (uint32_t)k, most, 1);
        }
        if (k < j) {
            gemmini_extended_mvout(c + (uintptr_t)k, line + (uint32_t)k, j - k, 1);
        }
        c += pitch;
    }
}

/* One tile, i x j results over a depth of k elements for each tap.  NULL: a or b is where an earlier tile put it, c is
 * not final yet.  Loads go out one piece of the depth before the products that need them. */
static inline void core_tile(
    core_product_t *product, const elem_t *a, const elem_t *b, const acc_t *bias, void *c, const float *factors,
    int32_t i, int32_t j, int32_t k, bool accumulate, int32_t a_half, int32_t b_half)
{
    const int32_t columns = (j + DIM - 1) / DIM, depth = (k + DIM - 1) / DIM, all = depth * product->taps;
    const int32_t chunk = MAX_BLOCK_LEN * DIM;
    const int32_t half = BANK_NUM * BANK_ROWS / 2;
    const int32_t a_row = half * half_for(a_half, &product->turn[0]);
    const int32_t b_row = half * (half_for(b_half, &product->turn[1]) + 1) - all * columns * DIM;
    const int32_t c_row = product->final * (ACC_ROWS / 2);
    if (bias != NULL) {
        for (int32_t q = 0; q < j; q += DIM) {
            for (int32_t p = 0; p < i; p += DIM) {
                gemmini_extended_mvin3(
                    (uintptr_t)(bias + q), OVERWRITE | (uint32_t)(c_row + p * columns + q), MIN(DIM, j - q),
                    MIN(DIM, i - p));
            }
        }
    }
    const int32_t pieces = (k + chunk - 1) / chunk, end = pieces * product->taps;
    for (int32_t next = 0; next <= end; next++) {
        if (next < end) {
            const int32_t tap = next / pieces, first = next % pieces * chunk, d = tap * depth + first / DIM;
            const int32_t count = MIN(chunk, k - first);
            if (b != NULL && product->b_transposed) {
                for (int32_t q = 0; q < j; q += DIM) {
                    gemmini_extended_mvin2(
                        (uintptr_t)(b + (size_t)q * product->b + first), (uint32_t)(b_row + q * all + d * DIM), count,
                        MIN(DIM, j - q));
                }
            } else if (b != NULL) {
                const elem_t *from = b + (size_t)tap * product->b_tap;
                for (int32_t e = 0; e < count; e += DIM) {
                    for (int32_t q = 0; q < j; q += chunk) {
                        gemmini_extended_mvin2(
                            (uintptr_t)(from + (size_t)(first + e) * product->b + q),
                            (uint32_t)(b_row + (d * DIM + e) * columns + q), MIN(chunk, j - q), MIN(DIM, count - e));
                    }
                }
            }
            if (a != NULL) {
                const elem_t *from = a + (size_t)tap * product->a_tap + first;
                for (int32_t p = 0; p < i; p += DIM) {
                    gemmini_extended_mvin(
                        (uintptr_t)(from + (size_t)p * product->a), (uint32_t)(a_row + p * all + d * DIM), count,
                        MIN(DIM, i - p));
                }
            }
        }
        if (next > 0) {
            const int32_t tap = (next - 1) / pieces, first = (next - 1) % pieces * chunk;
            for (int32_t e = first; e < MIN(first + chunk, k); e += DIM) {
                const int32_t d = tap * depth + e / DIM;
                const uint32_t sums = accumulate || d > 0 ? ACCUMULATE : OVERWRITE;
                for (int32_t q = 0; q < columns; q++) {
                    const int32_t weights = b_row + (product->b_transposed ? q * all + d : d * columns + q) * DIM;
                    stream_blocks(
                        (uint32_t)(a_row + d * DIM), all * DIM, (uint32_t)weights,
                        sums | (uint32_t)(c_row + q * DIM), columns * DIM, i, MIN(DIM, k - e), MIN(DIM, j - q * DIM));
                }
            }
        }
    }
    if (c != NULL) {
        store_core_tile(product, (uintptr_t)c, factors, (uint32_t)c_row, i, j, columns);
        product->final = 1 - product->final;
    }
}

#endif
