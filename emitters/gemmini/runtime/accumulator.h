/* Addresses of accumulator rows in Gemmini's instructions. */
#ifndef FADIFF_ACCUMULATOR_H
#define FADIFF_ACCUMULATOR_H

#include <stddef.h>

#include "elements.h"
#include "fence.h"

/* Accumulator addresses (bit 31), written by adding (bit 30), read as acc_t (bit 29). */
#define OVERWRITE (UINT32_C(4) << 29)
#define ACCUMULATE (UINT32_C(6) << 29)
#define FULL_WIDTH (UINT32_C(5) << 29)

/* Makes one line of those that adjoin in memory; returns the elements from one pixel of it to the next. */
static inline ptrdiff_t join_lines(
    ptrdiff_t image, ptrdiff_t line, ptrdiff_t pixel, int32_t *images, int32_t *lines, int32_t *pixels)
{
    if (*pixels == 1) {
        pixel = line;
    }
    if (*pixels * pixel == line) {
        *pixels *= *lines;
        *lines = 1;
    }
    if (*lines == 1 && *pixels == 1) {
        pixel = image;
    }
    if (*lines == 1 && *pixels * pixel == image) {
        *pixels *= *images;
        *images = 1;
    }
    return pixel;
}

#endif
