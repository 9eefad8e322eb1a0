/* CONFIG_EX, CONFIG_LD, CONFIG_ST and CONFIG_NORM. */
#include "config.h"

#include "fail.h"
#include "machine.h"
#include "timing.h"

static float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static float finite_scale(uint32_t bits, const char *what) {
  const float scale = bits_to_float(bits);
  if (!(scale - scale == 0)) fail("%s 0x%08x is not a finite float", what, bits);
  return scale;
}

static void configure_execute(uint64_t rs1, uint64_t rs2) {
  ExecuteState *state = &machine.execute;
  const bool set_only_strides = field(rs1, 7, 1);
  state->a_stride = field(rs1, 16, 16);
  state->c_stride = field(rs2, 48, 16);
  if (set_only_strides) return;
  state->dataflow = field(rs1, 2, 1);
  state->activation = field(rs1, 3, 2);
  state->a_transpose = field(rs1, 8, 1);
  state->b_transpose = field(rs1, 9, 1);
  state->shift = (uint32_t)rs2;
  /* Software that never reads operands from the accumulator passes 0 here. */
  state->acc_scale = finite_scale((uint32_t)(rs1 >> 32), "acc_scale");
  state->configured = true;
  if (state->activation > 1) fail("activation %u is not modelled: only none and ReLU", state->activation);
  if (state->shift > 31) fail("shift %u: at most 31", state->shift);
  if (state->dataflow == OUTPUT_STATIONARY && !machine.config.has_os && !set_only_strides)
    fail("this Gemmini has no output-stationary dataflow");
  if (state->dataflow == WEIGHT_STATIONARY && !machine.config.has_ws)
    fail("this Gemmini has no weight-stationary dataflow");
  if (state->dataflow == OUTPUT_STATIONARY ? !state->a_transpose && state->b_transpose
                                           : state->a_transpose && state->b_transpose)
    fail("%s dataflow cannot transpose %s", state->dataflow == OUTPUT_STATIONARY ? "output-stationary" : "weight-stationary",
         state->dataflow == OUTPUT_STATIONARY ? "B alone" : "both A and B");
}

static void configure_load(uint64_t rs1, uint64_t rs2) {
  const uint32_t id = field(rs1, 3, 2);
  if (id >= LOAD_STATES) fail("load state %u: there are three, 0 to 2", id);
  LoadState *state = &machine.load[id];
  state->stride = rs2;
  state->block_stride = field(rs1, 16, 16);
  state->pixels = field(rs1, 8, 8);
  if (!state->pixels) state->pixels = 1;
  state->shrunk = field(rs1, 2, 1);
  state->scale = machine.config.has_mvin_scale ? finite_scale((uint32_t)(rs1 >> 32), "mvin scale") : 1.0f;
  state->configured = true;
  if (state->pixels > 1 && !machine.config.has_row_packing)
    fail("pixel_repeats %u needs HAS_FIRST_LAYER_OPTIMIZATIONS", state->pixels);
}

static void configure_store(uint64_t rs1, uint64_t rs2) {
  StoreState *state = &machine.store;
  const uint32_t activation = field(rs1, 2, 2), scale_bits = (uint32_t)(rs2 >> 32);
  state->stride = (uint32_t)rs2;
  if (scale_bits != 0xFFFFFFFFu) state->scale = finite_scale(scale_bits, "acc_scale");
  state->relu = activation == 1;
  state->igelu = activation == IGELU;
  state->pool_stride = field(rs1, 4, 2);
  state->pool_size = field(rs1, 6, 2);
  state->pool_upad = field(rs1, 8, 2);
  state->pool_lpad = field(rs1, 10, 2);
  state->pool_out_dim = field(rs1, 24, 8);
  state->porows = field(rs1, 32, 8);
  state->pocols = field(rs1, 40, 8);
  state->orows = field(rs1, 48, 8);
  state->ocols = field(rs1, 56, 8);
  state->configured = true;
  if (state->igelu && !machine.config.has_normalizations) fail("I-GELU needs a Gemmini with HAS_NORMALIZATIONS");
  if (activation == LAYERNORM) fail("layer norm in the accumulator's read path is not modelled: only none, ReLU and I-GELU");
  if (state->pool_size && !state->pool_stride) fail("pool_size %u with pool_stride 0", state->pool_size);
  if (state->pool_stride && !state->pool_size) fail("pool_stride %u with pool_size 0", state->pool_stride);
}

/* Softmax is the only activation whose highest bit is here. */
static void configure_norm(uint64_t rs1, uint64_t rs2) {
  StoreState *state = &machine.store;
  const bool softmax = field(rs1, 16, 1), set_stats_id_only = field(rs1, 17, 1);
  if (!machine.config.has_normalizations) fail("CONFIG_NORM needs a Gemmini with HAS_NORMALIZATIONS");
  if (set_stats_id_only) return;
  if (softmax) fail("softmax in the accumulator's read path is not modelled: only none, ReLU and I-GELU");
  state->qb = (uint32_t)rs2;
  state->qc = (uint32_t)(rs2 >> 32);
  state->has_polynomial = true;
}

void configure(uint64_t rs1, uint64_t rs2) {
  switch (rs1 & 3) {
    case CONFIG_EX:
      configure_execute(rs1, rs2);
      timing_configure(EXECUTE_QUEUE);
      break;
    case CONFIG_LD:
      configure_load(rs1, rs2);
      timing_configure(LOAD_QUEUE);
      break;
    case CONFIG_ST:
      configure_store(rs1, rs2);
      timing_configure(STORE_QUEUE);
      break;
    default:
      configure_norm(rs1, rs2);
      timing_configure(STORE_QUEUE);
  }
}
