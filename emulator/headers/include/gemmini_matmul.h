/* C[I, J] = scale(act(A[I, K] * B[K, J] + D)), tiled. */
#ifndef FADIFF_GEMMINI_MATMUL_H
#define FADIFF_GEMMINI_MATMUL_H

static inline size_t gemmini_blocks(size_t elements) { return (elements + DIM - 1) / DIM; }
static inline size_t gemmini_min(size_t a, size_t b) { return a < b ? a : b; }

#define GEMMINI_REQUIRE(condition, message)       \
  do {                                            \
    if (!(condition)) {                           \
      printf("gemmini: %s\n", message);           \
      exit(1);                                    \
    }                                             \
  } while (0)

/* One output-stationary tile by primitive instructions; I, J, K in blocks. */
static inline void sp_tiled_matmul_os(const elem_t *A, const elem_t *B, const void *D, void *C, scale_t A_scale_factor,
                                      scale_t B_scale_factor, scale_acc_t D_scale_factor, size_t I, size_t J, size_t K,
                                      size_t pad_I, size_t pad_J, size_t pad_K, size_t A_row_stride,
                                      size_t B_row_stride, size_t D_row_stride, size_t C_row_stride, bool a_transpose,
                                      bool b_transpose, bool full_C, bool low_D, bool no_bias, bool repeating_bias,
                                      int act, int a_spad_id, int b_spad_id) {
  const uint32_t A_start = 0, B_start = (uint32_t)(BANK_NUM * BANK_ROWS - K * J * DIM);
  const uint32_t D_start = 1u << 31, C_start = 3u << 30 | (uint32_t)full_C << 29;
  const size_t sizeof_C = full_C ? sizeof(acc_t) : sizeof(elem_t);
  (void)low_D, (void)a_transpose, (void)b_transpose, (void)act, (void)a_spad_id, (void)b_spad_id;

  if (D != NULL && !no_bias) {
    gemmini_extended3_config_ld(repeating_bias ? 0 : D_row_stride * sizeof(acc_t), D_scale_factor, false, 2);
    for (size_t i = 0; i < I; i++)
      for (size_t j = 0; j < J; j += MAX_BLOCK_LEN_ACC) {
        const size_t blocks = gemmini_min(MAX_BLOCK_LEN_ACC, J - j);
        const acc_t *from = (const acc_t *)D + ((repeating_bias ? 0 : i * D_row_stride) + j) * DIM;
        gemmini_extended_mvin3(from, D_start + (i * J + j) * DIM, blocks * DIM - (j + blocks == J ? pad_J : 0),
                               DIM - (i == I - 1 ? pad_I : 0));
      }
  }
  gemmini_extended3_config_ld(B_row_stride * sizeof(elem_t), B_scale_factor, false, 1);
  for (size_t j = 0; j < J; j += MAX_BLOCK_LEN)
    for (size_t k = 0; k < K; k++) {
      const size_t blocks = gemmini_min(MAX_BLOCK_LEN, J - j);
      gemmini_extended_mvin2(B + (k * B_row_stride + j) * DIM, B_start + (k * J + j) * DIM,
                             blocks * DIM - (j + blocks == J ? pad_J : 0), DIM - (k == K - 1 ? pad_K : 0));
    }
  gemmini_extended3_config_ld(A_row_stride * sizeof(elem_t), A_scale_factor, false, 0);
  for (size_t i = 0; i < I; i++)
    for (size_t k = 0; k < K; k += MAX_BLOCK_LEN) {
      const size_t blocks = gemmini_min(MAX_BLOCK_LEN, K - k);
      gemmini_extended_mvin(A + (i * A_row_stride + k) * DIM, A_start + (i * K + k) * DIM,
                            blocks * DIM - (k + blocks == K ? pad_K : 0), DIM - (i == I - 1 ? pad_I : 0));
    }

  for (size_t i = 0; i < I; i++)
    for (size_t j = 0; j < J; j++)
      for (size_t k = 0; k < K; k++) {
        const size_t rows = DIM - (i == I - 1 ? pad_I : 0), cols = DIM - (j == J - 1 ? pad_J : 0);
        const size_t depth = DIM - (k == K - 1 ? pad_K : 0);
        const bool last = k == K - 1, overwrite = no_bias && D != NULL;
        uint32_t out = C_start + (uint32_t)((i * J + j) * DIM);
        if (overwrite) out &= ~(1u << 30);
        if (!last) out = GARBAGE_ADDR;
        gemmini_extended_preload(GARBAGE_ADDR, out, DIM, DIM, cols, rows);
        const uint32_t a = A_start + (uint32_t)((i * K + k) * DIM), b = B_start + (uint32_t)((k * J + j) * DIM);
        if (k == 0) {
          gemmini_extended_compute_preloaded(a, b, depth, rows, cols, depth);
        } else {
          gemmini_extended_compute_accumulated(a, b, depth, rows, cols, depth);
        }
      }

  for (size_t i = 0; C != NULL && i < I; i++)
    for (size_t j = 0; j < J; j++)
      gemmini_extended_mvout((char *)C + (i * C_row_stride + j) * DIM * sizeof_C, C_start + (i * J + j) * DIM,
                             DIM - (j == J - 1 ? pad_J : 0), DIM - (i == I - 1 ? pad_I : 0));
}

