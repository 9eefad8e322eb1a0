/* Random replacement, in expectation: of N lines one is still there with exp(-k / N) after k others came.
 *
 * A run starts as if the same run had been before it, so a line that it has not touched yet is as old as all
 * those that a whole run misses: of r times the cache's size h = exp(-(1 - h) r) are hits.
 */
#include "cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "machine.h"

typedef struct {
  uint64_t line; /* + 1; 0: free */
  double missed; /* how many lines had been missed when it was last touched */
} Touched;

static Touched *touched;
static uint32_t capacity, used;
static double missed, missed_per_run;

static Touched *slot_of(uint64_t line) {
  uint32_t slot = (uint32_t)((line / LINE) * 0x9E3779B97F4A7C15ull >> 32) & (capacity - 1);
  while (touched[slot].line && touched[slot].line != line + 1) slot = (slot + 1) & (capacity - 1);
  return &touched[slot];
}

static void grow(void) {
  Touched *old = touched;
  const uint32_t before = capacity;
  capacity = capacity ? 2 * capacity : 4096;
  touched = calloc(capacity, sizeof *touched);
  if (!touched) {
    touched = old;
    capacity = before;
    fail("out of memory");
  }
  for (uint32_t i = 0; i < before; i++)
    if (old[i].line) *slot_of(old[i].line - 1) = old[i];
  free(old);
}

static double lines(void) { return (double)machine.config.cache_bytes / LINE; }

void cache_reset(uint64_t footprint) {
  if (touched) memset(touched, 0, capacity * sizeof *touched);
  used = 0;
  missed = missed_per_run = 0;
  if (!machine.config.cache_bytes) return;
  double hits = 0;
  const double rounds = (double)footprint / (double)machine.config.cache_bytes;
  for (int i = 0; i < 200; i++) hits = exp(-(1 - hits) * rounds); /* from below: the stable one */
  missed_per_run = (1 - hits) * (double)footprint / LINE;
}

double cache_touch(uint64_t line) {
  if (!machine.config.cache_bytes) return 1;
  if (2 * (used + 1) > capacity) grow();
  Touched *slot = slot_of(line);
  if (!slot->line) {
    used++;
    *slot = (Touched){line + 1, -missed_per_run};
  }
  const double absent = 1 - exp((slot->missed - missed) / lines());
  missed += absent;
  slot->missed = missed;
  return absent;
}
