/* Instructions as they arrive: functs and the bits of their registers. */
#ifndef FADIFF_INSTRUCTION_H
#define FADIFF_INSTRUCTION_H

#include <stdbool.h>
#include <stdint.h>

enum {
  CONFIG = 0, MVIN2 = 1, MVIN = 2, MVOUT = 3, COMPUTE_PRELOADED = 4, COMPUTE_ACCUMULATED = 5, PRELOAD = 6,
  FLUSH = 7, LOOP_WS = 8, LOOP_WS_BOUNDS = 9, LOOP_WS_ADDRS_AB = 10, LOOP_WS_ADDRS_DC = 11,
  LOOP_WS_STRIDES_AB = 12, LOOP_WS_STRIDES_DC = 13, MVIN3 = 14, LOOP_CONV_WS = 15, LOOP_CONV_WS_1 = 16,
  LOOP_CONV_WS_6 = 21, CLKGATE_EN = 22, STORE_SPAD = 23, LOOP_WS_SPAD_AB = 24, LOOP_WS_SPAD_C = 25, COUNTER = 126,
  CORE_ACCESS = 127 /* no instruction: the core is about to read memory */
};
enum { CONFIG_EX = 0, CONFIG_LD = 1, CONFIG_ST = 2, CONFIG_NORM = 3 };

enum { LAYERNORM = 2, IGELU = 3 }; /* activations of CONFIG_ST beside none and ReLU */
enum { OUTPUT_STATIONARY = 0, WEIGHT_STATIONARY = 1 };

#define GARBAGE 0xFFFFFFFFu
#define ACC_BIT (1u << 31)
#define ACCUMULATE_BIT (1u << 30)
#define FULL_WIDTH_BIT (1u << 29)

/* rs1 or rs2 of a move or compute: local address, columns, rows. */
typedef struct {
  bool garbage, accumulator, accumulate, full_width;
  uint32_t norm, row, cols, rows;
} Operand;

/* Executes one instruction: the hardware loops are given where to send those they unroll into. */
typedef void Execute(uint32_t funct, uint64_t rs1, uint64_t rs2);

/* Bits [low, low + width) of an instruction register. */
static inline uint32_t field(uint64_t bits, uint32_t low, uint32_t width) {
  return (uint32_t)(bits >> low & ((1ull << width) - 1));
}

static inline Operand decode(uint64_t bits) {
  return (Operand){
      .garbage = (uint32_t)bits == GARBAGE,
      .accumulator = field(bits, 31, 1),
      .accumulate = field(bits, 30, 1),
      .full_width = field(bits, 29, 1),
      .norm = field(bits, 26, 3),
      .row = field(bits, 0, 26),
      .cols = field(bits, 32, 16),
      .rows = field(bits, 48, 16),
  };
}

static inline uint64_t encode(uint32_t address, uint32_t cols, uint32_t rows) {
  return (uint64_t)rows << 48 | (uint64_t)cols << 32 | address;
}

#endif
