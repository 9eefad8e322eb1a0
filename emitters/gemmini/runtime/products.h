/* Products of the array, instruction by instruction. */
#ifndef FADIFF_PRODUCTS_H
#define FADIFF_PRODUCTS_H

#include "accumulator.h"

/* How one block of weights meets its pixels: rows between neighbours in scratchpad and accumulator. */
typedef struct {
    int32_t image, line, pixel;
    int32_t out_image, out_line;
} stream_t;

/* Streams n p q pixels through one block of weights.  `fresh`: the weights are not in the array yet. */
static inline void multiply(
    const stream_t *stream, int32_t input, int32_t weights, bool fresh, int32_t output, bool accumulate,
    int32_t n_count, int32_t p_count, int32_t q_count, int32_t depth, int32_t columns)
{
    uint32_t stationary = fresh ? (uint32_t)weights : GARBAGE_ADDR;
    int32_t line = stream->line;
    int32_t out_line = stream->out_line;
    if (p_count == 1) {
        line = stream->image;
        out_line = stream->out_image;
    }
    if (p_count * line == stream->image && p_count * out_line == stream->out_image) {
        p_count *= n_count;
        n_count = 1;
    }
    if (q_count * stream->pixel == line && q_count == out_line) {
        q_count *= p_count;
        p_count = 1;
    }
    for (int32_t n = 0; n < n_count; n++) {
        for (int32_t p = 0; p < p_count; p++) {
            for (int32_t q = 0; q < q_count; q += DIM) {
                const int32_t rows = MIN(DIM, q_count - q);
                const uint32_t from = (uint32_t)(input + n * stream->image + p * line + q * stream->pixel);
                const uint32_t to = (accumulate ? ACCUMULATE : OVERWRITE)
                                    | (uint32_t)(output + n * stream->out_image + p * out_line + q);
                gemmini_extended_preload(stationary, to, columns, depth, columns, rows);
                if (stationary == GARBAGE_ADDR) {
                    gemmini_extended_compute_accumulated(from, GARBAGE_ADDR, depth, rows, columns, rows);
                } else {
                    gemmini_extended_compute_preloaded(from, GARBAGE_ADDR, depth, rows, columns, rows);
                }
                stationary = GARBAGE_ADDR;
            }
        }
    }
}

#endif