/* One weight-stationary tile: a single hardware loop.  D == NULL keeps the sums of the last call. */
static inline void sp_tiled_matmul_ws(const elem_t *A, const elem_t *B, const void *D, void *C, scale_t A_scale_factor,
                                      scale_t B_scale_factor, scale_acc_t D_scale_factor, size_t I, size_t J, size_t K,
                                      size_t pad_I, size_t pad_J, size_t pad_K, size_t A_row_stride,
                                      size_t B_row_stride, size_t D_row_stride, size_t C_row_stride, bool a_transpose,
                                      bool b_transpose, bool full_C, bool low_D, bool no_bias, bool repeating_bias,
                                      int act, int a_spad_id, int b_spad_id) {
  const bool accumulate = !no_bias || D == NULL;
  (void)A_scale_factor, (void)B_scale_factor, (void)D_scale_factor;
  gemmini_loop_ws(I, J, K, pad_I, pad_J, pad_K, A, B, no_bias ? NULL : D, C, A_row_stride, B_row_stride,
                  repeating_bias ? 0 : D_row_stride, C_row_stride, a_transpose, b_transpose, full_C, low_D, accumulate,
                  act, a_spad_id, b_spad_id, false);
}

static inline void tiled_matmul_outer(size_t dim_I, size_t dim_J, size_t dim_K, const elem_t *A, const elem_t *B,
                                      const void *D, void *C, size_t stride_A, size_t stride_B, size_t stride_D,
                                      size_t stride_C, scale_t A_scale_factor, scale_t B_scale_factor,
                                      scale_acc_t D_scale_factor, size_t tile_I, size_t tile_J, size_t tile_K, int act,
                                      acc_scale_t scale, acc_scale_t bert_scale, bool repeating_bias, bool a_transpose,
                                      bool b_transpose, bool full_C, bool low_D, uint8_t weightA, int dataflow) {
  const size_t blocks_I = gemmini_blocks(dim_I), blocks_J = gemmini_blocks(dim_J), blocks_K = gemmini_blocks(dim_K);
  const size_t sizeof_D = low_D ? sizeof(elem_t) : sizeof(acc_t), sizeof_C = full_C ? sizeof(acc_t) : sizeof(elem_t);
  const size_t tiles_I = (blocks_I + tile_I - 1) / tile_I, tiles_J = (blocks_J + tile_J - 1) / tile_J;
  const size_t tiles_K = (blocks_K + tile_K - 1) / tile_K;
  const bool no_bias = D == NULL, ws = dataflow == WEIGHT_STATIONARY;
  /* An operand of at most two tiles is loaded once and pinned to the two halves of the scratchpad. */
  const bool pin_A = ws && tiles_I * tiles_K <= 2, pin_B = ws && tiles_J * tiles_K <= 2;
  (void)bert_scale, (void)weightA;
  GEMMINI_REQUIRE(act == NO_ACTIVATION || act == RELU, "only no activation and RELU are supported");

  gemmini_extended_config_ex(dataflow, act & 3, 0, 1, a_transpose, b_transpose);
  gemmini_extended_config_st(stride_C * sizeof_C, act & 3, scale);
  gemmini_extended3_config_ld(stride_A * sizeof(elem_t), A_scale_factor, false, 0);
  gemmini_extended3_config_ld(stride_B * sizeof(elem_t), B_scale_factor, false, 1);
  gemmini_extended3_config_ld(repeating_bias ? 0 : stride_D * sizeof_D, D_scale_factor, low_D, 2);

  for (size_t ti = 0; ti < tiles_I; ti++)
    for (size_t tj = 0; tj < tiles_J; tj++)
      for (size_t tk = 0; tk < tiles_K; tk++) {
        const size_t bi = ti * tile_I, bj = tj * tile_J, bk = tk * tile_K;
        const size_t i = bi * DIM, j = bj * DIM, k = bk * DIM;
        const size_t I = gemmini_min(tile_I, blocks_I - bi), J = gemmini_min(tile_J, blocks_J - bj);
        const size_t K = gemmini_min(tile_K, blocks_K - bk);
        const elem_t *a = A + (a_transpose ? k * stride_A + i : i * stride_A + k);
        const elem_t *b = B + (b_transpose ? j * stride_B + k : k * stride_B + j);
        const void *d = no_bias ? (const void *)1 /* any address: start anew */
                                : (const char *)D + ((repeating_bias ? 0 : i * stride_D) + j) * sizeof_D;
        void *c = (char *)C + (i * stride_C + j) * sizeof_C;
        if (tk > 0) d = NULL;
        if (tk < tiles_K - 1) c = NULL;
        if (pin_A && tj > 0) a = NULL;
        if (pin_B && ti > 0) b = NULL;
        (ws ? sp_tiled_matmul_ws : sp_tiled_matmul_os)(
            a, b, d, c, A_scale_factor, B_scale_factor, D_scale_factor, I, J, K, bi + I == blocks_I ? blocks_I * DIM - dim_I : 0,
            bj + J == blocks_J ? blocks_J * DIM - dim_J : 0, bk + K == blocks_K ? blocks_K * DIM - dim_K : 0, stride_A,
            stride_B, stride_D, stride_C, a_transpose, b_transpose, full_C, low_D, no_bias, repeating_bias, act,
            pin_A ? (ti + tk == 0 ? 1 : 2) : 0, pin_B ? (tj + tk == 0 ? 1 : 2) : 0);
      }
  gemmini_fence();
}

