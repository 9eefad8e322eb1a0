/* Tiled convolutions with bias, activation and max pooling.  Images are N H W C, weights H W I O.
 * A tile with pool_stride 0 does not pool. */
#ifndef FADIFF_GEMMINI_CONV_H
#define FADIFF_GEMMINI_CONV_H

static inline int gemmini_at_least_0(int x) { return x > 0 ? x : 0; }

/* Local-memory rows of a tile: output rows in the accumulator, or input plus weight rows. */
static inline int tiled_conv_total_spad_rows(bool acc, int stride, int input_dilation, int kernel_dilation,
                                             bool downsample, bool trans_weight_0132, bool trans_input_3120,
                                             int batches, int porows, int pocols, int ochs, int krows, int kcols,
                                             int kchs, int pool_size, int pool_stride) {
  const int orows = porows * pool_stride + pool_size - 1, ocols = pocols * pool_stride + pool_size - 1;
  const int irows = (orows * stride + krows + (kernel_dilation - 1) * (krows - 1) - 1 + input_dilation - 1) / input_dilation;
  const int icols = (ocols * stride + kcols + (kernel_dilation - 1) * (kcols - 1) - 1 + input_dilation - 1) / input_dilation;
  const int in_blocks = (kchs + DIM - 1) / DIM, out_blocks = (ochs + DIM - 1) / DIM;
  const int images = trans_input_3120 ? (batches + DIM - 1) / DIM * kchs : in_blocks * batches;
  const int weights = trans_weight_0132 ? in_blocks * ochs : out_blocks * kchs;
  if (acc) return out_blocks * batches * orows * ocols;
  return images * (irows >> downsample) * (icols >> downsample) + weights * krows * kcols;
}

/* One tile: a single hardware loop.  output NULL keeps the sums, bias NULL adds to them. */
static inline void sp_tiled_conv(int batch_size, int in_row_dim, int in_col_dim, int in_channels, int out_channels,
                                 int out_row_dim, int out_col_dim, int pool_out_row_dim, int pool_out_col_dim,
                                 int stride, int padding, int kernel_dim, int kernel_dilation, int in_stride,
                                 int weight_stride, int out_stride, int pool_size, int pool_stride, int pool_padding,
                                 int batches, int porows, int pocols, int pochs, int krows, int kcols, int kchs,
                                 int lpad, int rpad, int upad, int dpad, int plpad, int prpad, int pupad, int pdpad,
                                 const elem_t *input, const elem_t *weights, elem_t *output, const acc_t *bias, int act,
                                 acc_scale_t scale, bool wrot180, bool trans_output_1203, bool trans_input_3120,
                                 bool trans_weight_1203, bool trans_weight_0132, bool no_bias, bool no_pool,
                                 bool downsample, bool input_dilated, bool dw, int a_spad_id, int b_spad_id) {
  if (dw) kchs = pochs = 1;
  const int orows = porows * pool_stride + pool_size - 1 - pupad - pdpad;
  const int ocols = pocols * pool_stride + pool_size - 1 - plpad - prpad;
  int pixels = 1; /* kernel columns packed into one row */
#ifdef HAS_FIRST_LAYER_OPTIMIZATIONS
  const bool plain = !(trans_output_1203 || trans_input_3120 || trans_weight_1203 || trans_weight_0132 || wrot180 ||
                       downsample || input_dilated || kernel_dilation > 1);
  if (plain && kchs <= DIM) pixels = DIM / kchs < kcols ? DIM / kchs : kcols;
#endif
  (void)scale;
  gemmini_loop_conv_ws(batch_size, in_row_dim, in_col_dim, in_channels, out_channels, out_row_dim, out_col_dim,
                       pool_out_row_dim, pool_out_col_dim, stride, padding, kernel_dim, kernel_dilation, pool_size,
                       pool_stride, pool_padding, batches, porows, pocols, pochs, krows, kcols, kchs, lpad, rpad, upad,
                       dpad, plpad, prpad, pupad, pdpad, orows, ocols, weights, output, bias, input, no_bias, no_pool,
                       downsample, wrot180, input_dilated, act, trans_output_1203, trans_weight_1203,
                       trans_weight_0132, trans_input_3120, pixels, in_stride, weight_stride, out_stride, dw,
                       a_spad_id, b_spad_id);
}

