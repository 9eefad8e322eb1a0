/* memset and memcpy of a bare-metal program, eight bytes at a time.
 * picolibc is built for size: its own take a byte at a time, and start-up, which clears the activations and copies the
 * initialised data, then takes longer than a small program's run.  On an RTL simulator that is minutes. */
#include <stddef.h>
#include <stdint.h>

typedef uint64_t __attribute__((may_alias)) word;

/* Keeps the compiler from calling the very function that it compiles. */
#define KEEP_LOOP() __asm__ volatile("")

void *memset(void *to, int value, size_t bytes);
void *memcpy(void *restrict to, const void *restrict from, size_t bytes);

void *memset(void *to, int value, size_t bytes)
{
    unsigned char *at = to, *const end = at + bytes;
    const uint64_t pattern = (unsigned char)value * UINT64_C(0x0101010101010101);
    for (; at < end && (uintptr_t)at % sizeof(word) != 0; at++) {
        *at = (unsigned char)value;
        KEEP_LOOP();
    }
    for (; (size_t)(end - at) >= sizeof(word); at += sizeof(word)) {
        *(word *)(void *)at = pattern;
        KEEP_LOOP();
    }
    for (; at < end; at++) {
        *at = (unsigned char)value;
        KEEP_LOOP();
    }
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t bytes)
{
    unsigned char *at = to, *const end = at + bytes;
    const unsigned char *source = from;
    const size_t apart = (uintptr_t)at % sizeof(word) ^ (uintptr_t)source % sizeof(word);
    if (apart == 0) { /* else one of them is never aligned, and Rocket traps */
        for (; at < end && (uintptr_t)at % sizeof(word) != 0; at++, source++) {
            *at = *source;
            KEEP_LOOP();
        }
        for (; (size_t)(end - at) >= sizeof(word); at += sizeof(word), source += sizeof(word)) {
            *(word *)(void *)at = *(const word *)(const void *)source;
            KEEP_LOOP();
        }
    }
    for (; at < end; at++, source++) {
        *at = *source;
        KEEP_LOOP();
    }
    return to;
}
