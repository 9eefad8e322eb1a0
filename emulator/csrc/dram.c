#include "dram.h"

#include <stdlib.h>

#include "cache.h"
#include "fail.h"
#include "machine.h"
#include "regions.h"

/* Bytes that cross the bus at a time: a request is no smaller. */
#define BEAT 16

/* Lines with bytes that Gemmini stored since the last fence, or loaded from the tile buffer: an open-addressing hash
 * set. */
typedef struct {
  uint64_t line, stored, loaded; /* one bit per byte; both 0: free slot */
} MovedLine;
static MovedLine *moved;
static uint32_t moved_capacity, moved_count;
static uint32_t *moved_slots; /* slots in use, to clear them without walking the table */

static bool is_output(int role) { return role == FADIFF_O || role == FADIFF_PSUM; }

static uint64_t line_bytes(uint64_t line, uint64_t address, uint64_t end) {
  const uint64_t low = address > line ? address - line : 0;
  const uint64_t high = end - line < LINE ? end - line : LINE;
  return (high == LINE ? ~0ull : (1ull << high) - 1) & ~((1ull << low) - 1);
}

static bool is_free(const MovedLine *entry) { return !(entry->stored | entry->loaded); }

static MovedLine *slot_of(uint64_t line) {
  uint32_t slot = (uint32_t)((line / LINE) * 0x9E3779B97F4A7C15ull >> 32) & (moved_capacity - 1);
  while (!is_free(&moved[slot]) && moved[slot].line != line) slot = (slot + 1) & (moved_capacity - 1);
  return &moved[slot];
}

static void remember_line(uint64_t line, uint64_t stored, uint64_t loaded) {
  MovedLine *entry = slot_of(line);
  if (is_free(entry)) moved_slots[moved_count++] = (uint32_t)(entry - moved);
  entry->line = line;
  entry->stored |= stored;
  entry->loaded |= loaded;
}

static void make_room(void) {
  if (2 * (moved_count + 1) <= moved_capacity) return;
  MovedLine *old = moved;
  uint32_t *old_slots = moved_slots;
  const uint32_t old_count = moved_count;
  moved_capacity = moved_capacity ? 2 * moved_capacity : 4096;
  moved = calloc(moved_capacity, sizeof *moved);
  moved_slots = malloc(moved_capacity / 2 * sizeof *moved_slots);
  if (!moved || !moved_slots) {
    moved = old;
    moved_slots = old_slots;
    moved_capacity /= 2;
    fail("out of memory");
  }
  moved_count = 0;
  for (uint32_t i = 0; i < old_count; i++) {
    const MovedLine *entry = &old[old_slots[i]];
    remember_line(entry->line, entry->stored, entry->loaded);
  }
  free(old);
  free(old_slots);
}

/* Bytes that the core stored since the last fence: they may still be in its store buffer. */
typedef struct {
  uint64_t start, end;
} Span;
static Span *core_stores;
static uint32_t core_store_capacity, core_store_count;

void dram_fence(void) {
  for (uint32_t i = 0; i < moved_count; i++) moved[moved_slots[i]].stored = moved[moved_slots[i]].loaded = 0;
  moved_count = core_store_count = 0;
}

/* Whether Gemmini stored (or loaded from the tile buffer) any of these bytes since the last fence. */
static bool in_flight(uint64_t start, size_t bytes, bool is_store) {
  for (uint32_t i = 0; i < moved_count; i++) {
    const MovedLine *entry = &moved[moved_slots[i]];
    const uint64_t these = is_store ? entry->stored : entry->loaded;
    if (entry->line < start + bytes && entry->line + LINE > start && these & line_bytes(entry->line, start, start + bytes))
      return true;
  }
  return false;
}

static int core_failure(const char *format, const char *what) {
  machine.issued = machine.funct = CORE_ACCESS;
  if (!setjmp(machine.abandon)) fail(format, what);
  return -1;
}

void fadiff_core_stored(const void *start, size_t bytes) {
  if (machine.failed || !bytes) return;
  if (in_flight((uint64_t)(uintptr_t)start, bytes, false)) {
    core_failure("%s writes memory that Gemmini may still be loading: call gemmini_fence() first", machine.layer_name);
    return;
  }
  if (core_store_count == core_store_capacity) {
    const uint32_t capacity = core_store_capacity ? 2 * core_store_capacity : 64;
    Span *grown = realloc(core_stores, capacity * sizeof *grown);
    machine.issued = machine.funct = CORE_ACCESS;
    if (!grown) {
      if (!setjmp(machine.abandon)) fail("out of memory");
      return;
    }
    core_stores = grown;
    core_store_capacity = capacity;
  }
  core_stores[core_store_count++] = (Span){(uint64_t)(uintptr_t)start, (uint64_t)(uintptr_t)start + bytes};
}

