/* One macro per instruction.  They expand to blocks: brace them in if/else. */
#ifndef FADIFF_GEMMINI_INSTRUCTIONS_H
#define FADIFF_GEMMINI_INSTRUCTIONS_H

#define k_CONFIG 0
#define k_MVIN2 1
#define k_MVIN 2
#define k_MVOUT 3
#define k_COMPUTE_PRELOADED 4
#define k_COMPUTE_ACCUMULATE 5
#define k_PRELOAD 6
#define k_FLUSH 7
#define k_LOOP_WS 8
#define k_LOOP_WS_CONFIG_BOUNDS 9
#define k_LOOP_WS_CONFIG_ADDRS_AB 10
#define k_LOOP_WS_CONFIG_ADDRS_DC 11
#define k_LOOP_WS_CONFIG_STRIDES_AB 12
#define k_LOOP_WS_CONFIG_STRIDES_DC 13
#define k_MVIN3 14
#define k_LOOP_CONV_WS 15
#define k_LOOP_CONV_WS_CONFIG_1 16
#define k_LOOP_CONV_WS_CONFIG_2 17
#define k_LOOP_CONV_WS_CONFIG_3 18
#define k_LOOP_CONV_WS_CONFIG_4 19
#define k_LOOP_CONV_WS_CONFIG_5 20
#define k_LOOP_CONV_WS_CONFIG_6 21
#define k_MVOUT_SPAD 23
#define k_COUNTER 126

#define CONFIG_EX 0
#define CONFIG_LD 1
#define CONFIG_ST 2
#define CONFIG_BERT 3

#define OUTPUT_STATIONARY 0
#define WEIGHT_STATIONARY 1

#define NO_ACTIVATION 0
#define RELU 1
#define LAYERNORM 2
#define IGELU 3
#define SOFTMAX 4

/* As B or D operand: zeros; as C: the result is not kept. */
#define GARBAGE_ADDR ((uint32_t)-1)

#define GEMMINI_BITS_OF(function, value_type, bits_type) \
  static inline bits_type function(value_type value) {   \
    union {                                              \
      value_type value;                                  \
      bits_type bits;                                    \
    } both;                                              \
    both.value = value;                                  \
    return both.bits;                                    \
  }
#ifdef HAS_MVIN_SCALE
GEMMINI_BITS_OF(scale_t_to_scale_t_bits, scale_t, scale_t_bits)
GEMMINI_BITS_OF(scale_t_bits_to_scale_t, scale_t_bits, scale_t)
#else
#define scale_t_to_scale_t_bits(scale) 0
#endif
GEMMINI_BITS_OF(acc_scale_t_to_acc_scale_t_bits, acc_scale_t, acc_scale_t_bits)
GEMMINI_BITS_OF(acc_scale_t_bits_to_acc_scale_t, acc_scale_t_bits, acc_scale_t)
#undef GEMMINI_BITS_OF

#define ROCC_INSTRUCTION_RS1_RS2(x, rs1, rs2, funct) ROCC_INSTRUCTION_0_R_R(x, rs1, rs2, funct)
#define GEMMINI_ISSUE(funct, rs1, rs2) ROCC_INSTRUCTION_0_R_R(XCUSTOM_ACC, rs1, rs2, funct)
/* Local address with the extent of the move; the cast keeps bit 31 from spreading into it. */
#define GEMMINI_LOCAL(address, cols, rows) \
  (((uint64_t)(rows) << (ADDR_LEN + 16)) | ((uint64_t)(cols) << ADDR_LEN) | (uint64_t)(uint32_t)(address))

/* Moves.  mvin, mvin2 and mvin3 use load states 0, 1 and 2. */
#define gemmini_extended_mvin(dram, local, cols, rows) GEMMINI_ISSUE(k_MVIN, dram, GEMMINI_LOCAL(local, cols, rows))
#define gemmini_extended_mvin2(dram, local, cols, rows) GEMMINI_ISSUE(k_MVIN2, dram, GEMMINI_LOCAL(local, cols, rows))
#define gemmini_extended_mvin3(dram, local, cols, rows) GEMMINI_ISSUE(k_MVIN3, dram, GEMMINI_LOCAL(local, cols, rows))
#define gemmini_extended_mvout(dram, local, cols, rows) GEMMINI_ISSUE(k_MVOUT, dram, GEMMINI_LOCAL(local, cols, rows))
#define gemmini_block_mvin(dram, local, len) gemmini_extended_mvin(dram, local, (len) * DIM, DIM)
#define gemmini_mvin(dram, local) gemmini_extended_mvin(dram, local, DIM, DIM)
#define gemmini_mvout(dram, local) gemmini_extended_mvout(dram, local, DIM, DIM)
/* Local memory to scratchpad; needs a Gemmini with use_tl_ext_mem. */
#define gemmini_extended_mvout_spad(target, target_stride, local, cols, rows)                    \
  GEMMINI_ISSUE(k_MVOUT_SPAD, ((uint64_t)(target_stride) << 32) | (uint64_t)(uint32_t)(target), \
                GEMMINI_LOCAL(local, cols, rows))

