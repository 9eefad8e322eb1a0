/* Estimate of cycles.
 *
 * The core issues instructions into a command queue and waits while it is full; each takes it issue_cycles (of hardware
 * loops: loop_issue_cycles), operators that it runs itself what fadiff_compute says.  They leave it in order,
 * each for an entry of the reservation station's load, execute or store queue: one whose queue has none
 * left holds up all behind it, whatever queue they go to.  An instruction gives its entry back when it has
 * completed; PRELOAD and COMPUTE have one each, a CONFIG of loads keeps its own only until it issues.
 * A hardware loop sends to each queue as entries become free, LOOP_CONV_WS products only after all loads,
 * stores after all products.  Two calls of a kind may be sending; everything else waits for them.
 *
 * The three queues run side by side:
 * - an instruction starts in order within its queue, when it has an entry and its local-memory rows are
 *   ready (read after write) and free (write after read);
 * - a DMA transfer takes what its requests (a power of two from 16 to 64 bytes, aligned, of one row) carry over
 *   the bus, request_cycles more for each that loads, or what the cache lacks over the DRAM bandwidth;
 * - a load takes no less than a cycle for every 64 bytes of a local row and copy of a packed pixel; its rows are ready
 *   load_latency later, and the next but ROWS_IN_FLIGHT / dim waits for that;
 * - a store takes no less than store_row_cycles for every row it reads, and is over store_latency later;
 * - a preload+compute pair takes max(rows, 4) cycles, max(rows, dim) when it brings new weights, and one more for
 *   every row that loads write meanwhile into the bank that it reads (one port, writes first); its result can be
 *   stored array_latency later, and the next but PAIRS_UNDER_WAY - 1 waits for that;
 * - between two fences no less time passes than what the cache lacks takes from DRAM; a fence takes the core
 *   fence_cycles more.
 * TLB misses, conflicts in the accumulator (a store waits while the array accumulates in its bank) and lines that
 * stores fetch are not modelled.
 */
#include "timing.h"

#include <math.h>

#include "machine.h"

/* Between the core and the reservation station: five queues of two, one in rocket-chip's RoccCommandRouter
 * and four in Gemmini's Controller.scala (raw_cmd_q, those of LoopConv and LoopMatmul, unrolled_cmd). */
#define COMMAND_QUEUE 10

/* Calls of a hardware loop that may be under way: concurrent_loops of LoopConv.scala and LoopMatmul.scala. */
#define CONCURRENT_LOOPS 2

/* max_in_flight_mem_reqs of Gemmini's default configuration: LoadController.scala lets this over dim, and one more
 * load, be under way. */
#define ROWS_IN_FLIGHT 16

/* Results that the mesh may still have in it: max_simultaneous_matmuls of MeshWithDelays.scala. */
#define PAIRS_UNDER_WAY 5

/* Loads that the array may meet in a bank of the scratchpad. */
#define WRITES 4096

typedef struct {
  uint32_t bank;
  double start, end, rows;
} Write;

static struct {
  double core;                /* when the core issued its last instruction */
  double host;                /* how long it did something else */
  double left[COMMAND_QUEUE]; /* ring: when each instruction left the command queue */
  uint32_t issued;
  double head;                /* when the last one left it */
  double entered[NUM_QUEUES]; /* when the last instruction entered the reservation station, */
  double ready[NUM_QUEUES];   /* and when it could issue: operands there, those before it issued */
  double free[NUM_QUEUES], busy[NUM_QUEUES];
  double taken[NUM_QUEUES][MAX_QUEUE]; /* until when each entry is; infinity: not known yet */
  struct {
    uint32_t funct, calls; /* LOOP_WS or LOOP_CONV_WS, and how many so far */
    bool sending;          /* or the core is */
    double start;
    double sent[CONCURRENT_LOOPS]; /* ring: when each call had sent everything */
  } loop;
  double landed[ROWS_IN_FLIGHT + 1]; /* ring: when the rows of each load were there */
  uint32_t loads;
  double results[PAIRS_UNDER_WAY]; /* ring: when that of each pair could be stored */
  uint32_t pairs;
  Write writes[WRITES]; /* ring, in order of time */
  uint32_t first_write, last_write;
  double last_retired;
  double fence;             /* time of the last fence */
  double dram;              /* bytes moved since */
} timing;

void timing_reset(void) { memset(&timing, 0, sizeof timing); }

static double latest(double a, double b) { return a > b ? a : b; }

void timing_issue(bool of_loop) {
  const double cycles = of_loop ? machine.config.loop_issue_cycles : machine.config.issue_cycles;
  timing.left[(timing.issued + COMMAND_QUEUE - 1) % COMMAND_QUEUE] = timing.head; /* of the one before */
  timing.core = latest(timing.core + cycles, timing.left[timing.issued % COMMAND_QUEUE]);
  timing.issued++;
}

void timing_compute(double cycles) {
  timing.core += cycles;
  timing.host += cycles;
}

double timing_host_busy(void) { return timing.host; }

/* When everything sent so far has entered its queue. */
static double all_entered(void) {
  double last = 0;
  for (int queue = 0; queue < NUM_QUEUES; queue++) last = latest(last, timing.entered[queue]);
  return last;
}

