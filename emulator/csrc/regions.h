/* The DRAM regions of every layer: which one an address is in. */
#ifndef FADIFF_REGIONS_H
#define FADIFF_REGIONS_H

#include <stdbool.h>

#include "fadiff_emulator.h"

typedef struct {
  int layer;
  uint64_t start, end;
  int role, memory;
  char name[96];
  fadiff_traffic traffic;
} Region;

/* The region of the current layer that a row belongs to: loads prefer inputs, stores outputs; or NULL. */
Region *region_of(uint64_t address, uint32_t bytes, bool store);

/* "weights+64" when the address is in a region of the current layer, else hexadecimal. */
const char *region_describe(uint64_t address, char *buffer, size_t size);

/* Forgets what was moved; keeps the regions. */
void regions_reset(void);
/* Of memory that some layer may touch. */
uint64_t regions_bytes(void);

#endif
