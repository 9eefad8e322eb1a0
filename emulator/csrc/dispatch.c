/* Instructions in, effects out. */
#include <stdio.h>
#include <stdlib.h>

#include "compute.h"
#include "config.h"
#include "counters.h"
#include "dram.h"
#include "fail.h"
#include "loop_conv.h"
#include "loop_matmul.h"
#include "machine.h"
#include "move.h"
#include "timing.h"

static void execute(uint32_t funct, uint64_t rs1, uint64_t rs2) {
  machine.funct = funct;
  machine.rs1 = rs1;
  machine.rs2 = rs2;
  machine.executed[funct % NUM_FUNCTS]++;
  switch (funct) {
    case CONFIG:
      configure(rs1, rs2);
      break;
    case MVIN:
      move_in(rs1, rs2, 0);
      break;
    case MVIN2:
      move_in(rs1, rs2, 1);
      break;
    case MVIN3:
      move_in(rs1, rs2, 2);
      break;
    case MVOUT:
      move_out(rs1, rs2);
      break;
    case STORE_SPAD:
      store_to_spad(rs1, rs2);
      break;
    case PRELOAD:
      preload(rs1, rs2);
      break;
    case COMPUTE_PRELOADED:
      compute(rs1, rs2, true);
      break;
    case COMPUTE_ACCUMULATED:
      compute(rs1, rs2, false);
      break;
    case LOOP_WS_BOUNDS:
    case LOOP_WS_ADDRS_AB:
    case LOOP_WS_ADDRS_DC:
    case LOOP_WS_STRIDES_AB:
    case LOOP_WS_STRIDES_DC:
      machine.loop_ws[2 * (funct - LOOP_WS_BOUNDS)] = rs1;
      machine.loop_ws[2 * (funct - LOOP_WS_BOUNDS) + 1] = rs2;
      break;
    case LOOP_WS:
      timing_loop(funct);
      loop_matmul(rs1, rs2, execute);
      timing_loop_end();
      break;
    case LOOP_CONV_WS:
      timing_loop(funct);
      loop_conv(rs1, rs2, execute);
      timing_loop_end();
      break;
    case FLUSH: /* TLB only */
    case CLKGATE_EN:
    case LOOP_WS_SPAD_C: /* has no effect in the RTL */
      break;
    case LOOP_WS_SPAD_AB:
      loop_matmul_place(rs1, rs2);
      break;
    default:
      if (funct >= LOOP_CONV_WS_1 && funct <= LOOP_CONV_WS_6) {
        machine.loop_conv[2 * (funct - LOOP_CONV_WS_1)] = rs1;
        machine.loop_conv[2 * (funct - LOOP_CONV_WS_1) + 1] = rs2;
        break;
      }
      fail("no instruction has funct %u", funct);
  }
}

static bool ready(void) {
  if (machine.configured) return !machine.failed;
  fprintf(stderr, "gemmini emulator: an instruction before fadiff_configure()\n");
  exit(1);
}

static bool is_of_loop(uint32_t funct) {
  return (funct >= LOOP_WS && funct <= LOOP_WS_STRIDES_DC) || (funct >= LOOP_CONV_WS && funct <= LOOP_CONV_WS_6) ||
         funct == LOOP_WS_SPAD_AB || funct == LOOP_WS_SPAD_C;
}

uint64_t fadiff_rocc(uint32_t funct, uint64_t rs1, uint64_t rs2) {
  if (!ready()) return 0;
  machine.counts.core_instructions++;
  machine.issued = funct;
  timing_issue(is_of_loop(funct));
  if (funct == COUNTER) {
    machine.executed[COUNTER]++;
    return counter_instruction(rs1);
  }
  if (!setjmp(machine.abandon)) execute(funct, rs1, rs2);
  return 0;
}

void fadiff_compute(double cycles) {
  if (ready()) timing_compute(cycles);
}

void fadiff_fence(void) {
  if (!ready()) return;
  machine.counts.fences++;
  machine.fence_load = machine.loads;
  machine.fence_count++;
  dram_fence();
  timing_fence();
}