static void require_core_fence(uint64_t address, uint32_t bytes, bool store) {
  for (uint32_t i = 0; i < core_store_count; i++) {
    char where[128];
    if (address < core_stores[i].end && address + bytes > core_stores[i].start)
      fail("%s %s that the core wrote, without a fence between: the core's stores may come later",
           store ? "stores to" : "loads", region_describe(address, where, sizeof where));
  }
}

int fadiff_require_fence(const char *reader, const void *start, size_t bytes) {
  if (machine.failed) return -1;
  if (!in_flight((uint64_t)(uintptr_t)start, bytes, true)) return 0;
  return core_failure("%s reads memory that Gemmini stored to since the last fence: call gemmini_fence() first",
                      reader);
}

/* As StreamReader and StreamWriter of DMA.scala: of the sizes that are powers of two, from a beat to a line, aligned to
 * themselves, the smallest that moves most. */
static void request(uint64_t address, uint64_t end, Transfer *transfer) {
  while (address < end) {
    uint64_t size = 0, moved = 0;
    for (uint64_t s = BEAT; s <= LINE; s *= 2) {
      const uint64_t room = s - address % s, bytes = room < end - address ? room : end - address;
      if (bytes > moved) size = s, moved = bytes;
    }
    transfer->requests++;
    transfer->bus_bytes += size;
    address += moved;
  }
}

static void count(Region *region, uint32_t bytes, bool store, uint64_t address, Transfer *transfer) {
  const bool tile_buffer = region && region->memory == FADIFF_TILE_BUFFER;
  fadiff_counts *counts = &machine.counts;
  request(address, address + bytes, transfer);
  for (uint64_t line = address / LINE * LINE; line < address + bytes; line += LINE) {
    const double absent = cache_touch(line);
    if (!store) transfer->dram_bytes += absent * LINE;
  }
  if (store)
    *(tile_buffer ? &counts->tile_buffer_written : &counts->dram_written) += bytes;
  else
    *(tile_buffer ? &counts->tile_buffer_read : &counts->dram_read) += bytes;
  if (!region) return;
  *(store ? &region->traffic.bytes_written : &region->traffic.bytes_read) += bytes;
  *(store ? &region->traffic.rows_written : &region->traffic.rows_read) += 1;
}

static Region *checked_region(uint64_t address, uint32_t bytes, bool store) {
  Region *region = region_of(address, bytes, store);
  if (!region && machine.config.check_regions)
    fail("%s %u bytes at 0x%llx, outside every DRAM region of the layer", store ? "stores" : "loads", bytes,
         (unsigned long long)address);
  if (region && store && !is_output(region->role))
    fail("stores into %s, which the layer only reads", region->name);
  return region;
}

const void *dram_load(uint64_t address, uint32_t bytes, Transfer *transfer) {
  Region *region = checked_region(address, bytes, false);
  require_core_fence(address, bytes, false);
  const bool is_boxed = region && region->memory == FADIFF_TILE_BUFFER;
  for (uint64_t line = address / LINE * LINE; (moved_count || is_boxed) && line < address + bytes; line += LINE) {
    const uint64_t these = line_bytes(line, address, address + bytes);
    char where[128];
    if (moved_count && slot_of(line)->stored & these)
      fail("loads %s that an earlier mvout wrote, without a fence between: DRAM order is not tracked",
           region_describe(address, where, sizeof where));
    if (is_boxed) {
      make_room();
      remember_line(line, 0, these);
    }
  }
  count(region, bytes, false, address, transfer);
  return (const void *)(uintptr_t)address;
}

void *dram_store(uint64_t address, uint32_t bytes, Transfer *transfer) {
  Region *region = checked_region(address, bytes, true);
  require_core_fence(address, bytes, true);
  for (uint64_t line = address / LINE * LINE; line < address + bytes; line += LINE) {
    const uint64_t these = line_bytes(line, address, address + bytes);
    char where[128];
    if (moved_count && slot_of(line)->loaded & these)
      fail("stores to %s that an earlier mvin may still be loading, without a fence between: DRAM order is not tracked",
           region_describe(address, where, sizeof where));
    make_room();
    remember_line(line, these, 0);
  }
  count(region, bytes, true, address, transfer);
  return (void *)(uintptr_t)address;
}