/* Products. */
#define gemmini_extended_preload(BD, C, BD_cols, BD_rows, C_cols, C_rows) \
  GEMMINI_ISSUE(k_PRELOAD, GEMMINI_LOCAL(BD, BD_cols, BD_rows), GEMMINI_LOCAL(C, C_cols, C_rows))
#define gemmini_preload(BD, C) gemmini_extended_preload(BD, C, DIM, DIM, DIM, DIM)
#define gemmini_preload_zeros(C) gemmini_preload(GARBAGE_ADDR, C)
#define gemmini_extended_compute_preloaded(A, BD, A_cols, A_rows, BD_cols, BD_rows) \
  GEMMINI_ISSUE(k_COMPUTE_PRELOADED, GEMMINI_LOCAL(A, A_cols, A_rows), GEMMINI_LOCAL(BD, BD_cols, BD_rows))
#define gemmini_extended_compute_accumulated(A, BD, A_cols, A_rows, BD_cols, BD_rows) \
  GEMMINI_ISSUE(k_COMPUTE_ACCUMULATE, GEMMINI_LOCAL(A, A_cols, A_rows), GEMMINI_LOCAL(BD, BD_cols, BD_rows))
#define gemmini_compute_preloaded(A, BD) gemmini_extended_compute_preloaded(A, BD, DIM, DIM, DIM, DIM)
#define gemmini_compute_accumulated(A, BD) gemmini_extended_compute_accumulated(A, BD, DIM, DIM, DIM, DIM)

/* Execute configuration. */
#define gemmini_extended3_config_ex(dataflow, act, shift, scale, C_stride, A_stride, A_transpose, B_transpose,       \
                                    set_only_strides)                                                                \
  GEMMINI_ISSUE(k_CONFIG,                                                                                            \
                ((uint64_t)acc_scale_t_to_acc_scale_t_bits((acc_scale_t)(scale)) << 32) |                            \
                    ((uint64_t)(A_stride) << 16) | ((uint64_t)(B_transpose) << 9) | ((uint64_t)(A_transpose) << 8) | \
                    ((uint64_t)(set_only_strides) << 7) | ((uint64_t)(act) << 3) | ((uint64_t)(dataflow) << 2) |     \
                    CONFIG_EX,                                                                                       \
                ((uint64_t)(C_stride) << 48) | (uint64_t)(shift))
#define gemmini_extended2_config_ex(dataflow, act, shift, A_stride, A_transpose, B_transpose) \
  gemmini_extended3_config_ex(dataflow, act, shift, ACC_SCALE_IDENTITY, 1, A_stride, A_transpose, B_transpose, false)
#define gemmini_extended_config_ex(dataflow, act, shift, A_stride, A_transpose, B_transpose) \
  gemmini_extended2_config_ex(dataflow, act, shift, A_stride, A_transpose, B_transpose)
#define gemmini_config_ex(dataflow, act, shift) gemmini_extended_config_ex(dataflow, act, shift, 1, 0, 0)

/* Load configuration; stride in bytes. */
#define gemmini_extended5_config_ld(stride, scale, shrunk, block_stride, pixel_repeats, id)                          \
  GEMMINI_ISSUE(k_CONFIG,                                                                                            \
                ((uint64_t)scale_t_to_scale_t_bits(scale) << 32) | ((uint64_t)(block_stride) << 16) |                \
                    ((uint64_t)(pixel_repeats) << 8) | ((uint64_t)(id) << 3) | ((uint64_t)(shrunk) << 2) | CONFIG_LD, \
                stride)
#define gemmini_extended4_config_ld(stride, scale, shrunk, block_stride, id) \
  gemmini_extended5_config_ld(stride, scale, shrunk, block_stride, 1, id)
#define gemmini_extended3_config_ld(stride, scale, shrunk, id) \
  gemmini_extended4_config_ld(stride, scale, shrunk, DIM, id)
#define gemmini_extended2_config_ld(stride, scale, shrunk) gemmini_extended3_config_ld(stride, scale, shrunk, 0)
#define gemmini_extended_config_ld(stride, scale) gemmini_extended2_config_ld(stride, scale, false)
#define gemmini_config_ld(stride) gemmini_extended_config_ld(stride, MVIN_SCALE_IDENTITY)

