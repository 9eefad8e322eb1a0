/* Copies by Gemmini's DMA: rows into the scratchpad and out again. */
#ifndef FADIFF_COPIES_H
#define FADIFF_COPIES_H

#include "elements.h"
#include "fence.h"

/* Rows of `length` elements that adjoin, the innermost loop up to DIM by a command.  The scratchpad is filled in turn, so
 * that loads run ahead of stores: Gemmini itself keeps commands on the same rows in order. */
static inline void copy_rows(const loops_t *loops, const elem_t *input, elem_t *output, int32_t length)
{
    run_t run = first_run(loops);
    uint32_t row = 0;
    gemmini_extended4_config_ld((size_t)run.step[0] * sizeof(elem_t), MVIN_SCALE_IDENTITY, false, DIM, 0);
    gemmini_extended_config_st((size_t)run.step[1] * sizeof(elem_t), NO_ACTIVATION, ACC_SCALE_IDENTITY);
    do {
        for (int32_t i = 0; i < run.count; i += DIM) {
            const elem_t *x = input + run.at[0] + i * run.step[0];
            elem_t *y = output + run.at[1] + i * run.step[1];
            const size_t rows = (size_t)MIN(DIM, run.count - i);
            for (int32_t j = 0; j < length; j += MAX_BLOCK_LEN * DIM) {
                const size_t columns = (size_t)MIN(MAX_BLOCK_LEN * DIM, length - j);
                const uint32_t taken = (uint32_t)((columns + DIM - 1) / DIM * DIM);
                row = row + taken > BANK_NUM * BANK_ROWS ? 0 : row;
                gemmini_extended_mvin(x + j, row, columns, rows);
                gemmini_extended_mvout(y + j, row, columns, rows);
                row += taken;
            }
        }
    } while (next_run(loops, &run));
    wait_for_gemmini();
}

#endif