/* One axis of a tile: where its input starts and what of it is padding. */
typedef struct {
  int input;                      /* first input index of the tile, negative in the padding */
  int before, after;              /* input padding inside the tile */
  int pool_before, pool_after;    /* pooling padding inside the tile */
} gemmini_conv_axis;

static inline gemmini_conv_axis gemmini_conv_tile_axis(int pooled, int pooled_size, int tap, int taps, int in_dim,
                                                       int out_dim, int stride, int padding, int kernel_dilation,
                                                       int input_dilation, int pool_size, int pool_stride,
                                                       int pool_padding) {
  gemmini_conv_axis axis;
  const int out = pooled * pool_stride - pool_padding, out_size = pooled_size * pool_stride + pool_size - 1;
  axis.pool_before = gemmini_at_least_0(-out);
  axis.pool_after = gemmini_at_least_0(out + out_size - out_dim);
  axis.input = gemmini_at_least_0(out) * stride + tap * kernel_dilation - padding;
  const int size = (out_size - axis.pool_before - axis.pool_after) * stride + taps + (kernel_dilation - 1) * (taps - 1) - 1;
  const int dilated = in_dim + (input_dilation - 1) * (in_dim - 1);
  axis.before = gemmini_at_least_0(-axis.input);
  axis.after = gemmini_at_least_0(axis.input + size - dilated);
  if (input_dilation == 2) { /* the tile begins and ends on a stored pixel */
    if (axis.before == 0 && axis.input % 2 != 0) axis.before = 1;
    if (axis.after == 0 && (axis.input + size) % 2 != 1) axis.after = 1;
  }
  return axis;
}