/* Store configuration; stride in bytes. */
#define gemmini_extended2_config_st(stride, act, scale, pool_stride, pool_size, pool_out_dim, porows, pocols, orows, \
                                    ocols, upad, lpad)                                                               \
  GEMMINI_ISSUE(k_CONFIG,                                                                                            \
                ((uint64_t)(ocols) << 56) | ((uint64_t)(orows) << 48) | ((uint64_t)(pocols) << 40) |                 \
                    ((uint64_t)(porows) << 32) | ((uint64_t)(pool_out_dim) << 24) | ((uint64_t)(lpad) << 10) |       \
                    ((uint64_t)(upad) << 8) | ((uint64_t)(pool_size) << 6) | ((uint64_t)(pool_stride) << 4) |        \
                    ((uint64_t)(act) << 2) | CONFIG_ST,                                                              \
                ((uint64_t)acc_scale_t_to_acc_scale_t_bits((acc_scale_t)(scale)) << 32) | (uint32_t)(stride))
#define gemmini_extended_config_st(stride, act, scale) \
  gemmini_extended2_config_st(stride, act, scale, 0, 0, 0, 0, 0, 0, 0, 0, 0)
#define gemmini_config_st(stride) gemmini_extended_config_st(stride, NO_ACTIVATION, ACC_SCALE_IDENTITY)

#define gemmini_config_norm(q_const, q_const_type, set_stats_id_only, act_msb, stat_id, qb, qc)                        \
  GEMMINI_ISSUE(k_CONFIG,                                                                                              \
                ((uint64_t)(uint32_t)(q_const) << 32) | ((uint64_t)((q_const_type) & 1) << 18) |                       \
                    ((uint64_t)((set_stats_id_only) & 1) << 17) | ((uint64_t)((act_msb) & 1) << 16) |                  \
                    ((uint64_t)(stat_id) << 8) | CONFIG_BERT,                                                          \
                ((uint64_t)(uint32_t)(qc) << 32) | (uint64_t)(uint32_t)(qb))

#define gemmini_flush(skip) GEMMINI_ISSUE(k_FLUSH, skip, 0)

/* Waits until Gemmini is idle and its stores are in memory. */
#ifdef __riscv
#define gemmini_fence() __asm__ volatile("fence" ::: "memory")
#else
#define gemmini_fence() fadiff_fence()
#endif

/* One weight-stationary tile of a product: I x J x K blocks, less pad_* elements at the end. */
#define gemmini_loop_ws(I, J, K, pad_I, pad_J, pad_K, A, B, D, C, A_stride, B_stride, D_stride, C_stride, A_transpose, \
                        B_transpose, full_C, low_D, ex_accumulate, act, a_spad_id, b_spad_id, is_resadd)               \
  {                                                                                                                    \
    GEMMINI_ISSUE(k_LOOP_WS_CONFIG_BOUNDS, ((uint64_t)(pad_K) << 32) | ((uint64_t)(pad_J) << 16) | (uint64_t)(pad_I),  \
                  ((uint64_t)(K) << 32) | ((uint64_t)(J) << 16) | (uint64_t)(I))                                       \
    GEMMINI_ISSUE(k_LOOP_WS_CONFIG_ADDRS_AB, A, B)                                                                     \
    GEMMINI_ISSUE(k_LOOP_WS_CONFIG_ADDRS_DC, D, C)                                                                     \
    GEMMINI_ISSUE(k_LOOP_WS_CONFIG_STRIDES_AB, A_stride, B_stride)                                                     \
    GEMMINI_ISSUE(k_LOOP_WS_CONFIG_STRIDES_DC, D_stride, C_stride)                                                     \
    GEMMINI_ISSUE(k_LOOP_WS,                                                                                           \
                  ((uint64_t)(a_spad_id) << 18) | ((uint64_t)(b_spad_id) << 16) | ((uint64_t)(act) << 8) |             \
                      ((uint64_t)(low_D) << 2) | ((uint64_t)(full_C) << 1) | (uint64_t)(ex_accumulate),                \
                  ((uint64_t)(is_resadd) << 2) | ((uint64_t)(B_transpose) << 1) | (uint64_t)(A_transpose))             \
  }

