/* DRAM as Gemmini's DMA sees it: bytes per region of the layer, stores not yet fenced. */
#ifndef FADIFF_DRAM_H
#define FADIFF_DRAM_H

#include <stdint.h>

/* What one instruction moved; feeds the cycle estimate. */
typedef struct {
  uint64_t requests, bus_bytes; /* aligned requests, and what they carry */
  double dram_bytes;            /* of lines that the cache lacks */
} Transfer;

/* Checks and counts one row; return the host memory behind it. */
const void *dram_load(uint64_t address, uint32_t bytes, Transfer *transfer);
void *dram_store(uint64_t address, uint32_t bytes, Transfer *transfer);

/* Stores up to here, Gemmini's and the core's, are visible to whoever comes later. */
void dram_fence(void);

#endif
