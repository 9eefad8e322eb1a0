/* `fence` and `rdcycle` written as assembly, as Chipyard's gemmini.h does: both keep every register. */
#include "include/gemmini.h"

#define CHECK(condition) \
    if (!(condition)) {  \
        return __LINE__; \
    }

int main(void)
{
    static elem_t in[DIM][DIM], out[DIM][DIM];
    uint64_t r8, r9, r10, r11, rcx, rdx, rsi, rdi, rax, before = 0, after = 0;
    double xmm = 0;
    gemmini_config_ld(DIM * sizeof(elem_t));
    gemmini_config_st(DIM * sizeof(elem_t));
    in[1][1] = 5;
    __asm__ volatile("rdcycle %0" : "=r"(before));
    gemmini_mvin(in, 0);
    gemmini_mvout(out, 0);
    /* Twice: the first use of a symbol may go through the dynamic linker. */
    for (int i = 0; i < 2; i++) {
        __asm__ volatile(
            "movq $8, %%r8\n movq $9, %%r9\n movq $10, %%r10\n movq $11, %%r11\n movq %%r10, %%xmm5\n"
            "movq $1, %%rcx\n movq $2, %%rdx\n movq $3, %%rsi\n movq $4, %%rdi\n movq $5, %%rax\n"
            "fence\n"
            "movq %%rax, %0\n movq %%rcx, %1\n movq %%rdx, %2\n movq %%rsi, %3\n movq %%rdi, %4\n"
            "movq %%r8, %5\n movq %%r9, %6\n movq %%r10, %7\n movq %%r11, %8\n cvtsi2sdq %%r10, %%xmm6\n"
            "movq %%xmm5, %%r10\n cvtsi2sdq %%r10, %%xmm6\n movsd %%xmm6, %9"
            : "=m"(rax), "=m"(rcx), "=m"(rdx), "=m"(rsi), "=m"(rdi), "=m"(r8), "=m"(r9), "=m"(r10), "=m"(r11), "=m"(xmm)
            :
            : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "xmm5", "xmm6", "memory", "cc");
        CHECK(rax == 5 && rcx == 1 && rdx == 2 && rsi == 3 && rdi == 4)
        CHECK(r8 == 8 && r9 == 9 && r10 == 10 && r11 == 11 && xmm == 10.0)
    }
    CHECK(out[1][1] == 5)
    __asm__ volatile(
        "movq $10, %%r10\n movq $11, %%r11\n movq $5, %%rax\n rdcycle %0\n movq %%rax, %1\n movq %%r10, %2\n movq %%r11, %3"
        : "=&r"(after), "=m"(rax), "=m"(r10), "=m"(r11)
        :
        : "rax", "r10", "r11", "memory", "cc");
    CHECK(rax == 5 && r10 == 10 && r11 == 11)
    CHECK(after > before)
    gemmini_mvin(out, 0); /* fenced: no error */
    return 0;
}
