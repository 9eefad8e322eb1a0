/* Convolutions with automatic tile sizes. */
#ifndef FADIFF_GEMMINI_CONV_AUTO_H
#define FADIFF_GEMMINI_CONV_AUTO_H

/* What decides whether a tile fits. */
typedef struct {
  int stride, input_dilation, kernel_dilation, pool_size, pool_stride;
  bool downsample, trans_weight_0132, trans_input_3120;
} gemmini_conv_shape;

/* Tile sizes: batches, pooled rows, pooled columns, output channels, kernel rows, columns, input channels. */
enum { GEMMINI_TILE_N, GEMMINI_TILE_ROWS, GEMMINI_TILE_COLS, GEMMINI_TILE_OCH, GEMMINI_TILE_KROWS, GEMMINI_TILE_KCOLS,
       GEMMINI_TILE_ICH, GEMMINI_TILE_SIZES };

static inline bool gemmini_conv_fits(const gemmini_conv_shape *s, const int *t) {
#define GEMMINI_CONV_ROWS(acc)                                                                                         \
  tiled_conv_total_spad_rows(acc, s->stride, s->input_dilation, s->kernel_dilation, s->downsample,                     \
                             s->trans_weight_0132, s->trans_input_3120, t[GEMMINI_TILE_N], t[GEMMINI_TILE_ROWS],       \
                             t[GEMMINI_TILE_COLS], t[GEMMINI_TILE_OCH], t[GEMMINI_TILE_KROWS], t[GEMMINI_TILE_KCOLS],  \
                             t[GEMMINI_TILE_ICH], s->pool_size, s->pool_stride)
  return GEMMINI_CONV_ROWS(false) <= BANK_NUM * BANK_ROWS / 2 && GEMMINI_CONV_ROWS(true) <= ACC_ROWS / 2;
#undef GEMMINI_CONV_ROWS
}

static inline bool gemmini_conv_grow(const gemmini_conv_shape *shape, int *tile, const int *most, int size) {
  if (tile[size] >= most[size]) return false;
  tile[size]++;
  if (gemmini_conv_fits(shape, tile)) return true;
  tile[size]--;
  return false;
}

/* The public library's choice: shrink the largest size until the tile fits (channels a block at a
 * time, columns last once they fill a row of the array), then grow columns, then everything. */
static inline void gemmini_conv_tile(const gemmini_conv_shape *shape, const int *most, int *tile) {
  for (int i = 0; i < GEMMINI_TILE_SIZES; i++) tile[i] = most[i];
  while (!gemmini_conv_fits(shape, tile)) {
    int largest = -1;
    for (int i = 0; i < GEMMINI_TILE_SIZES; i++) {
      const bool keep = i == GEMMINI_TILE_COLS && tile[i] <= DIM && tile[GEMMINI_TILE_ROWS] > 1;
      if (!keep && (largest < 0 || tile[i] > tile[largest])) largest = i;
    }
    const bool channels = largest == GEMMINI_TILE_OCH || largest == GEMMINI_TILE_ICH;
    GEMMINI_REQUIRE(tile[largest] > 1, "not even the smallest convolution tile fits");
    tile[largest] = channels ? (tile[largest] - 1) / DIM * DIM : tile[largest] - 1;
    if (tile[largest] == 0) tile[largest] = 1;
  }
  while (gemmini_conv_grow(shape, tile, most, GEMMINI_TILE_COLS)) {
  }
  for (bool grown = true; grown;) {
    grown = false;
    for (int i = 0; i < GEMMINI_TILE_SIZES; i++) grown |= gemmini_conv_grow(shape, tile, most, i);
  }
}

static inline void tiled_conv_stride_auto(int batch_size, int in_row_dim, int in_col_dim, int in_channels,
                                          int out_channels, int out_row_dim, int out_col_dim, int stride,
                                          int input_dilation, int kernel_dilation, int padding, int kernel_dim,
                                          int in_stride, int weight_stride, int out_stride, bool wrot180,
                                          bool trans_output_1203, bool trans_input_3120, bool trans_weight_1203,
                                          bool trans_weight_0132, const elem_t *input, const elem_t *weights,
                                          const acc_t *bias, elem_t *output, int act, acc_scale_t scale, int pool_size,
                                          int pool_stride, int pool_padding, enum tiled_matmul_type_t tiled_conv_type) {
  const bool pool = pool_stride != 0;
  const gemmini_conv_shape shape = {
      stride, input_dilation, kernel_dilation, pool ? pool_size : 1, pool ? pool_stride : 1,
      stride == 2 && kernel_dim == 1 && padding == 0 && !pool && in_row_dim % 2 == 0 && in_col_dim % 2 == 0,
      trans_weight_0132, trans_input_3120};
  const int rows = (out_row_dim + 2 * (pool ? pool_padding : 0) - shape.pool_size) / shape.pool_stride + 1;
  const int cols = (out_col_dim + 2 * (pool ? pool_padding : 0) - shape.pool_size) / shape.pool_stride + 1;
  const int most[GEMMINI_TILE_SIZES] = {batch_size, rows, cols, out_channels, kernel_dim, kernel_dim, in_channels};
  int t[GEMMINI_TILE_SIZES];
  gemmini_conv_tile(&shape, most, t);
  tiled_conv(batch_size, in_row_dim, in_col_dim, in_channels, out_channels, out_row_dim, out_col_dim, stride,
             input_dilation, kernel_dilation, padding, kernel_dim, in_stride, weight_stride, out_stride, wrot180,
             trans_output_1203, trans_input_3120, trans_weight_1203, trans_weight_0132, t[GEMMINI_TILE_N],
             t[GEMMINI_TILE_ROWS], t[GEMMINI_TILE_COLS], t[GEMMINI_TILE_OCH], t[GEMMINI_TILE_KROWS],
             t[GEMMINI_TILE_KCOLS], t[GEMMINI_TILE_ICH], input, weights, bias, output, act, scale, pool_size,
             pool_stride, pool_padding, tiled_conv_type);
}

