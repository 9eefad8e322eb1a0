/* PRELOAD and COMPUTE: blocks through the array. */
#ifndef FADIFF_COMPUTE_H
#define FADIFF_COMPUTE_H

#include <stdbool.h>
#include <stdint.h>

void preload(uint64_t rs1, uint64_t rs2);
/* `flip`: the preloaded matrix becomes the stationary one first. */
void compute(uint64_t rs1, uint64_t rs2, bool flip);

#endif
