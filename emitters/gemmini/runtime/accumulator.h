/* Addresses of accumulator rows in Gemmini's instructions. */
#ifndef FADIFF_ACCUMULATOR_H
#define FADIFF_ACCUMULATOR_H

#include "elements.h"
#include "fence.h"

/* Accumulator addresses (bit 31), written by adding (bit 30), read as acc_t (bit 29). */
#define OVERWRITE (UINT32_C(4) << 29)
#define ACCUMULATE (UINT32_C(6) << 29)
#define FULL_WIDTH (UINT32_C(5) << 29)

#endif