/* All tiles of a convolution; depthwise (dw) ones are a channel each, weights C H W. */
static inline void gemmini_conv_tiles(int batch_size, int in_row_dim, int in_col_dim, int in_channels, int out_channels,
                                      int out_row_dim, int out_col_dim, int stride, int input_dilation, int kernel_dilation,
                                      int padding, int kernel_dim, int in_stride, int weight_stride, int out_stride,
                                      bool wrot180, bool trans_output_1203, bool trans_input_3120, bool trans_weight_1203,
                                      bool trans_weight_0132, int batches, int porows, int pocols, int pochs, int krows,
                                      int kcols, int kchs, const elem_t *input, const elem_t *weights, const acc_t *bias,
                                      elem_t *output, int act, acc_scale_t scale, int pool_size, int pool_stride,
                                      int pool_padding, bool dw) {
  const bool no_bias = bias == NULL, no_pool = pool_stride == 0;
  if (no_pool) pool_size = pool_stride = 1, pool_padding = 0;
  const bool downsample = !dw && stride == 2 && kernel_dim == 1 && in_row_dim % 2 == 0 && in_col_dim % 2 == 0 && padding == 0 &&
                          no_pool && input_dilation == 1 && !trans_input_3120;
#define GEMMINI_CONV_ROWS(acc)                                                                                     \
  tiled_conv_total_spad_rows(acc, stride, input_dilation, kernel_dilation, downsample, trans_weight_0132,          \
                             trans_input_3120, batches, porows, pocols, pochs, krows, kcols, kchs, pool_size,      \
                             pool_stride)
  GEMMINI_REQUIRE(GEMMINI_CONV_ROWS(false) <= BANK_NUM * BANK_ROWS / 2,
                  "the input and weight tiles do not fit half the scratchpad");
  GEMMINI_REQUIRE(GEMMINI_CONV_ROWS(true) <= ACC_ROWS / 2, "the output tile does not fit half the accumulator");
#undef GEMMINI_CONV_ROWS
  GEMMINI_REQUIRE(kernel_dim > padding, "the kernel is not larger than the padding");
  GEMMINI_REQUIRE(input_dilation <= 2, "input dilation is at most 2");
  GEMMINI_REQUIRE(input_dilation == 1 || stride == 1, "a dilated input needs stride 1");
  GEMMINI_REQUIRE(!trans_output_1203 || no_pool, "a pooled output cannot be transposed");
  GEMMINI_REQUIRE(!(trans_input_3120 && trans_weight_0132), "input and weights cannot both be transposed");

  gemmini_extended_config_st((trans_output_1203 ? batch_size * out_channels : out_stride) * (int)sizeof(elem_t), act, scale);
  gemmini_extended3_config_ex(WEIGHT_STATIONARY, 0, 0, 0, input_dilation, stride >> downsample, trans_input_3120,
                              trans_weight_0132, false);

  const int dilated = input_dilation == 2, depth = dw ? 1 : in_channels;
  const int pool_rows = (out_row_dim + 2 * pool_padding - pool_size) / pool_stride + 1;
  const int pool_cols = (out_col_dim + 2 * pool_padding - pool_size) / pool_stride + 1;
#define GEMMINI_TILES(whole, tile) (((whole) + (tile) - 1) / (tile))
  const int reduction = GEMMINI_TILES(depth, kchs) * GEMMINI_TILES(kernel_dim, krows) * GEMMINI_TILES(kernel_dim, kcols);
  const int pixels = GEMMINI_TILES(batch_size, batches) * GEMMINI_TILES(pool_rows, porows) * GEMMINI_TILES(pool_cols, pocols);
  /* An operand of at most two tiles is loaded once and pinned to the two halves of the scratchpad. */
  const bool pin_weights = !dw && reduction * GEMMINI_TILES(out_channels, pochs) <= 2;
  const bool pin_input = !dw && reduction * pixels <= 2;
#undef GEMMINI_TILES

  for (int b = 0; b < batch_size; b += batches)
    for (int porow = 0; porow < pool_rows; porow += porows)
      for (int pocol = 0; pocol < pool_cols; pocol += pocols)
        for (int poch = 0; poch < out_channels; poch += pochs)
          for (int krow = 0; krow < kernel_dim; krow += krows)
            for (int kcol = 0; kcol < kernel_dim; kcol += kcols)
              for (int kch = 0; kch < depth; kch += kchs) {
#define GEMMINI_REST(whole, at, tile) ((whole) - (at) < (tile) ? (whole) - (at) : (tile))
                const int n = GEMMINI_REST(batch_size, b, batches), ochs = GEMMINI_REST(out_channels, poch, pochs);
                const int prows = GEMMINI_REST(pool_rows, porow, porows), pcols = GEMMINI_REST(pool_cols, pocol, pocols);
                const int rows = GEMMINI_REST(kernel_dim, krow, krows), cols = GEMMINI_REST(kernel_dim, kcol, kcols);
                const int ichs = GEMMINI_REST(depth, kch, kchs);
#undef GEMMINI_REST
                const bool first = krow == 0 && kcol == 0 && kch == 0;
                const bool last = krow + rows == kernel_dim && kcol + cols == kernel_dim && kch + ichs == depth;
                const gemmini_conv_axis y = gemmini_conv_tile_axis(porow, prows, krow, rows, in_row_dim, out_row_dim, stride, padding,
                                                        kernel_dilation, input_dilation, pool_size, pool_stride, pool_padding);
                const gemmini_conv_axis x = gemmini_conv_tile_axis(pocol, pcols, kcol, cols, in_col_dim, out_col_dim, stride, padding,
                                                        kernel_dilation, input_dilation, pool_size, pool_stride, pool_padding);
                const int irow = (y.input + y.before) >> dilated, icol = (x.input + x.before) >> dilated;
                const elem_t *in = trans_input_3120
                                       ? input + ((kch * in_row_dim + irow) * in_col_dim + icol) * batch_size + b
                                       : input + ((b * in_row_dim + irow) * in_col_dim + icol) * in_stride + (dw ? poch : kch);
                const int trow = wrot180 ? kernel_dim - krow - rows : krow, tcol = wrot180 ? kernel_dim - kcol - cols : kcol;
                const int tap = trow * kernel_dim + tcol;
                const elem_t *w = dw                  ? weights + poch * kernel_dim * kernel_dim + tap
                                  : trans_weight_1203 ? weights + (kch * kernel_dim * kernel_dim + tap) * out_channels + poch
                                  : trans_weight_0132 ? weights + (tap * out_channels + poch) * in_channels + kch
                                                      : weights + (tap * in_channels + kch) * weight_stride + poch;
                elem_t *out = trans_output_1203
                                  ? output + ((porow * pool_cols + pocol) * batch_size + b) * out_channels + poch
                                  : output + ((b * pool_rows + porow) * pool_cols + pocol) * out_stride + poch;
                const acc_t *d = no_bias ? (const acc_t *)1 /* any address: zeros */ : bias + poch;
                if (pin_weights && (pocol || porow || b)) w = NULL;
                if (pin_input && poch) in = NULL;
                sp_tiled_conv(batch_size, in_row_dim, in_col_dim, in_channels, out_channels, out_row_dim, out_col_dim,
                              pool_rows, pool_cols, stride, padding, kernel_dim, kernel_dilation, in_stride,
                              weight_stride, out_stride, pool_size, pool_stride, pool_padding, n, prows, pcols, ochs,
                              rows, cols, ichs, x.before, x.after, y.before, y.after, x.pool_before, x.pool_after,
                              y.pool_before, y.pool_after, in, w, last ? out : NULL, first ? d : NULL, act, scale,
                              wrot180, trans_output_1203, trans_input_3120, trans_weight_1203, trans_weight_0132,
                              no_bias, no_pool, downsample, dilated, dw,
                              pin_input ? (kch + krow + kcol + b + porow + pocol == 0 ? 1 : 2) : 0,
                              pin_weights ? (kch + poch + krow + kcol == 0 ? 1 : 2) : 0);
              }
}