/* tile_* in blocks of DIM.  Prints a message and exits when a tile does not fit. */
static inline void tiled_matmul(size_t dim_I, size_t dim_J, size_t dim_K, const elem_t *A, const elem_t *B,
                                const void *D, void *C, size_t stride_A, size_t stride_B, size_t stride_D,
                                size_t stride_C, scale_t A_scale_factor, scale_t B_scale_factor,
                                scale_acc_t D_scale_factor, int act, acc_scale_t scale, acc_scale_t bert_scale,
                                bool repeating_bias, size_t tile_I, size_t tile_J, size_t tile_K, bool transpose_A,
                                bool transpose_B, bool full_C, bool low_D, uint8_t weightA,
                                enum tiled_matmul_type_t tiled_matmul_type) {
  const size_t share = tiled_matmul_type == WS ? 2 : 1; /* hardware loops double-buffer */
  GEMMINI_REQUIRE(tile_I > 0 && tile_J > 0 && tile_K > 0, "a matmul tile is empty");
  GEMMINI_REQUIRE(tile_I <= gemmini_blocks(dim_I) && tile_J <= gemmini_blocks(dim_J) && tile_K <= gemmini_blocks(dim_K),
                  "a matmul tile is larger than the matrix");
  GEMMINI_REQUIRE(tile_I <= 65535 && tile_J <= 65535 && tile_K <= 65535, "a matmul tile has more than 65535 blocks");
  GEMMINI_REQUIRE((tile_I * tile_K + tile_K * tile_J) * DIM <= BANK_NUM * BANK_ROWS / share,
                  "the A and B tiles do not fit the scratchpad");
  GEMMINI_REQUIRE(tile_I * tile_J * DIM <= ACC_ROWS / share, "the C tile does not fit the accumulator");
  GEMMINI_REQUIRE(!(tiled_matmul_type == OS && (transpose_A || transpose_B)), "OS matmul cannot transpose");
  GEMMINI_REQUIRE(!(tiled_matmul_type == WS && transpose_A && transpose_B), "WS matmul cannot transpose both operands");
  GEMMINI_REQUIRE(!(tiled_matmul_type == OS && low_D), "OS matmul has no low_D");
  GEMMINI_REQUIRE(!(tiled_matmul_type == CPU && (full_C || low_D)), "CPU matmul has no full_C and no low_D");
  if (tiled_matmul_type == CPU)
    matmul_cpu(transpose_A, transpose_B, dim_I, dim_J, dim_K, A, B, (const acc_t *)D, (elem_t *)C, stride_A, stride_B,
               stride_D, stride_C, A_scale_factor, B_scale_factor, D_scale_factor, act, scale, bert_scale,
               repeating_bias);
  else
    tiled_matmul_outer(dim_I, dim_J, dim_K, A, B, D, C, stride_A, stride_B, stride_D, stride_C, A_scale_factor,
                       B_scale_factor, D_scale_factor, tile_I, tile_J, tile_K, act, scale, bert_scale, repeating_bias,
                       transpose_A, transpose_B, full_C, low_D, weightA, (int)tiled_matmul_type);
}

