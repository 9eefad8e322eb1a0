/* Programming interface of a Gemmini accelerator: the names and argument orders of the public
 * gemmini.h, so that one program builds against either.
 *
 * include/gemmini_params.h describes the instance (FADiff generates it from a target).  All strides
 * and tile sizes follow the public header's conventions: strides in elements, matmul tiles in DIM
 * blocks, convolution and addition tiles in elements. */
#ifndef FADIFF_GEMMINI_H
#define FADIFF_GEMMINI_H

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "include/gemmini_params.h"
#include "rocc-software/src/xcustom.h"

#include "include/gemmini_counter.h"
#include "include/gemmini_instructions.h"

/* Where a tiled function runs; OS and WS equal the dataflow bit of config_ex. */
enum tiled_matmul_type_t { OS, WS, CPU };

#include "include/gemmini_cpu.h"
#include "include/gemmini_matmul.h"

#include "include/gemmini_conv.h"
#include "include/gemmini_conv_auto.h"

#include "include/gemmini_elementwise.h"

#endif
