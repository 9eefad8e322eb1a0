#include "local.h"

#include "fail.h"
#include "machine.h"

static uint64_t column_mask(uint32_t first, uint32_t cols) {
  const uint32_t low = first >> machine.mask_shift;
  const uint32_t high = (first + cols - 1) >> machine.mask_shift;
  return (high >= 63 ? ~0ull : (2ull << high) - 1) & ~((1ull << low) - 1);
}

Memory *memory_of(const Operand *operand) { return operand->accumulator ? &machine.acc : &machine.spad; }

static void check_limits(const Span *span) {
  const uint64_t last = span->start + (uint64_t)(span->count - 1) * span->stride;
  if (last >= span->memory->count)
    fail("%s row %llu is beyond its %u rows", span->memory->name, (unsigned long long)last, span->memory->count);
}

static void touch(Memory *memory, Row *row) {
  if (row->touched == machine.layer_visit) return;
  row->touched = machine.layer_visit;
  if (++memory->used > memory->peak) memory->peak = memory->used;
}

static bool in_flight(uint32_t load) {
  return load > machine.fence_load && machine.loads - load < machine.config.load_queue &&
         !machine.completed[load % MAX_QUEUE];
}

/* An instruction that waits for the row has waited for the whole mvin that wrote it. */
static void wait_for_load(const Row *row) {
  if (row->load && row->load != row->tail_load && machine.loads - row->load < MAX_QUEUE)
    machine.completed[row->load % MAX_QUEUE] = true;
}

static void check_tails(const Span *span) {
  for (uint32_t i = 0; i < span->count; i++) {
    const uint32_t number = span->start + i * span->stride;
    if (in_flight(span->memory->rows[number].tail_load))
      fail("%s row %u is among the last pixel_repeats - 1 rows of an mvin that may be in flight: the hardware does not "
           "track them; read an earlier row of that mvin first, or fence",
           span->memory->name, number);
  }
}

static void check_settled(const Memory *memory, uint32_t number) {
  if (memory->rows[number].strewn_fence == machine.fence_count)
    fail("%s row %u was written by a STORE_SPAD with a destination stride above 1, whose rows the hardware tracks as "
         "if they were adjacent: fence",
         memory->name, number);
}

double span_read(const Span *span, int reader) {
  check_limits(span);
  const uint64_t mask = column_mask(span->first, span->cols);
  double ready = 0;
  bool tails = false;
  for (uint32_t i = 0; i < span->count; i++) {
    const uint32_t number = span->start + i * span->stride;
    Row *row = &span->memory->rows[number];
    if ((row->valid & mask) != mask)
      fail("%s row %u is read (columns %u..%u) before anything wrote %s", span->memory->name, number, span->first,
           span->first + span->cols - 1, row->valid ? "all of them" : "it");
    if (reader == READ_OPERAND) check_settled(span->memory, number); /* stores issue one after the other */
    if (reader == READ_OPERAND && row->writer_fence == machine.fence_count && row->writer_start != span->start)
      fail("%s row %u was written by a compute whose result starts at row %u, and is read from row %u on "
           "without a fence: the hardware only tracks equal start rows",
           span->memory->name, number, row->writer_start, span->start);
    if (reader == READ_COPY) row->copied_fence = machine.fence_count;
    wait_for_load(row);
    tails |= row->tail_load > machine.fence_load;
    touch(span->memory, row);
    if (row->ready > ready) ready = row->ready;
    if (reader != READ_ACCUMULATE && row->settled > ready) ready = row->settled;
  }
  if (tails && machine.funct == machine.issued) check_tails(span); /* hardware loops order their own loads */
  return ready;
}

static void check_not_copied(const Memory *memory, uint32_t number) {
  if (memory->rows[number].copied_fence == machine.fence_count)
    fail("%s row %u is overwritten while STORE_SPAD may still read it, or an mvout that pools across the middle of the "
         "accumulator: fence, or alternate accumulator rows",
         memory->name, number);
}

double span_load(const Span *span, bool accumulate) {
  check_limits(span);
  const uint64_t mask = column_mask(span->first, span->cols);
  double available = 0;
  for (uint32_t i = 0; i < span->count; i++) {
    const uint32_t number = span->start + i * span->stride;
    Row *row = &span->memory->rows[number];
    if (accumulate && (row->valid & mask) != mask)
      fail("%s row %u is accumulated onto before anything wrote it", span->memory->name, number);
    check_not_copied(span->memory, number);
    check_settled(span->memory, number);
    if (row->load != machine.loads) {
      const bool pending = in_flight(row->load);
      if (pending && !accumulate && (row->loaded & mask))
        fail("%s row %u is loaded again while an earlier mvin of it may be in flight: loads can complete out of "
             "order; fence, or load disjoint rows",
             span->memory->name, number);
      row->loaded = pending ? row->loaded | mask : mask;
      row->load = machine.loads;
    } else {
      row->loaded |= mask;
    }
    row->valid |= mask;
    row->writer_fence = 0;
    if (span->first == 0) row->tail_load = 0; /* further pixels of a packed row leave the first one's mark */
    touch(span->memory, row);
    if (row->ready > available) available = row->ready;
    if (row->free > available) available = row->free;
    if (row->settled > available) available = row->settled;
  }
  return available;
}

void span_untracked(const Span *span) {
  for (uint32_t i = 0; i < span->count; i++)
    span->memory->rows[span->start + i * span->stride].tail_load = machine.loads;
}

void span_strewn(const Span *span) {
  for (uint32_t i = 0; i < span->count; i++) {
    const uint32_t number = span->start + i * span->stride;
    if (number - span->start >= span->count) span->memory->rows[number].strewn_fence = machine.fence_count;
  }
}

double span_write(const Span *span) {
  check_limits(span);
  double available = 0;
  const uint64_t mask = column_mask(span->first, span->cols);
  for (uint32_t i = 0; i < span->count; i++) {
    const uint32_t number = span->start + i * span->stride;
    Row *row = &span->memory->rows[number];
    check_not_copied(span->memory, number);
    if (machine.funct != STORE_SPAD) check_settled(span->memory, number);
    row->valid |= mask;
    wait_for_load(row);
    touch(span->memory, row);
    if (row->ready > available) available = row->ready;
    if (row->free > available) available = row->free;
  }
  return available;
}

void loads_over(uint32_t last_load) {
  if (last_load > machine.fence_load) machine.fence_load = last_load;
}

void span_computed(const Span *span) {
  for (uint32_t i = 0; i < span->count; i++) {
    Row *row = &span->memory->rows[span->start + i * span->stride];
    row->writer_start = span->start;
    row->writer_fence = machine.fence_count;
  }
}

void span_ready(const Span *span, double cycle) {
  for (uint32_t i = 0; i < span->count; i++) span->memory->rows[span->start + i * span->stride].ready = cycle;
}

void span_settled(const Span *span, double cycle) {
  for (uint32_t i = 0; i < span->count; i++) span->memory->rows[span->start + i * span->stride].settled = cycle;
}

void span_free(const Span *span, double cycle) {
  for (uint32_t i = 0; i < span->count; i++) {
    Row *row = &span->memory->rows[span->start + i * span->stride];
    if (row->free < cycle) row->free = cycle;
  }
}