/* Tile sizes in elements.  Does not fence. */
static inline void tiled_conv(int batch_size, int in_row_dim, int in_col_dim, int in_channels, int out_channels,
                              int out_row_dim, int out_col_dim, int stride, int input_dilation, int kernel_dilation,
                              int padding, int kernel_dim, int in_stride, int weight_stride, int out_stride,
                              bool wrot180, bool trans_output_1203, bool trans_input_3120, bool trans_weight_1203,
                              bool trans_weight_0132, int batches, int porows, int pocols, int pochs, int krows,
                              int kcols, int kchs, const elem_t *input, const elem_t *weights, const acc_t *bias,
                              elem_t *output, int act, acc_scale_t scale, int pool_size, int pool_stride,
                              int pool_padding, enum tiled_matmul_type_t tiled_conv_type) {
  GEMMINI_REQUIRE(!(trans_weight_1203 && trans_weight_0132), "convolution weights are transposed one way at a time");
  if (tiled_conv_type == CPU) {
    conv_cpu(batch_size, in_row_dim, in_col_dim, in_channels, out_channels, out_row_dim, out_col_dim, stride,
             input_dilation, kernel_dilation, padding, kernel_dim, in_stride, weight_stride, out_stride, wrot180,
             trans_output_1203, trans_input_3120, trans_weight_1203, trans_weight_0132, input, weights, bias, output,
             act, scale, pool_size, pool_stride, pool_padding);
    return;
  }
  GEMMINI_REQUIRE(tiled_conv_type == WS, "convolutions are weight stationary or run on the CPU");
  gemmini_conv_tiles(batch_size, in_row_dim, in_col_dim, in_channels, out_channels, out_row_dim, out_col_dim, stride,
                     input_dilation, kernel_dilation, padding, kernel_dim, in_stride, weight_stride, out_stride,
                     wrot180, trans_output_1203, trans_input_3120, trans_weight_1203, trans_weight_0132, batches,
                     porows, pocols, pochs, krows, kcols, kchs, input, weights, bias, output, act, scale, pool_size,
                     pool_stride, pool_padding, false);
}

/* Depthwise convolution, one channel at a time (slow: rows of one byte); weights are C H W.
 * Does not fence. */
static inline void tiled_conv_dw(int batch_size, int in_row_dim, int in_col_dim, int channels, int out_row_dim,
                                 int out_col_dim, int stride, int padding, int kernel_dim, int batches, int porows,
                                 int pocols, int krows, int kcols, const elem_t *input, const elem_t *weights,
                                 const acc_t *bias, elem_t *output, int act, acc_scale_t scale, int pool_size,
                                 int pool_stride, int pool_padding, enum tiled_matmul_type_t tiled_conv_type) {
  if (tiled_conv_type == CPU) {
    conv_dw_cpu(batch_size, in_row_dim, in_col_dim, channels, out_row_dim, out_col_dim, stride, padding, kernel_dim,
                input, weights, bias, output, act, scale, pool_size, pool_stride, pool_padding);
    return;
  }
  GEMMINI_REQUIRE(tiled_conv_type == WS, "convolutions are weight stationary or run on the CPU");
  gemmini_conv_tiles(batch_size, in_row_dim, in_col_dim, channels, channels, out_row_dim, out_col_dim, stride, 1, 1,
                     padding, kernel_dim, channels, 1, channels, false, false, false, false, false, batches, porows,
                     pocols, 1, krows, kcols, 1, input, weights, bias, output, act, scale, pool_size, pool_stride,
                     pool_padding, true);
}

#endif
