#include "regions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

static Region *regions;
static int region_count, region_capacity;
static int layer_first, layer_last; /* regions of the current layer: [first, last) */

void fadiff_clear_regions(void) {
  region_count = layer_first = layer_last = 0;
  machine.layer = -1;
  machine.layer_name[0] = 0;
}

int fadiff_add_region(int layer, const char *name, const void *start, size_t bytes, int role, int memory) {
  if (region_count == region_capacity) {
    const int capacity = region_capacity ? 2 * region_capacity : 64;
    Region *grown = realloc(regions, (size_t)capacity * sizeof *grown);
    if (!grown) return -1;
    regions = grown;
    region_capacity = capacity;
  }
  Region *region = &regions[region_count];
  *region = (Region){.layer = layer, .start = (uintptr_t)start, .end = (uintptr_t)start + bytes, .role = role,
                     .memory = memory};
  snprintf(region->name, sizeof region->name, "%s", name);
  return region_count++;
}

fadiff_traffic fadiff_region_traffic(int region) {
  return region >= 0 && region < region_count ? regions[region].traffic : (fadiff_traffic){0};
}

void fadiff_enter_layer(int layer, const char *name) {
  machine.layer = layer;
  snprintf(machine.layer_name, sizeof machine.layer_name, "%s", name);
  machine.layer_visit++;
  machine.spad.used = machine.acc.used = 0;
  /* A layer's regions were added one after the other. */
  for (layer_first = 0; layer_first < region_count && regions[layer_first].layer != layer;) layer_first++;
  for (layer_last = layer_first; layer_last < region_count && regions[layer_last].layer == layer;) layer_last++;
}

Region *region_of(uint64_t address, uint32_t bytes, bool store) {
  Region *best = NULL;
  for (int i = layer_first; i < layer_last; i++) {
    Region *region = &regions[i];
    if (address < region->start || address + bytes > region->end) continue;
    const bool better = !best || (store ? region->role > best->role : region->role < best->role);
    if (better) best = region;
  }
  return best;
}

const char *region_describe(uint64_t address, char *buffer, size_t size) {
  const Region *region = region_of(address, 1, false);
  if (region)
    snprintf(buffer, size, "%s+%llu", region->name, (unsigned long long)(address - region->start));
  else
    snprintf(buffer, size, "0x%llx", (unsigned long long)address);
  return buffer;
}

void regions_reset(void) {
  for (int i = 0; i < region_count; i++) regions[i].traffic = (fadiff_traffic){0};
}

static int by_start(const void *a, const void *b) {
  const Region *first = a, *second = b;
  return first->start < second->start ? -1 : first->start > second->start;
}

uint64_t regions_bytes(void) {
  uint64_t bytes = 0, end = 0;
  Region *sorted = malloc((size_t)region_count * sizeof *sorted);
  if (!sorted) return 0;
  memcpy(sorted, regions, (size_t)region_count * sizeof *sorted);
  qsort(sorted, (size_t)region_count, sizeof *sorted, by_start);
  for (int i = 0; i < region_count; i++) {
    const uint64_t start = sorted[i].start > end ? sorted[i].start : end;
    if (sorted[i].end > start) bytes += sorted[i].end - start;
    if (sorted[i].end > end) end = sorted[i].end;
  }
  free(sorted);
  return bytes;
}