/* Like tiled_matmul; starts from a square C tile and the longest K that fit (WS: a quarter of the
 * scratchpad, half the accumulator), then grows J, I, K in turn while they fit. */
static inline void tiled_matmul_auto(size_t dim_I, size_t dim_J, size_t dim_K, const elem_t *A, const elem_t *B,
                                     const void *D, void *C, size_t stride_A, size_t stride_B, size_t stride_D,
                                     size_t stride_C, scale_t A_scale_factor, scale_t B_scale_factor,
                                     scale_acc_t D_scale_factor, int act, acc_scale_t scale, acc_scale_t bert_scale,
                                     bool repeating_bias, bool transpose_A, bool transpose_B, bool full_C, bool low_D,
                                     uint8_t weightA, enum tiled_matmul_type_t tiled_matmul_type) {
  const bool ws = tiled_matmul_type == WS;
  const size_t spad_rows = BANK_NUM * BANK_ROWS / (ws ? 2 : 1), acc_rows = ACC_ROWS / (ws ? 2 : 1);
  const size_t side = (size_t)sqrt((double)(acc_rows / DIM));
  const size_t depth = BANK_NUM * BANK_ROWS / 2 / (ws ? 2 : 1) / DIM / side;
  const size_t most_I = gemmini_blocks(dim_I), most_J = gemmini_blocks(dim_J), most_K = gemmini_blocks(dim_K);
  size_t I = gemmini_min(most_I, side), J = gemmini_min(most_J, side), K = gemmini_min(most_K, depth);
#define GEMMINI_FITS(i, j, k) (((i) + (j)) * (k) * DIM <= spad_rows && (i) * (j) * DIM <= acc_rows)
  for (bool grown = true; grown;) {
    grown = false;
    if (J < most_J && GEMMINI_FITS(I, J + 1, K)) J++, grown = true;
    if (I < most_I && GEMMINI_FITS(I + 1, J, K)) I++, grown = true;
    if (K < most_K && GEMMINI_FITS(I, J, K + 1)) K++, grown = true;
  }
#undef GEMMINI_FITS
  tiled_matmul(dim_I, dim_J, dim_K, A, B, D, C, stride_A, stride_B, stride_D, stride_C, A_scale_factor, B_scale_factor,
               D_scale_factor, act, scale, bert_scale, repeating_bias, I, J, K, transpose_A, transpose_B, full_C, low_D,
               weightA, tiled_matmul_type);
}

#endif
