/* The performance counters. */
#ifndef FADIFF_COUNTERS_H
#define FADIFF_COUNTERS_H

#include <stdint.h>

uint64_t counter_instruction(uint64_t rs1);
void counters_reset(void);

#endif
