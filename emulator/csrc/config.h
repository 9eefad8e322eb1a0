/* CONFIG: sets what moves, computes and stores do. */
#ifndef FADIFF_CONFIG_H
#define FADIFF_CONFIG_H

#include <stdint.h>

void configure(uint64_t rs1, uint64_t rs2);

#endif
