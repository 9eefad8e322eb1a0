/* Stand-in for IBM rocc-software's xcustom.h.
 *
 * On RISC-V the macros emit the custom instruction.  Anywhere else they call the functional model,
 * so that a program written against gemmini.h (this project's or Chipyard's) builds and runs
 * unchanged on the host; link it with the emulator library. */
#ifndef FADIFF_XCUSTOM_H
#define FADIFF_XCUSTOM_H

#include <stdint.h>

#define FADIFF_STRING(x) #x
#define FADIFF_EXPANDED(x) FADIFF_STRING(x)

#ifdef __riscv

/* Opcodes as numbers: clang's assembler does not know the names CUSTOM_0 to CUSTOM_3. */
#define FADIFF_OPCODE_0 0x0b
#define FADIFF_OPCODE_1 0x2b
#define FADIFF_OPCODE_2 0x5b
#define FADIFF_OPCODE_3 0x7b
#define FADIFF_PASTED(x) FADIFF_OPCODE_##x
#define FADIFF_OPCODE(x) FADIFF_EXPANDED(FADIFF_PASTED(x))

#define ROCC_INSTRUCTION_0_R_R(x, rs1, rs2, funct)                                                         \
  {                                                                                                        \
    __asm__ volatile(".insn r " FADIFF_OPCODE(x) ", 3, " FADIFF_EXPANDED(funct) ", x0, %0, %1"             \
                     :                                                                                     \
                     : "r"((uint64_t)(rs1)), "r"((uint64_t)(rs2))                                          \
                     : "memory");                                                                          \
  }
#define ROCC_INSTRUCTION_R_R_R(x, rd, rs1, rs2, funct)                                                     \
  {                                                                                                        \
    uint64_t fadiff_result;                                                                                \
    __asm__ volatile(".insn r " FADIFF_OPCODE(x) ", 7, " FADIFF_EXPANDED(funct) ", %0, %1, %2"             \
                     : "=r"(fadiff_result)                                                                 \
                     : "r"((uint64_t)(rs1)), "r"((uint64_t)(rs2))                                          \
                     : "memory");                                                                          \
    (rd) = fadiff_result;                                                                                  \
  }

#else /* host: the functional model */

#ifdef __cplusplus
extern "C" {
#endif
uint64_t fadiff_rocc(uint32_t funct, uint64_t rs1, uint64_t rs2);
void fadiff_fence(void);
uint64_t fadiff_cycles(void);
void fadiff_configure_from_header(uint32_t dim, uint32_t bank_num, uint32_t bank_rows, uint32_t acc_rows,
                                  uint32_t max_block_len, uint32_t max_block_len_acc, int is_float,
                                  int has_mvin_scale);
#ifdef __cplusplus
}
#endif

#define ROCC_INSTRUCTION_0_R_R(x, rs1, rs2, funct) \
  { (void)fadiff_rocc((funct), (uint64_t)(rs1), (uint64_t)(rs2)); }
#define ROCC_INSTRUCTION_R_R_R(x, rd, rs1, rs2, funct) \
  { (rd) = fadiff_rocc((funct), (uint64_t)(rs1), 0); }

/* Chipyard's gemmini.h writes fences and cycle reads as assembly: teach the assembler what they mean
 * here.  The trampolines keep every register, as the instructions they stand for would; the calls go
 * through the global offset table because lazy binding would not. */
#if defined(__x86_64__)
__asm__(".macro fence\n"
        "  leaq -128(%rsp), %rsp\n" /* step over the red zone */
        "  call *fadiff_fence_instruction@GOTPCREL(%rip)\n"
        "  leaq 128(%rsp), %rsp\n"
        ".endm\n"
        ".macro rdcycle register\n"
        "  leaq -128(%rsp), %rsp\n"
        "  pushq %rax\n"
        "  call *fadiff_rdcycle_instruction@GOTPCREL(%rip)\n"
        "  xchgq %rax, (%rsp)\n"
        "  popq \\register\n"
        "  leaq 128(%rsp), %rsp\n"
        ".endm\n");
#elif defined(__aarch64__)
__asm__(".macro fence\n"
        "  stp x29, x30, [sp, #-32]!\n"
        "  str x16, [sp, #16]\n"
        "  adrp x16, :got:fadiff_fence_instruction\n"
        "  ldr x16, [x16, :got_lo12:fadiff_fence_instruction]\n"
        "  blr x16\n"
        "  ldr x16, [sp, #16]\n"
        "  ldp x29, x30, [sp], #32\n"
        ".endm\n");
#endif

/* A program that includes gemmini_params.h configures the machine it was written for, unless
 * whoever loaded it already has. */
#ifdef DIM
#ifdef ELEM_T_IS_FLOAT
#define FADIFF_IS_FLOAT 1
#else
#define FADIFF_IS_FLOAT 0
#endif
#ifdef HAS_MVIN_SCALE
#define FADIFF_HAS_MVIN_SCALE 1
#else
#define FADIFF_HAS_MVIN_SCALE 0
#endif
__attribute__((constructor)) static void fadiff_configure_program(void) {
  fadiff_configure_from_header(DIM, BANK_NUM, BANK_ROWS, ACC_ROWS, MAX_BLOCK_LEN, MAX_BLOCK_LEN_ACC, FADIFF_IS_FLOAT,
                               FADIFF_HAS_MVIN_SCALE);
}
#endif

#endif

#define ROCC_INSTRUCTION(x, rd, rs1, rs2, funct) ROCC_INSTRUCTION_R_R_R(x, rd, rs1, rs2, funct)

#endif
