/* The first error: it names the instruction and its layer, and stops the machine. */
#ifndef FADIFF_FAIL_H
#define FADIFF_FAIL_H

_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
