/* What the assembler macros of xcustom.h call: C functions that clobber no register. */
#if defined(__x86_64__)
#define KEEP_ALL_BUT_RAX                                                                          \
  "  pushq %rbp\n  movq %rsp, %rbp\n"                                                             \
  "  pushq %rcx\n  pushq %rdx\n  pushq %rsi\n  pushq %rdi\n"                                      \
  "  pushq %r8\n  pushq %r9\n  pushq %r10\n  pushq %r11\n  pushfq\n"                              \
  "  subq $640, %rsp\n  andq $-64, %rsp\n  fxsave64 (%rsp)\n  cld\n"
#define RESTORE_ALL_BUT_RAX                                                                       \
  "  fxrstor64 (%rsp)\n  leaq -72(%rbp), %rsp\n  popfq\n"                                         \
  "  popq %r11\n  popq %r10\n  popq %r9\n  popq %r8\n"                                            \
  "  popq %rdi\n  popq %rsi\n  popq %rdx\n  popq %rcx\n  popq %rbp\n"

/* fxsave keeps the lower halves of vector registers only: the model is compiled without AVX. */
__asm__(".text\n.globl fadiff_fence_instruction\n.type fadiff_fence_instruction, @function\n"
        "fadiff_fence_instruction:\n"
        "  pushq %rax\n" KEEP_ALL_BUT_RAX
        "  call fadiff_fence@PLT\n" RESTORE_ALL_BUT_RAX
        "  popq %rax\n  ret\n"
        ".globl fadiff_rdcycle_instruction\n.type fadiff_rdcycle_instruction, @function\n"
        "fadiff_rdcycle_instruction:\n" KEEP_ALL_BUT_RAX
        "  call fadiff_cycles@PLT\n" RESTORE_ALL_BUT_RAX
        "  ret\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl fadiff_fence_instruction\n"
        "fadiff_fence_instruction:\n"
        "  stp x29, x30, [sp, #-160]!\n"
        "  stp x0, x1, [sp, #16]\n  stp x2, x3, [sp, #32]\n  stp x4, x5, [sp, #48]\n"
        "  stp x6, x7, [sp, #64]\n  stp x8, x9, [sp, #80]\n  stp x10, x11, [sp, #96]\n"
        "  stp x12, x13, [sp, #112]\n  stp x14, x15, [sp, #128]\n  stp x16, x17, [sp, #144]\n"
        "  sub sp, sp, #512\n"
        "  stp q0, q1, [sp]\n  stp q2, q3, [sp, #32]\n  stp q4, q5, [sp, #64]\n  stp q6, q7, [sp, #96]\n"
        "  stp q16, q17, [sp, #128]\n  stp q18, q19, [sp, #160]\n  stp q20, q21, [sp, #192]\n"
        "  stp q22, q23, [sp, #224]\n  stp q24, q25, [sp, #256]\n  stp q26, q27, [sp, #288]\n"
        "  stp q28, q29, [sp, #320]\n  stp q30, q31, [sp, #352]\n"
        "  bl fadiff_fence\n"
        "  ldp q0, q1, [sp]\n  ldp q2, q3, [sp, #32]\n  ldp q4, q5, [sp, #64]\n  ldp q6, q7, [sp, #96]\n"
        "  ldp q16, q17, [sp, #128]\n  ldp q18, q19, [sp, #160]\n  ldp q20, q21, [sp, #192]\n"
        "  ldp q22, q23, [sp, #224]\n  ldp q24, q25, [sp, #256]\n  ldp q26, q27, [sp, #288]\n"
        "  ldp q28, q29, [sp, #320]\n  ldp q30, q31, [sp, #352]\n"
        "  add sp, sp, #512\n"
        "  ldp x0, x1, [sp, #16]\n  ldp x2, x3, [sp, #32]\n  ldp x4, x5, [sp, #48]\n"
        "  ldp x6, x7, [sp, #64]\n  ldp x8, x9, [sp, #80]\n  ldp x10, x11, [sp, #96]\n"
        "  ldp x12, x13, [sp, #112]\n  ldp x14, x15, [sp, #128]\n  ldp x16, x17, [sp, #144]\n"
        "  ldp x29, x30, [sp], #160\n  ret\n");
#endif
