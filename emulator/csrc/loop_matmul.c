/* LOOP_WS: one weight-stationary tile of a matrix product (or a residual addition), unrolled into
 * the same primitive instructions as the hardware's state machine.
 *
 * Scratchpad: A blocks from the start of a half, B blocks up to the end of a half; accumulator: C
 * blocks in one half.  Without a spad id the half alternates with every call.  The skip, spad_only and
 * inc_acc_addr flags and LOOP_WS_CONFIG_SPAD_AB exist in newer hardware only. */
#include "loop_matmul.h"

#include "fail.h"
#include "local.h"
#include "machine.h"

typedef struct {
  Execute *execute; /* where the instructions go */
  uint32_t I, J, K, pad_I, pad_J, pad_K;
  uint64_t A, B, D, C;
  uint64_t A_stride, B_stride, D_stride, C_stride;
  bool ex_accumulate, full_C, low_D, A_transpose, B_transpose, addition;
  bool skip_A, skip_B, skip_D, skip_products, skip_C;
  bool spad_only;    /* C goes to scratchpad rows from C_spad on */
  bool inc_acc_addr; /* then: use the other accumulator half next */
  uint32_t C_spad;
  uint32_t A_row, B_row; /* first local rows */
  uint32_t D_row, product_row, C_row;
} Tile;

enum { LOAD_D, PRODUCTS, STORE_C }; /* which keep track of the accumulator half on their own */

/* Elements of blocks [first, first + count) of a dimension of `blocks` blocks, the last one padded. */
static uint32_t extent(uint32_t first, uint32_t count, uint32_t blocks, uint32_t pad) {
  return count * machine.config.dim - (first + count == blocks ? pad : 0);
}

static void check_block_stride(uint32_t state, uint32_t blocks) {
  if (blocks > 1 && machine.load[state].block_stride != machine.config.dim)
    fail("LOOP_WS lays blocks DIM=%u rows apart, but load state %u has block_stride %u", machine.config.dim, state,
         machine.load[state].block_stride);
}

/* A dimension of a matrix: its blocks, and by how much the last one is shorter. */
typedef struct {
  uint32_t blocks, pad;
} Side;

/* Moves a matrix in, as many blocks of a row at a time as one mvin takes. */
static void load_matrix(const Tile *tile, uint32_t funct, uint32_t state, uint64_t dram, uint64_t stride,
                        uint32_t address, Side rows, Side cols, uint32_t item, uint32_t most) {
  const uint32_t dim = machine.config.dim;
  check_block_stride(state, minimum(cols.blocks, most));
  for (uint32_t c = 0; c < cols.blocks; c += most)
    for (uint32_t r = 0; r < rows.blocks; r++) {
      const uint32_t blocks = minimum(most, cols.blocks - c);
      tile->execute(funct, dram + (r * stride + c) * dim * item,
                    encode(address + (r * cols.blocks + c) * dim, extent(c, blocks, cols.blocks, cols.pad),
                           extent(r, 1, rows.blocks, rows.pad)));
    }
}

static void store_matrix(const Tile *tile) {
  const uint32_t dim = machine.config.dim, item = tile->full_C ? 4 : element_bytes();
  const uint32_t most = tile->full_C || tile->spad_only ? 1 : machine.config.max_block_len;
  const uint32_t address = ACC_BIT | (tile->full_C ? FULL_WIDTH_BIT : 0) | tile->C_row;
  for (uint32_t i = 0; i < tile->I; i++)
    for (uint32_t j = 0; j < tile->J; j += most) {
      const uint32_t blocks = minimum(most, tile->J - j), rows = (i * tile->J + j) * dim;
      const uint64_t source =
          encode(address + rows, extent(j, blocks, tile->J, tile->pad_J), extent(i, 1, tile->I, tile->pad_I));
      if (tile->spad_only)
        tile->execute(STORE_SPAD, 1ull << 32 | (tile->C_spad + rows), source);
      else
        tile->execute(MVOUT, tile->C + (i * tile->C_stride + j) * dim * item, source);
    }
}