void timing_loop(uint32_t funct) {
  timing.head = latest(timing.head, timing.core);
  timing.head = latest(timing.head, timing.loop.sent[timing.loop.calls % CONCURRENT_LOOPS]);
  if (funct != timing.loop.funct) timing.head = latest(timing.head, all_entered());
  timing.loop.funct = funct;
  timing.loop.start = timing.head;
  timing.loop.sending = true;
}

void timing_loop_end(void) {
  timing.loop.sent[timing.loop.calls++ % CONCURRENT_LOOPS] = all_entered();
  timing.loop.sending = false;
  timing.head = timing.loop.start; /* the next call may send what this one no longer does */
}

static uint32_t entries(int queue) {
  const uint32_t sizes[NUM_QUEUES] = {machine.config.load_queue, machine.config.execute_queue,
                                      machine.config.store_queue};
  return sizes[queue];
}

/* Takes the entry that is free first. */
static double enter(int queue) {
  double *taken = timing.taken[queue];
  uint32_t entry = 0;
  for (uint32_t i = 1; i < entries(queue); i++)
    if (taken[i] < taken[entry]) entry = i;
  const bool any_order = timing.loop.sending && timing.loop.funct == LOOP_WS;
  const double before = timing.loop.sending ? timing.entered[queue] : latest(timing.core, all_entered());
  const double now = latest(taken[entry], latest(timing.head, before));
  taken[entry] = INFINITY;
  timing.entered[queue] = now;
  if (!any_order) timing.head = now; /* LOOP_CONV_WS sends loads, then products, then stores */
  return now;
}

static void give_back(int queue, double cycle) {
  for (uint32_t i = 0; i < entries(queue); i++)
    if (timing.taken[queue][i] == INFINITY) timing.taken[queue][i] = cycle;
}

/* Of the load that has to be over before the next one starts. */
static double *landed(void) {
  return &timing.landed[timing.loads % (ROWS_IN_FLIGHT / machine.config.dim + 1)];
}

double timing_start(int queue, double operands) {
  timing.ready[queue] = latest(timing.ready[queue], latest(enter(queue), operands));
  const double start = latest(timing.ready[queue], timing.free[queue]);
  return queue == LOAD_QUEUE ? latest(start, *landed()) : start;
}

double timing_array(double start) { return latest(start, timing.results[timing.pairs % PAIRS_UNDER_WAY]); }

void timing_result(double cycle) { timing.results[timing.pairs++ % PAIRS_UNDER_WAY] = cycle; }

void timing_configure(int queue) {
  const double start = timing_start(queue, 0);
  give_back(queue, queue == LOAD_QUEUE ? timing.ready[queue] : start);
}

double timing_dma(int queue, double start, const Transfer *transfer) {
  const fadiff_config *config = &machine.config;
  timing.dram += transfer->dram_bytes;
  const double between = queue == LOAD_QUEUE ? (double)transfer->requests * config->request_cycles : 0;
  const double bus = (double)transfer->bus_bytes / config->tile_buffer_bytes_per_cycle;
  return start + latest(bus + between, transfer->dram_bytes / config->dram_bytes_per_cycle);
}

void timing_write(uint32_t bank, double start, double end, double rows) {
  Write *last = &timing.writes[(timing.last_write - 1) % WRITES];
  if (timing.last_write != timing.first_write && last->bank == bank && last->start == start) { /* another block of that load */
    last->rows += rows;
    return;
  }
  timing.writes[timing.last_write++ % WRITES] = (Write){bank, start, end, rows};
  if (timing.last_write - timing.first_write > WRITES) timing.first_write++;
}

double timing_read(uint32_t bank, double start, double rows) {
  while (timing.first_write != timing.last_write && timing.writes[timing.first_write % WRITES].end <= start)
    timing.first_write++;
  double end = start + rows;
  for (uint32_t i = timing.first_write; i != timing.last_write; i++) {
    const Write *write = &timing.writes[i % WRITES];
    if (write->start >= end) break; /* loads are in order */
    const double from = latest(start, write->start);
    if (write->bank != bank || write->end <= from) continue;
    const double during = write->end - from, left = end - from; /* cycles, and rows not read yet */
    const double idle = 1 - write->rows / (write->end - write->start); /* share of the cycles without a write */
    end = left < during * idle ? from + left / idle : end + during * (1 - idle);
  }
  return end;
}

void timing_finish(int queue, double start, double end, double retired) {
  timing.free[queue] = end;
  timing.busy[queue] += end - start;
  if (queue == LOAD_QUEUE) {
    *landed() = retired;
    timing.loads++;
  }
  give_back(queue, retired);
  timing.last_retired = latest(timing.last_retired, retired);
}

double timing_now(void) {
  const double moved = timing.dram / machine.config.dram_bytes_per_cycle;
  return latest(latest(timing.core, timing.last_retired), timing.fence + moved);
}

void timing_fence(void) {
  timing.fence = timing_now();
  timing.core = timing.fence + machine.config.fence_cycles;
  timing.dram = 0;
}

double timing_busy(int queue) { return timing.busy[queue]; }
