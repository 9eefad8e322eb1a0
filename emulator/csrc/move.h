/* Moves between DRAM and local memory, and from the accumulator to the scratchpad. */
#ifndef FADIFF_MOVE_H
#define FADIFF_MOVE_H

#include <stdint.h>

/* MVIN of load state 0, 1 or 2. */
void move_in(uint64_t rs1, uint64_t rs2, int state);
void move_out(uint64_t rs1, uint64_t rs2);
void store_to_spad(uint64_t rs1, uint64_t rs2);

#endif
