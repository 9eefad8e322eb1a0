/* Tiles of matrix products on Gemmini's loop unit. */
#ifndef FADIFF_LOOP_PRODUCTS_H
#define FADIFF_LOOP_PRODUCTS_H

#include "gemmini_system.h"

/* What the tiles of a matrix product c = act(scale * (a b + bias)) share.  Strides: elements from row to row. */
typedef struct {
    size_t a, b, c;
    bool b_transposed;
    int32_t activation;
    acc_scale_t scale;
} product_t;

static inline void begin_product(const product_t *product)
{
    gemmini_extended_config_ex(WEIGHT_STATIONARY, NO_ACTIVATION, 0, 1, false, product->b_transposed);
    gemmini_extended3_config_ld(product->a * sizeof(elem_t), MVIN_SCALE_IDENTITY, false, 0);
    gemmini_extended3_config_ld(product->b * sizeof(elem_t), MVIN_SCALE_IDENTITY, false, 1);
    gemmini_extended3_config_ld(0, MVIN_SCALE_IDENTITY, false, 2); /* every row gets the bias */
    gemmini_extended_config_st(product->c * sizeof(elem_t), product->activation, product->scale);
}

/* One tile, i x j results over a depth of k, by Gemmini's loop unit, which loads the next one meanwhile.  NULL: a or b
 * is where an earlier tile put it, c is not final yet.  Halves of the scratchpad that a and b are in: 1, 2, or 0 for
 * the other one every time.  The accumulator has c in the half that the last store left. */
static inline void product_tile(
    const product_t *product, const elem_t *a, const elem_t *b, const acc_t *bias, elem_t *c, int32_t i, int32_t j,
    int32_t k, bool accumulate, int32_t a_half, int32_t b_half)
{
    const uint64_t rows = (uint64_t)(i + DIM - 1) / DIM;
    const uint64_t columns = (uint64_t)(j + DIM - 1) / DIM;
    const uint64_t depth = (uint64_t)(k + DIM - 1) / DIM;
    gemmini_loop_ws(
        rows, columns, depth, rows * DIM - (uint64_t)i, columns * DIM - (uint64_t)j, depth * DIM - (uint64_t)k,
        (uintptr_t)a, (uintptr_t)b, (uintptr_t)bias, (uintptr_t)c, product->a, product->b, 0, product->c, false,
        product->b_transposed, false, false, accumulate, NO_ACTIVATION, a_half, b_half, false);
}

#endif