static inline void tiled_conv_auto(int batch_size, int in_row_dim, int in_col_dim, int in_channels, int out_channels,
                                   int out_row_dim, int out_col_dim, int stride, int input_dilation,
                                   int kernel_dilation, int padding, int kernel_dim, bool wrot180,
                                   bool trans_output_1203, bool trans_input_3120, bool trans_weight_1203,
                                   bool trans_weight_0132, const elem_t *input, const elem_t *weights,
                                   const acc_t *bias, elem_t *output, int act, acc_scale_t scale, int pool_size,
                                   int pool_stride, int pool_padding, enum tiled_matmul_type_t tiled_conv_type) {
  tiled_conv_stride_auto(batch_size, in_row_dim, in_col_dim, in_channels, out_channels, out_row_dim, out_col_dim,
                         stride, input_dilation, kernel_dilation, padding, kernel_dim, in_channels, out_channels,
                         out_channels, wrot180, trans_output_1203, trans_input_3120, trans_weight_1203,
                         trans_weight_0132, input, weights, bias, output, act, scale, pool_size, pool_stride,
                         pool_padding, tiled_conv_type);
}

static inline void tiled_conv_dw_auto(int batch_size, int in_row_dim, int in_col_dim, int channels, int out_row_dim,
                                      int out_col_dim, int stride, int padding, int kernel_dim, const elem_t *input,
                                      const elem_t *weights, const acc_t *bias, elem_t *output, int act,
                                      acc_scale_t scale, int pool_size, int pool_stride, int pool_padding,
                                      enum tiled_matmul_type_t tiled_conv_type) {
  const bool pool = pool_stride != 0;
  const gemmini_conv_shape shape = {stride, 1, 1, pool ? pool_size : 1, pool ? pool_stride : 1, false, false, false};
  const int rows = (out_row_dim + 2 * (pool ? pool_padding : 0) - shape.pool_size) / shape.pool_stride + 1;
  const int cols = (out_col_dim + 2 * (pool ? pool_padding : 0) - shape.pool_size) / shape.pool_stride + 1;
  const int most[GEMMINI_TILE_SIZES] = {batch_size, rows, cols, 1, kernel_dim, kernel_dim, 1};
  int t[GEMMINI_TILE_SIZES];
  gemmini_conv_tile(&shape, most, t);
  tiled_conv_dw(batch_size, in_row_dim, in_col_dim, channels, out_row_dim, out_col_dim, stride, padding, kernel_dim,
                t[GEMMINI_TILE_N], t[GEMMINI_TILE_ROWS], t[GEMMINI_TILE_COLS], t[GEMMINI_TILE_KROWS],
                t[GEMMINI_TILE_KCOLS], input, weights, bias, output, act, scale, pool_size, pool_stride, pool_padding,
                tiled_conv_type);
}

/* 1x1 convolution of stride 2 on a square image, as one product per row. */
static inline void tiled_conv_downsample(int batch_size, int in_row_dim, int in_col_dim, int in_channels,
                                         int out_channels, int out_row_dim, int out_col_dim, int in_stride,
                                         int weight_stride, int out_stride, const elem_t *input, const elem_t *weights,
                                         const acc_t *bias, elem_t *output, int act, acc_scale_t scale,
                                         enum tiled_matmul_type_t tiled_conv_type) {
  GEMMINI_REQUIRE(in_row_dim == in_col_dim && out_row_dim == out_col_dim, "tiled_conv_downsample takes square images");
  for (int b = 0; b < batch_size; b++)
    for (int orow = 0; 2 * orow < in_row_dim; orow++)
      tiled_matmul_auto((size_t)(in_col_dim / 2), (size_t)out_channels, (size_t)in_channels,
                        input + (b * in_row_dim + 2 * orow) * in_col_dim * in_stride, weights, bias,
                        output + (b * out_row_dim + orow) * out_col_dim * out_stride, (size_t)(2 * in_stride),
                        (size_t)weight_stride, (size_t)out_stride, (size_t)out_stride, MVIN_SCALE_IDENTITY,
                        MVIN_SCALE_IDENTITY, MVIN_SCALE_IDENTITY, act, scale, 0, true, false, false, false, false, 0,
                        tiled_conv_type);
}

#endif
