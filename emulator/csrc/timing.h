/* Estimate of cycles.  Not RTL-accurate: see timing.c for what it models. */
#ifndef FADIFF_TIMING_H
#define FADIFF_TIMING_H

#include <stdbool.h>
#include <stdint.h>

#include "dram.h"

enum { LOAD_QUEUE, EXECUTE_QUEUE, STORE_QUEUE, NUM_QUEUES };

void timing_reset(void);
/* The core issued one instruction, or one of those that a hardware loop needs. */
void timing_issue(bool of_loop);
/* The core did something else. */
void timing_compute(double cycles);
double timing_host_busy(void);
/* That was LOOP_WS or LOOP_CONV_WS; what executes until the end are the instructions it sends. */
void timing_loop(uint32_t funct);
void timing_loop_end(void);
/* An instruction whose operands are there at `operands` takes an entry of a queue: its earliest start. */
double timing_start(int queue, double operands);
/* Rows of a load go into a scratchpad bank from one cycle to another. */
void timing_write(uint32_t bank, double start, double end, double rows);
/* When a pair of preload and compute that could start at `start` gets a place in the mesh; */
double timing_array(double start);
/* its result can be stored at `cycle`. */
void timing_result(double cycle);
/* When so many rows of a bank are read from `start` on; a bank has one port, and loads go first. */
double timing_read(uint32_t bank, double start, double rows);
/* CONFIG takes an entry and gives it back when those before it are out of its way. */
void timing_configure(int queue);
/* End of the DMA transfer of a load or store that starts at `start`. */
double timing_dma(int queue, double start, const Transfer *transfer);
/* The queue is busy from start to end; the entries taken are given back at `retired` (a load: its rows are there). */
void timing_finish(int queue, double start, double end, double retired);
/* Everything must be over before the core goes on. */
void timing_fence(void);
double timing_now(void);
double timing_busy(int queue);

#endif
