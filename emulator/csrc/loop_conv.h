/* LOOP_CONV_WS: a tile of a convolution. */
#ifndef FADIFF_LOOP_CONV_H
#define FADIFF_LOOP_CONV_H

#include "instruction.h"

/* Sends the tile's instructions to `execute`. */
void loop_conv(uint64_t rs1, uint64_t rs2, Execute *execute);

#endif
