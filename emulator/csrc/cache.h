/* The cache between Gemmini's DMA and DRAM, as a share of the lines that it holds. */
#ifndef FADIFF_CACHE_H
#define FADIFF_CACHE_H

#include <stdint.h>

#define LINE 64 /* bytes per line, and the most that one DMA request moves */

/* Bytes that a run touches in all: what passes through the cache between two runs. */
void cache_reset(uint64_t footprint);
/* Touches a line; returns the probability that it was not there. */
double cache_touch(uint64_t line);

#endif
