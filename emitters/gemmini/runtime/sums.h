/* Additions in the accumulator, instruction by instruction. */
#ifndef FADIFF_SUMS_H
#define FADIFF_SUMS_H

#include <stddef.h>

#include "accumulator.h"

/* c = sat8(round(c_scale * act(sat8(round(a_scale * a)) + sat8(round(b_scale * b))))), line by line.
 * `also` is a second destination or NULL.  Line strides are in elements. */
typedef struct {
    const elem_t *a, *b;
    elem_t *c, *also;
    ptrdiff_t a_line, b_line, c_line, also_line;
    int32_t lines;
    size_t length;
    scale_t a_scale, b_scale;
    acc_scale_t c_scale;
    int32_t activation;
} sum_t;

/* Elements in the longest row segment that one instruction moves, given that half the accumulator takes DIM of them. */
#define WIDE ((size_t)(MIN(MAX_BLOCK_LEN, ACC_ROWS / 2 / DIM) * DIM))

/* Accumulator rows that a flat run of elements takes: DIM segments share WIDE rows. */
static inline uint32_t flat_rows(size_t count)
{
    return (uint32_t)((count + WIDE * DIM - 1) / (WIDE * DIM) * WIDE);
}

typedef enum { LOAD_FIRST, LOAD_SECOND, STORE } flat_move_t;

static inline void move_flat(flat_move_t move, uintptr_t place, uint32_t row, size_t count)
{
    for (size_t done = 0; done < count;) {
        const size_t line = done / WIDE;
        const size_t columns = MIN(WIDE, count - done);
        const size_t rows = MIN((size_t)DIM, (count - done) / columns);
        const uint32_t local = row + (uint32_t)(line / DIM * WIDE + line % DIM);
        const uintptr_t at = place + done * sizeof(elem_t);
        if (move == LOAD_FIRST) {
            gemmini_extended_mvin(at, OVERWRITE | local, columns, rows);
        } else if (move == LOAD_SECOND) {
            gemmini_extended_mvin2(at, ACCUMULATE | local, columns, rows);
        } else {
            gemmini_extended_mvout(at, OVERWRITE | local, columns, rows);
        }
        done += rows * columns;
    }
}

/* Moves pieces first..end (segments of lines) between one operand and the accumulator from `row` on. */
static inline void move_pieces(
    flat_move_t move, const void *operand, ptrdiff_t line_stride, size_t length, size_t segment, size_t first,
    size_t end, uint32_t row)
{
    const size_t segments = (length + segment - 1) / segment;
    for (size_t i = first; i < end; i++) {
        const size_t start = i % segments * segment;
        const size_t offset = i / segments * (size_t)line_stride + start;
        move_flat(move, (uintptr_t)operand + offset * sizeof(elem_t), row, MIN(segment, length - start));
        row += flat_rows(segment);
    }
}

/* Half an accumulator at a time.  One fence per half: two loads of the same rows may complete out of order. */
static inline void add_lines(const sum_t *sum)
{
    const uint32_t half = (uint32_t)(ACC_ROWS / 2 / WIDE * WIDE);
    const size_t segment = MIN(sum->length, (size_t)half * DIM);
    const size_t pieces = (sum->length + segment - 1) / segment * (size_t)sum->lines;
    const size_t batch = half / flat_rows(segment);
    const size_t stride = WIDE * sizeof(elem_t);
    uint32_t row = 0;
    gemmini_extended4_config_ld(stride, sum->a_scale, true, DIM, 0);
    gemmini_extended4_config_ld(stride, sum->b_scale, true, DIM, 1);
    gemmini_extended_config_st(stride, sum->activation, sum->c_scale);
    move_pieces(LOAD_FIRST, sum->a, sum->a_line, sum->length, segment, 0, MIN(batch, pieces), row);
    for (size_t first = 0; first < pieces; first += batch) {
        const size_t end = MIN(first + batch, pieces);
        wait_for_gemmini();
        move_pieces(LOAD_SECOND, sum->b, sum->b_line, sum->length, segment, first, end, row);
        move_pieces(
            LOAD_FIRST, sum->a, sum->a_line, sum->length, segment, end, MIN(end + batch, pieces), half - row);
        move_pieces(STORE, sum->c, sum->c_line, sum->length, segment, first, end, row);
        if (sum->also != NULL) {
            move_pieces(STORE, sum->also, sum->also_line, sum->length, segment, first, end, row);
        }
        row = half - row;
    }
    wait_for_gemmini();
}

/* Adds a box of which only lines from `fresh_line` on and elements from `fresh` on go to `also`, too. */
static inline void add_fresh(const sum_t *sum, int32_t fresh_line, size_t fresh)
{
    sum_t part = *sum;
    const int32_t old_lines = MIN(fresh_line, sum->lines);
    part.also = NULL;
    part.lines = old_lines;
    if (part.lines > 0) {
        add_lines(&part);
    }
    part.lines = sum->lines - old_lines;
    part.a += old_lines * sum->a_line;
    part.b += old_lines * sum->b_line;
    part.c += old_lines * sum->c_line;
    part.length = MIN(fresh, sum->length);
    if (part.lines > 0 && part.length > 0) {
        add_lines(&part);
    }
    part.length = sum->length - part.length;
    part.a += fresh;
    part.b += fresh;
    part.c += fresh;
    part.also = sum->also + old_lines * sum->also_line + fresh;
    if (part.lines > 0 && fresh < sum->length) {
        add_lines(&part);
    }
}

#endif
