/* Console and exit of a bare-metal program on Spike: HTIF, for picolibc.
 * Other runtimes (Chipyard's riscv-tests, your board's) bring their own: leave this file out
 * (make riscv RISCV_RUNTIME=...). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The simulator finds these two by name. */
volatile uint64_t tohost __attribute__((aligned(64)));
volatile uint64_t fromhost __attribute__((aligned(64)));

/* A line, or a part of one, which the host reads from memory at once: a call of it takes long on RTL. */
static char line[256];
static uint64_t length;

/* System call `write` of the lines to standard output; memory holds its number and arguments. */
static void flush(void)
{
    static volatile uint64_t call[8] __attribute__((aligned(64)));
    if (length == 0) {
        return;
    }
    call[0] = 64;
    call[1] = 1;
    call[2] = (uintptr_t)line;
    call[3] = length;
    __asm__ volatile("fence" ::: "memory");
    fromhost = 0;
    tohost = (uintptr_t)call;
    while (fromhost == 0) {
    }
    fromhost = 0;
    length = 0;
}

static int put(char c, FILE *file)
{
    (void)file;
    line[length++] = c;
    if (c == '\n' || length == sizeof line) {
        flush();
    }
    return c;
}

static FILE console = FDEV_SETUP_STREAM(put, NULL, NULL, _FDEV_SETUP_WRITE);
/* used: with -flto the C library's calls of them come too late to keep them. */
__attribute__((used)) FILE *const stdin = &console;
__attribute__((used)) FILE *const stdout = &console;
__attribute__((used)) FILE *const stderr = &console;

_Noreturn void _exit(int code)
{
    flush();
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
