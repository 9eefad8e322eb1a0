/* The same operations in plain C on the host core: references for tests, fallbacks for the rest. */
#ifndef FADIFF_GEMMINI_CPU_H
#define FADIFF_GEMMINI_CPU_H

static inline elem_t scale_and_sat(acc_t x, int act, acc_scale_t scale, acc_scale_t bert_scale) {
  (void)bert_scale;
  const acc_t active = act == RELU && x < 0 ? 0 : x;
  return (elem_t)ACC_SCALE(active, scale);
}

static inline void matmul_cpu(bool transA, bool transB, size_t DIM_I, size_t DIM_J, size_t DIM_K, const elem_t *A,
                              const elem_t *B, const acc_t *D, elem_t *C, size_t stride_A, size_t stride_B,
                              size_t stride_D, size_t stride_C, scale_t A_scale_factor, scale_t B_scale_factor,
                              scale_acc_t D_scale_factor, int act, acc_scale_t scale, acc_scale_t bert_scale,
                              bool repeating_bias) {
  (void)D_scale_factor, (void)A_scale_factor, (void)B_scale_factor;
  for (size_t i = 0; i < DIM_I; i++)
    for (size_t j = 0; j < DIM_J; j++) {
      acc_t sum = D ? D[(repeating_bias ? 0 : i * stride_D) + j] : 0;
      for (size_t k = 0; k < DIM_K; k++) {
        const elem_t a = A[transA ? k * stride_A + i : i * stride_A + k];
        const elem_t b = B[transB ? j * stride_B + k : k * stride_B + j];
        sum += (acc_t)MVIN_SCALE(a, A_scale_factor) * (acc_t)MVIN_SCALE(b, B_scale_factor);
      }
      C[i * stride_C + j] = scale_and_sat(sum, act, scale, bert_scale);
    }
}

static inline void conv_cpu(int batch_size, int in_row_dim, int in_col_dim, int in_channels, int out_channels,
                            int out_row_dim, int out_col_dim, int stride, int input_dilation, int kernel_dilation,
                            int padding, int kernel_dim, int in_stride, int weight_stride, int out_stride, bool wrot180,
                            bool trans_output_1203, bool trans_input_3120, bool trans_weight_1203,
                            bool trans_weight_0132, const elem_t *input, const elem_t *weights, const acc_t *bias,
                            elem_t *output, int act, acc_scale_t scale, int pool_size, int pool_stride,
                            int pool_padding) {
  if (pool_stride == 0) pool_size = pool_stride = 1, pool_padding = 0;
  const int pool_rows = (out_row_dim + 2 * pool_padding - pool_size) / pool_stride + 1;
  const int pool_cols = (out_col_dim + 2 * pool_padding - pool_size) / pool_stride + 1;
  acc_t *plane = (acc_t *)malloc((size_t)out_row_dim * (size_t)out_col_dim * sizeof(acc_t));
  if (!plane) exit(1);
  for (int b = 0; b < batch_size; b++)
    for (int och = 0; och < out_channels; och++) {
      for (int orow = 0; orow < out_row_dim; orow++)
        for (int ocol = 0; ocol < out_col_dim; ocol++) {
          acc_t sum = bias ? bias[och] : 0;
          for (int krow = 0; krow < kernel_dim; krow++)
            for (int kcol = 0; kcol < kernel_dim; kcol++) {
              const int row = orow * stride + krow * kernel_dilation - padding;
              const int col = ocol * stride + kcol * kernel_dilation - padding;
              if (row < 0 || col < 0 || row % input_dilation || col % input_dilation) continue;
              const int irow = row / input_dilation, icol = col / input_dilation;
              if (irow >= in_row_dim || icol >= in_col_dim) continue;
              const int tap = wrot180 ? (kernel_dim - 1 - krow) * kernel_dim + kernel_dim - 1 - kcol : krow * kernel_dim + kcol;
              for (int ich = 0; ich < in_channels; ich++) {
                const elem_t x = trans_input_3120 ? input[((ich * in_row_dim + irow) * in_col_dim + icol) * batch_size + b]
                                                  : input[((b * in_row_dim + irow) * in_col_dim + icol) * in_stride + ich];
                const elem_t w = trans_weight_1203   ? weights[(ich * kernel_dim * kernel_dim + tap) * out_channels + och]
                                 : trans_weight_0132 ? weights[(tap * out_channels + och) * in_channels + ich]
                                                     : weights[(tap * in_channels + ich) * weight_stride + och];
                sum += (acc_t)x * (acc_t)w;
              }
            }
          plane[orow * out_col_dim + ocol] = sum;
        }
      for (int prow = 0; prow < pool_rows; prow++)
        for (int pcol = 0; pcol < pool_cols; pcol++) {
          elem_t best = 0; /* positions outside count as zero */
          for (int tap = 0; tap < pool_size * pool_size; tap++) {
            const int orow = prow * pool_stride + tap / pool_size - pool_padding;
            const int ocol = pcol * pool_stride + tap % pool_size - pool_padding;
            const bool inside = orow >= 0 && ocol >= 0 && orow < out_row_dim && ocol < out_col_dim;
            const elem_t value = inside ? scale_and_sat(plane[orow * out_col_dim + ocol], act, scale, 0) : 0;
            if (tap == 0 || value > best) best = value;
          }
          output[trans_output_1203 ? ((prow * pool_cols + pcol) * batch_size + b) * out_channels + och
                                   : ((b * pool_rows + prow) * pool_cols + pcol) * out_stride + och] = best;
        }
    }
  free(plane);
}

static inline void conv_dw_cpu(int batch_size, int in_row_dim, int in_col_dim, int channels, int out_row_dim,
                               int out_col_dim, int stride, int padding, int kernel_dim, const elem_t *input,
                               const elem_t *weights, const acc_t *bias, elem_t *output, int act, acc_scale_t scale,
                               int pool_size, int pool_stride, int pool_padding) {
  for (int ch = 0; ch < channels; ch++)
    conv_cpu(batch_size, in_row_dim, in_col_dim, 1, 1, out_row_dim, out_col_dim, stride, 1, 1, padding, kernel_dim,
             channels, 1, channels, false, false, false, false, false, input + ch,
             weights + ch * kernel_dim * kernel_dim, bias ? bias + ch : NULL, output + ch, act, scale, pool_size,
             pool_stride, pool_padding);
}

static inline void resadd_cpu(size_t I, size_t J, size_t stride, scale_t A_scale, scale_t B_scale, acc_scale_t C_scale,
                              const elem_t *A, const elem_t *B, elem_t *C, bool relu) {
  for (size_t i = 0; i < I; i++)
    for (size_t j = 0; j < J; j++) {
      const size_t at = i * stride + j;
      const acc_t sum = (acc_t)MVIN_SCALE(A[at], A_scale) + (acc_t)MVIN_SCALE(B[at], B_scale);
      C[at] = scale_and_sat(sum, relu ? RELU : NO_ACTIVATION, C_scale, 0);
    }
}

static inline void global_average_cpu(const elem_t *input, elem_t *output, int batches, int channels, int dim) {
  for (int b = 0; b < batches; b++)
    for (int ch = 0; ch < channels; ch++) {
      acc_t sum = 0;
      for (int pixel = 0; pixel < dim * dim; pixel++) sum += input[(b * dim * dim + pixel) * channels + ch];
      output[b * channels + ch] = scale_and_sat(sum, NO_ACTIVATION, (acc_scale_t)(1.0 / (dim * dim)), 0);
    }
}

#endif
