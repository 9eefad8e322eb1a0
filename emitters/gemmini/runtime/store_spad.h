/* STORE_SPAD, which public gemmini.h has no macro for. */
#ifndef FADIFF_STORE_SPAD_H
#define FADIFF_STORE_SPAD_H

#include "gemmini_system.h"

/* Copies rows of the accumulator to rows of the scratchpad. */
static inline void store_spad(uint32_t to, uint32_t from, int32_t columns, int32_t rows)
{
    const uint64_t source = (uint64_t)rows << (ADDR_LEN + 16) | (uint64_t)columns << ADDR_LEN | from;
    ROCC_INSTRUCTION_RS1_RS2(XCUSTOM_ACC, UINT64_C(1) << 32 | to, source, 23);
}

#endif
