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

/* Streams `rows` pixels of a block of a, `distance` rows of the scratchpad from one block to the next, through one of
 * b.  Sums of a block are `to_next` rows apart.  Addresses have 64 bits, so that a command takes one OR and no cast. */
ALWAYS_INLINE void stream_blocks(
    uint64_t from, uint64_t distance, uint64_t stationary, uint64_t to, uint64_t to_next, int32_t rows, int32_t depth,
    int32_t columns)
{
    int32_t block = MIN(DIM, rows);
    gemmini_extended_preload(stationary, to, columns, depth, columns, block);
    gemmini_extended_compute_preloaded(from, GARBAGE_ADDR, depth, block, columns, block);
    while ((rows -= block) > 0) {
        from += distance;
        to += to_next;
        block = MIN(DIM, rows);
        gemmini_extended_preload(GARBAGE_ADDR, to, columns, depth, columns, block);
        gemmini_extended_compute_accumulated(from, GARBAGE_ADDR, depth, block, columns, block);
    }
}

/* Stores rows of up to DIM results each with a factor of its own.  The next row's is worked out while this one's
 * commands go out. */
static inline void store_core_rows(
    const core_product_t *product, uintptr_t c, const float *factors, uint64_t row, int32_t i, int32_t j,
    int32_t blocks)
{
    const int32_t most = MAX_BLOCK_LEN * DIM, activation = product->activation;
    const ptrdiff_t step = product->factor;
    const uintptr_t pitch = product->c;
    const acc_scale_t of_all = product->scale;
    acc_scale_t scale = of_all * *factors;
    for (int32_t left = DIM; i > 0; i--, left--) {
        if (left == 0) {
            left = DIM;
            row += (uint64_t)(DIM * (blocks - 1));
        }
        factors += i > 1 ? step : 0;
        const acc_scale_t next = of_all * *factors;
        gemmini_extended_config_st(0, activation, scale);
        scale = next;
        uintptr_t to = c;
        uint64_t from = row;
        for (int32_t k = j; k > 0; k -= most) {
            gemmini_extended_mvout(to, from, MIN(most, k), 1);
            to += (uintptr_t)most;
            from += (uint64_t)most;
        }
        c += pitch;
        row++;
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
    store_core_rows(product, c, factors, from, i, j, blocks);
}

/* Loads `count` rows of b, j columns, to where its first block for the array is; transposed, rows are `all` blocks. */
ALWAYS_INLINE void load_b(
    const core_product_t *product, const elem_t *b, uint64_t row, int32_t all, int32_t j, int32_t count)
{
    const int32_t chunk = MAX_BLOCK_LEN * DIM;
    if (product->b_transposed) {
        for (; j > 0; j -= DIM) {
            gemmini_extended_mvin2((uintptr_t)b, row, count, MIN(DIM, j));
            b += DIM * product->b;
            row += (uint64_t)(all * DIM);
        }
        return;
    }
    const int32_t width = (j + DIM - 1) / DIM * DIM;
    for (; count > 0; count -= DIM) {
        for (int32_t q = 0; q < j; q += chunk) {
            gemmini_extended_mvin2((uintptr_t)(b + q), row + (uint64_t)q, MIN(chunk, j - q), MIN(DIM, count));
        }
        b += DIM * product->b;
        row += (uint64_t)width;
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
    /* From a block of b to the next one of columns, and of the depth. */
    const int32_t b_column = (product->b_transposed ? all : 1) * DIM;
    const int32_t b_deeper = (product->b_transposed ? 1 : columns) * DIM;
    const size_t b_pitch = product->b_transposed ? 1 : product->b;
    if (bias != NULL) {
        for (int32_t q = 0; q < j; q += DIM) {
            for (int32_t p = 0; p < i; p += DIM) {
                gemmini_extended_mvin3(
                    (uintptr_t)(bias + q), OVERWRITE | (uint32_t)(c_row + p * columns + q), MIN(DIM, j - q),
                    MIN(DIM, i - p));
            }
        }
    }
    uint32_t sums = accumulate ? ACCUMULATE : OVERWRITE;
    const int32_t pieces = (k + chunk - 1) / chunk, end = pieces * product->taps;
    for (int32_t next = 0; next <= end; next++) {
        if (next < end) {
            const int32_t tap = next / pieces, first = next % pieces * chunk, d = tap * depth + first / DIM;
            const int32_t count = MIN(chunk, k - first);
            if (b != NULL) {
                const elem_t *from = b + (size_t)tap * product->b_tap + (size_t)first * b_pitch;
                load_b(product, from, (uint64_t)(b_row + d * b_deeper), all, j, count);
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
            int32_t d = tap * depth + first / DIM;
            for (int32_t left = MIN(chunk, k - first); left > 0; left -= DIM, d++) {
                uint64_t stationary = (uint64_t)(b_row + d * b_deeper);
                uint64_t to = sums | (uint64_t)c_row;
                for (int32_t q = j; q > 0; q -= DIM) {
                    stream_blocks(
                        (uint64_t)(a_row + d * DIM), (uint64_t)(all * DIM), stationary, to, (uint64_t)(columns * DIM),
                        i, MIN(DIM, left), MIN(DIM, q));
                    stationary += (uint64_t)b_column;
                    to += DIM;
                }
                sums = ACCUMULATE;
            }
        }
    }
    if (c != NULL) {
        store_core_tile(product, (uintptr_t)c, factors, (uint32_t)c_row, i, j, columns);
        product->final = 1 - product->final;
    }
}

#endif
