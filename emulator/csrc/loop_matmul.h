/* LOOP_WS: a tile of a matrix product. */
#ifndef FADIFF_LOOP_MATMUL_H
#define FADIFF_LOOP_MATMUL_H

#include "instruction.h"

/* Sends the tile's instructions to `execute`. */
void loop_matmul(uint64_t rs1, uint64_t rs2, Execute *execute);
/* LOOP_WS_CONFIG_SPAD_AB: where the next tile's operands lie. */
void loop_matmul_place(uint64_t rs1, uint64_t rs2);

#endif
