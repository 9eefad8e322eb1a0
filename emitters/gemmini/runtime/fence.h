/* gemmini.h, and the one fence that every program needs. */
#ifndef FADIFF_FENCE_H
#define FADIFF_FENCE_H

#include "gemmini_system.h"

/* Waits until Gemmini is idle, and orders memory accesses of core and Gemmini: neither RISC-V's memory model nor the
 * compiler, to which Gemmini's instructions read no memory, does so by itself. */
static inline void wait_for_gemmini(void)
{
    __asm__ volatile("" ::: "memory");
    gemmini_fence();
    __asm__ volatile("" ::: "memory");
}

#endif