static void add_matrices(const Tile *tile) {
  const uint32_t item = element_bytes(), most = machine.config.max_block_len;
  const uint32_t address = ACC_BIT | tile->C_row;
  const Side I = {tile->I, tile->pad_I}, J = {tile->J, tile->pad_J};
  load_matrix(tile, MVIN, 0, tile->A, tile->A_stride, address, I, J, item, most);
  load_matrix(tile, MVIN2, 1, tile->B, tile->B_stride, address | ACCUMULATE_BIT, I, J, item, most);
  if (tile->C) store_matrix(tile);
}

static void multiply_blocks(const Tile *tile) {
  const uint32_t dim = machine.config.dim, I = tile->I, J = tile->J, K = tile->K;
  for (uint32_t k = 0; k < K; k++)
    for (uint32_t j = 0; j < J; j++)
      for (uint32_t i = 0; i < I; i++) {
        const uint32_t a = tile->A_row + (tile->A_transpose ? k * I + i : i * K + k) * dim;
        const uint32_t b = tile->B_row + (tile->B_transpose ? j * K + k : k * J + j) * dim;
        const bool accumulate = tile->ex_accumulate || k > 0;
        const uint32_t c = ACC_BIT | (accumulate ? ACCUMULATE_BIT : 0) | (tile->product_row + (i * J + j) * dim);
        const uint32_t rows = extent(i, 1, I, tile->pad_I), cols = extent(j, 1, J, tile->pad_J);
        const uint32_t depth = extent(k, 1, K, tile->pad_K);
        tile->execute(PRELOAD, encode(i == 0 ? b : GARBAGE, cols, depth), encode(c, cols, rows));
        tile->execute(i == 0 ? COMPUTE_PRELOADED : COMPUTE_ACCUMULATED, encode(a, depth, rows),
                      encode(GARBAGE, dim, dim));
      }
}

/* Half of the accumulator that a unit uses in this call; it moves on when the sums are stored. */
static uint32_t accumulator_half(const Tile *tile, int unit, bool skipped) {
  const uint32_t half = machine.loop_ws_half[unit];
  const bool stored = unit != LOAD_D && tile->spad_only ? tile->inc_acc_addr : tile->C != 0;
  if (stored && !skipped) machine.loop_ws_half[unit] ^= 1;
  return half * (machine.acc.count / 2);
}

void loop_matmul_place(uint64_t rs1, uint64_t rs2) {
  const uint32_t next = machine.loop_ws_calls % 2;
  machine.loop_ws_spad[next].A_start = (uint32_t)rs1;
  machine.loop_ws_spad[next].B_end = (uint32_t)rs2;
  machine.loop_ws_spad[next].given = true;
}

static void place(Tile *tile, uint32_t a_id, uint32_t b_id) {
  const uint32_t dim = machine.config.dim;
  const uint32_t spad_half = machine.spad.count / 2, acc_half = machine.acc.count / 2;
  const uint64_t b_rows = (uint64_t)tile->K * tile->J * dim, a_rows = (uint64_t)tile->I * tile->K * dim;
  const uint64_t c_rows = (uint64_t)tile->I * tile->J * dim;
  const uint32_t call = machine.loop_ws_calls++ % 2;
  const bool given = machine.loop_ws_spad[call].given;
  loads_over(machine.loop_ws_loads[call]);
  if (!tile->addition && !given && a_rows + b_rows > spad_half)
    fail("LOOP_WS: A and B take %llu rows, half the scratchpad is %u", (unsigned long long)(a_rows + b_rows),
         spad_half);
  if (c_rows > acc_half)
    fail("LOOP_WS: C takes %llu rows, half the accumulator is %u", (unsigned long long)c_rows, acc_half);
  if (a_id > 2 || b_id > 2) fail("LOOP_WS: spad ids are 0 (alternate), 1 or 2");
  const uint32_t A_start = given ? machine.loop_ws_spad[call].A_start : call * spad_half;
  const uint32_t B_end = given ? machine.loop_ws_spad[call].B_end : (call + 1) * spad_half;
  tile->A_row = a_id ? (a_id - 1) * spad_half : A_start;
  const uint32_t end = b_id ? b_id * spad_half : B_end;
  if (!tile->addition && b_rows > end)
    fail("LOOP_WS: B takes %llu rows and ends at row %u", (unsigned long long)b_rows, end);
  tile->B_row = end - (uint32_t)b_rows;
  tile->D_row = accumulator_half(tile, LOAD_D, tile->skip_D);
  tile->product_row = accumulator_half(tile, PRODUCTS, tile->skip_products);
  tile->C_row = accumulator_half(tile, STORE_C, tile->skip_C);
  if (tile->addition) tile->C_row = call * acc_half;
}

