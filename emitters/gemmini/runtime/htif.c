/* Console and exit of a bare-metal program on Spike: HTIF, for picolibc.
 * Other runtimes (Chipyard's riscv-tests, your board's) bring their own: leave this file out
 * (make riscv RISCV_RUNTIME=...). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The simulator finds these two by name. */
volatile uint64_t tohost __attribute__((aligned(64)));
volatile uint64_t fromhost __attribute__((aligned(64)));

static int put(char c, FILE *file)
{
    (void)file;
    while (tohost != 0) {
        fromhost = 0;
    }
    tohost = UINT64_C(0x0101000000000000) | (unsigned char)c; /* device 1 (console), command 1 (write) */
    return c;
}

static FILE console = FDEV_SETUP_STREAM(put, NULL, NULL, _FDEV_SETUP_WRITE);
/* used: with -flto the C library's calls of them come too late to keep them. */
__attribute__((used)) FILE *const stdin = &console;
__attribute__((used)) FILE *const stdout = &console;
__attribute__((used)) FILE *const stderr = &console;

_Noreturn void _exit(int code)
{
    while (tohost != 0) {
        fromhost = 0;
    }
    for (;;) {
        tohost = (uint64_t)(unsigned int)code << 1 | 1;
    }
}

/* mstatus.XS: without it every custom instruction traps. */
__attribute__((constructor)) static void enable_gemmini(void)
{
    const uint64_t xs = UINT64_C(3) << 15;
    __asm__ volatile("csrs mstatus, %0" ::"r"(xs));
}