/* One weight-stationary tile of a convolution. */
#define gemmini_loop_conv_ws(                                                                                           \
    batch_size, in_row_dim, in_col_dim, in_channels, out_channels, out_row_dim, out_col_dim, pool_out_row_dim,          \
    pool_out_col_dim, stride, padding, kernel_dim, kernel_dilation, pool_size, pool_stride, pool_padding, batches,      \
    porows, pocols, pochs, krows, kcols, kchs, lpad, rpad, upad, dpad, plpad, prpad, pupad, pdpad, orows, ocols,        \
    weights, output, bias, input, no_bias, no_pool, downsample, wrot180, input_dilated, activation, trans_output_1203,  \
    trans_weight_1203, trans_weight_0132, trans_input_3120, max_pixels_per_row, in_stride, weight_stride, out_stride,   \
    dw, a_spad_id, b_spad_id)                                                                                           \
  {                                                                                                                     \
    GEMMINI_ISSUE(k_LOOP_CONV_WS_CONFIG_1,                                                                              \
                  ((uint64_t)(out_channels) << 48) | ((uint64_t)(in_channels) << 32) | ((uint64_t)(in_row_dim) << 16) | \
                      (uint64_t)(batch_size),                                                                           \
                  ((uint64_t)(padding) << 56) | ((uint64_t)(stride) << 48) | ((uint64_t)(out_col_dim) << 32) |          \
                      ((uint64_t)(pool_out_row_dim) << 16) | (uint64_t)(out_row_dim))                                   \
    GEMMINI_ISSUE(k_LOOP_CONV_WS_CONFIG_2,                                                                              \
                  ((uint64_t)(kernel_dim) << 48) | ((uint64_t)(pool_out_col_dim) << 32) |                               \
                      ((uint64_t)(pool_size) << 16) | ((uint64_t)(pool_stride) << 8) | (uint64_t)(pool_padding),        \
                  ((uint64_t)(batches) << 48) | ((uint64_t)(porows) << 32) | ((uint64_t)(pocols) << 16) |               \
                      (uint64_t)(pochs))                                                                                \
    GEMMINI_ISSUE(k_LOOP_CONV_WS_CONFIG_3,                                                                              \
                  ((uint64_t)(krows) << 48) | ((uint64_t)(kcols) << 32) | ((uint64_t)(kchs) << 16) | (uint64_t)(lpad),  \
                  ((uint64_t)(rpad) << 48) | ((uint64_t)(upad) << 32) | ((uint64_t)(dpad) << 24) |                      \
                      ((uint64_t)(plpad) << 16) | (uint64_t)(in_col_dim))                                               \
    GEMMINI_ISSUE(k_LOOP_CONV_WS_CONFIG_4,                                                                              \
                  ((uint64_t)(orows) << 48) | ((uint64_t)(prpad) << 32) | ((uint64_t)(pupad) << 21) |                   \
                      ((uint64_t)(pdpad) << 10) | (uint64_t)(kernel_dilation),                                          \
                  ((uint64_t)(in_stride) << 48) | ((uint64_t)(weight_stride) << 32) | ((uint64_t)(out_stride) << 16) |  \
                      (uint64_t)(ocols))                                                                                \
    GEMMINI_ISSUE(k_LOOP_CONV_WS_CONFIG_5, weights, output)                                                             \
    GEMMINI_ISSUE(k_LOOP_CONV_WS_CONFIG_6, bias, input)                                                                 \
    GEMMINI_ISSUE(k_LOOP_CONV_WS,                                                                                       \
                  ((uint64_t)(a_spad_id) << 18) | ((uint64_t)(b_spad_id) << 16) |                                       \
                      ((uint64_t)(max_pixels_per_row) << 8) | ((uint64_t)(dw) << 6) |                                   \
                      ((uint64_t)(trans_input_3120) << 5) | ((uint64_t)(trans_weight_0132) << 4) |                      \
                      ((uint64_t)(trans_weight_1203) << 3) | ((uint64_t)(trans_output_1203) << 2) |                     \
                      ((uint64_t)(wrot180) << 1) | (uint64_t)(no_bias),                                                 \
                  ((uint64_t)(activation) << 3) | ((uint64_t)(input_dilated) << 2) | ((uint64_t)(downsample) << 1) |    \
                      (uint64_t)(no_pool))                                                                              \
  }

/* Performance counters. */
#define gemmini_counter_access(rd, config) \
  { ROCC_INSTRUCTION_R_R_R(XCUSTOM_ACC, rd, config, 0, k_COUNTER) }

static inline uint32_t gemmini_counter_command(uint32_t config) {
  uint64_t value = 0;
  gemmini_counter_access(value, config);
  return (uint32_t)value;
}
static inline uint32_t counter_read(size_t index) { return gemmini_counter_command((uint32_t)(index & 7) << 4); }
static inline void counter_configure(size_t index, size_t code) {
  const uint32_t external = code > INCREMENTAL_COUNTERS;
  const uint32_t event = (uint32_t)(external ? code - INCREMENTAL_COUNTERS : code);
  gemmini_counter_command((uint32_t)(index & 7) << 4 | 8 | (event & 63) << 12 | external << 31);
}
static inline void counter_snapshot_take(void) { gemmini_counter_command(4); }
static inline void counter_snapshot_reset(void) { gemmini_counter_command(2); }
static inline void counter_reset(void) { gemmini_counter_command(1); }

#endif
