/* On RISC-V Linux without a Gemmini (an emulator in user mode, say): its instructions are illegal there, and the
 * signal handler executes them on the model.  Compiled into the program with the model's other sources; fences of the
 * core raise no signal, so that every instruction counts as fenced. */
#if defined(__riscv) && defined(__linux__)
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "fadiff_emulator.h"
#include "include/gemmini_params.h"

#ifdef ELEM_T_IS_FLOAT
#define IS_FLOAT 1
#else
#define IS_FLOAT 0
#endif

static const uint32_t opcodes[] = {0x0b, 0x2b, 0x5b, 0x7b};

static void execute(int number, siginfo_t *info, void *context) {
  unsigned long *registers = ((ucontext_t *)context)->uc_mcontext.__gregs; /* 0: program counter */
  uint32_t instruction;
  (void)info;
  memcpy(&instruction, (const void *)registers[0], sizeof instruction);
  if ((instruction & 0x7f) != opcodes[XCUSTOM_ACC]) {
    signal(number, SIG_DFL); /* comes again, and ends the program */
    return;
  }
  const uint32_t rd = instruction >> 7 & 31, rs1 = instruction >> 15 & 31, rs2 = instruction >> 20 & 31;
  fadiff_fence();
  const uint64_t result = fadiff_rocc(instruction >> 25, rs1 ? registers[rs1] : 0, rs2 ? registers[rs2] : 0);
  if ((instruction & 1u << 14) && rd) registers[rd] = result;
  registers[0] += sizeof instruction;
}

__attribute__((constructor)) static void install(void) {
  struct sigaction action = {.sa_sigaction = execute, .sa_flags = SA_SIGINFO};
  fadiff_configure_from_header(DIM, BANK_NUM, BANK_ROWS, ACC_ROWS, MAX_BLOCK_LEN, MAX_BLOCK_LEN_ACC, IS_FLOAT,
#ifdef HAS_MVIN_SCALE
                               1);
#else
                               0);
#endif
  sigaction(SIGILL, &action, NULL);
}
#endif
