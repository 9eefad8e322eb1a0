/* Residual addition and global average pooling: data moves through the accumulator, no products. */
#ifndef FADIFF_GEMMINI_ELEMENTWISE_H
#define FADIFF_GEMMINI_ELEMENTWISE_H

/* One tile of an addition: a single hardware loop; I, J in elements. */
static inline void sp_tiled_resadd(size_t I, size_t J, scale_t A_scale, scale_t B_scale, const elem_t *A,
                                   const elem_t *B, elem_t *C, size_t A_row_stride, size_t B_row_stride,
                                   size_t C_row_stride, bool relu) {
  const size_t blocks_I = gemmini_blocks(I), blocks_J = gemmini_blocks(J);
  (void)A_scale, (void)B_scale;
  gemmini_loop_ws(blocks_I, blocks_J, 0, blocks_I * DIM - I, blocks_J * DIM - J, 0, A, B, NULL, C, A_row_stride,
                  B_row_stride, 0, C_row_stride, false, false, false, false, false, relu, 0, 0, true);
}

/* C = C_scale * act(A_scale * A + B_scale * B), each product rounded and saturated to elem_t. */
static inline void tiled_resadd(size_t I, size_t J, size_t stride, size_t tile_I, size_t tile_J, scale_t A_scale,
                                scale_t B_scale, acc_scale_t C_scale, const elem_t *A, const elem_t *B, elem_t *C,
                                bool relu, enum tiled_matmul_type_t matadd_type) {
  (void)matadd_type;
  gemmini_extended_config_st(stride * sizeof(elem_t), relu ? RELU : NO_ACTIVATION, C_scale);
  gemmini_config_ex(WS, 0, 0);
  gemmini_extended4_config_ld(stride * sizeof(elem_t), A_scale, true, DIM, 0);
  gemmini_extended4_config_ld(stride * sizeof(elem_t), B_scale, true, DIM, 1);
  for (size_t i = 0; i < I; i += tile_I)
    for (size_t j = 0; j < J; j += tile_J) {
      const size_t at = i * stride + j;
      sp_tiled_resadd(gemmini_min(tile_I, I - i), gemmini_min(tile_J, J - j), A_scale, B_scale, A + at, B + at, C + at,
                      stride, stride, stride, relu);
    }
  gemmini_fence();
}

static inline void tiled_resadd_stride_auto(size_t I, size_t J, scale_t A_scale, scale_t B_scale, acc_scale_t C_scale,
                                            size_t stride, const elem_t *A, const elem_t *B, elem_t *C, bool relu,
                                            enum tiled_matmul_type_t matadd_type) {
  if (matadd_type == CPU) {
    resadd_cpu(I, J, stride, A_scale, B_scale, C_scale, A, B, C, relu);
    return;
  }
  GEMMINI_REQUIRE(matadd_type == WS, "additions run weight stationary or on the CPU");
  size_t tile_I = I, tile_J = J;
  while (gemmini_blocks(tile_I) * gemmini_blocks(tile_J) * DIM > ACC_ROWS / 2) {
    if (tile_I >= tile_J || tile_J <= DIM)
      tile_I /= 2;
    else
      tile_J -= DIM;
  }
  tiled_resadd(I, J, stride, tile_I, tile_J, A_scale, B_scale, C_scale, A, B, C, relu, matadd_type);
}

static inline void tiled_resadd_auto(size_t I, size_t J, scale_t A_scale, scale_t B_scale, acc_scale_t C_scale,
                                     const elem_t *A, const elem_t *B, elem_t *C, bool relu,
                                     enum tiled_matmul_type_t matadd_type) {
  tiled_resadd_stride_auto(I, J, A_scale, B_scale, C_scale, J, A, B, C, relu, matadd_type);
}

/* One image and one tile of channels: pixels are summed by accumulating moves. */
static inline void sp_tiled_global_average(const elem_t *input, elem_t *output, int batches, int channels, int dim,
                                           int channel_tile_size) {
  (void)batches;
  for (int channel = 0; channel < channel_tile_size; channel += MAX_BLOCK_LEN * DIM) {
    const int rest = channel_tile_size - channel;
    for (int pixel = 0; pixel < dim * dim; pixel++) {
      const uint32_t target = 1u << 31 | (uint32_t)(pixel > 0) << 30 | (uint32_t)(channel / DIM);
      gemmini_extended_mvin(input + pixel * channels + channel, target, rest < MAX_BLOCK_LEN * DIM ? rest : MAX_BLOCK_LEN * DIM, 1);
    }
  }
  for (int channel = 0; channel < channel_tile_size; channel += DIM) {
    const int rest = channel_tile_size - channel;
    gemmini_extended_mvout(output + channel, 1u << 31 | (uint32_t)(channel / DIM), rest < DIM ? rest : DIM, 1);
  }
}

/* Square images of dim x dim pixels; rounds sum / (dim * dim) half to even.  Does not fence. */
static inline void tiled_global_average(const elem_t *input, elem_t *output, int batches, int channels, int dim,
                                        int channel_tile_size) {
  gemmini_extended4_config_ld(DIM * sizeof(elem_t), MVIN_SCALE_IDENTITY, true, 1, 0);
  gemmini_config_ex(WS, NO_ACTIVATION, 0);
  gemmini_extended_config_st(0, NO_ACTIVATION, 1.0 / (dim * dim));
  for (int batch = 0; batch < batches; batch++)
    for (int channel = 0; channel < channels; channel += channel_tile_size) {
      const int rest = channels - channel;
      sp_tiled_global_average(input + batch * dim * dim * channels + channel, output + batch * channels + channel,
                              batches, channels, dim, rest < channel_tile_size ? rest : channel_tile_size);
    }
}

static inline void tiled_global_average_auto(const elem_t *input, elem_t *output, int batches, int channels, int dim,
                                             enum tiled_matmul_type_t type) {
  if (type == CPU)
    global_average_cpu(input, output, batches, channels, dim);
  else
    tiled_global_average(input, output, batches, channels, dim, channels < ACC_ROWS * DIM ? channels : ACC_ROWS * DIM);
}

#endif