static void multiply_matrices(const Tile *tile) {
  const uint32_t item = element_bytes(), most = machine.config.max_block_len;
  const Side I = {tile->I, tile->pad_I}, J = {tile->J, tile->pad_J}, K = {tile->K, tile->pad_K};
  if (tile->D && !tile->skip_D)
    load_matrix(tile, MVIN3, 2, tile->D, tile->D_stride, ACC_BIT | tile->D_row, I, J, tile->low_D ? item : 4,
                tile->low_D ? most : machine.config.max_block_len_acc);
  if (tile->A && !tile->skip_A)
    load_matrix(tile, MVIN, 0, tile->A, tile->A_stride, tile->A_row, tile->A_transpose ? K : I,
                tile->A_transpose ? I : K, item, most);
  if (tile->B && !tile->skip_B)
    load_matrix(tile, MVIN2, 1, tile->B, tile->B_stride, tile->B_row, tile->B_transpose ? J : K,
                tile->B_transpose ? K : J, item, most);
  if (!tile->skip_products) multiply_blocks(tile);
  if ((tile->C || tile->spad_only) && !tile->skip_C) store_matrix(tile);
}

void loop_matmul(uint64_t rs1, uint64_t rs2, Execute *execute) {
  const uint64_t *config = machine.loop_ws;
  Tile tile = {
      .execute = execute,
      .pad_I = field(config[0], 0, 16), .pad_J = field(config[0], 16, 16), .pad_K = field(config[0], 32, 16),
      .I = field(config[1], 0, 16), .J = field(config[1], 16, 16), .K = field(config[1], 32, 16),
      .A = config[2], .B = config[3], .D = config[4], .C = config[5],
      .A_stride = config[6], .B_stride = config[7], .D_stride = config[8], .C_stride = config[9],
      .ex_accumulate = field(rs1, 0, 1), .full_C = field(rs1, 1, 1), .low_D = field(rs1, 2, 1),
      .A_transpose = field(rs2, 0, 1), .B_transpose = field(rs2, 1, 1), .addition = field(rs2, 2, 1),
      .skip_A = field(rs2, 3, 1), .skip_B = field(rs2, 4, 1), .skip_D = field(rs2, 5, 1),
      .skip_products = field(rs2, 6, 1), .skip_C = field(rs2, 7, 1),
      .inc_acc_addr = field(rs2, 8, 1), .spad_only = field(rs2, 9, 1), .C_spad = (uint32_t)(rs2 >> 32),
  };
  const uint32_t activation = field(rs1, 8, 3);
  if (activation > 1) fail("LOOP_WS activation %u is not modelled: only none and ReLU", activation);
  if (tile.spad_only && tile.addition) fail("LOOP_WS: an addition cannot stay in the scratchpad");
  if (!tile.I || !tile.J || (!tile.K && !tile.addition))
    fail("LOOP_WS over no blocks: I=%u J=%u K=%u", tile.I, tile.J, tile.K);
  place(&tile, field(rs1, 18, 2), field(rs1, 16, 2));
  if (tile.addition)
    add_matrices(&tile);
  else
    multiply_matrices(&tile);
  machine.loop_ws_loads[(machine.loop_ws_calls - 1) % 2] = machine.loads;
}
