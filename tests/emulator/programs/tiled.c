/* Programs against gemmini.h, as shared-object entry points: each runs one of the library's tiled functions. */
#include "include/gemmini.h"

void run_matmul(int I, int J, int K, const elem_t *A, const elem_t *B, const void *D, void *C, int transpose_A,
                int transpose_B, int full_C, int low_D, int repeating_bias, int act, float scale, float A_scale, int type)
{
    tiled_matmul_auto((size_t)I, (size_t)J, (size_t)K, A, B, D, C, (size_t)(transpose_A ? I : K),
                      (size_t)(transpose_B ? K : J), (size_t)J, (size_t)J, A_scale, MVIN_SCALE_IDENTITY,
                      MVIN_SCALE_IDENTITY, act, scale, 0, repeating_bias, transpose_A, transpose_B, full_C, low_D, 0,
                      (enum tiled_matmul_type_t)type);
}

void run_matmul_tiles(int I, int J, int K, const elem_t *A, const elem_t *B, const void *D, void *C, int tile_I,
                      int tile_J, int tile_K, float scale)
{
    tiled_matmul((size_t)I, (size_t)J, (size_t)K, A, B, D, C, (size_t)K, (size_t)J, (size_t)J, (size_t)J,
                 MVIN_SCALE_IDENTITY, MVIN_SCALE_IDENTITY, MVIN_SCALE_IDENTITY, NO_ACTIVATION, scale, 0, true,
                 (size_t)tile_I, (size_t)tile_J, (size_t)tile_K, false, false, false, false, 0, WS);
}

void run_conv(int n, int h, int w, int ci, int co, int oh, int ow, int stride, int input_dilation, int kernel_dilation,
              int padding, int kernel, int wrot180, int trans_output, int trans_input, int trans_weight_1203,
              int trans_weight_0132, const elem_t *input, const elem_t *weights, const acc_t *bias, elem_t *output,
              int act, float scale, int pool_size, int pool_stride, int pool_padding, int type)
{
    tiled_conv_auto(n, h, w, ci, co, oh, ow, stride, input_dilation, kernel_dilation, padding, kernel, wrot180,
                    trans_output, trans_input, trans_weight_1203, trans_weight_0132, input, weights, bias, output, act,
                    scale, pool_size, pool_stride, pool_padding, (enum tiled_matmul_type_t)type);
    gemmini_fence();
}

void run_conv_groups(int h, int w, int groups, int ci, int co, int kernel, int padding, const elem_t *input,
                     const elem_t *weights, const acc_t *bias, elem_t *output, float scale)
{
    for (int g = 0; g < groups; g++) {
        tiled_conv_stride_auto(1, h, w, ci, co, h, w, 1, 1, 1, padding, kernel, groups * ci, groups * co, groups * co,
                               false, false, false, false, false, input + g * ci, weights + g * co, bias + g * co,
                               output + g * co, RELU, scale, 0, 0, 0, WS);
    }
    gemmini_fence();
}

void run_conv_dw(int n, int h, int w, int channels, int oh, int ow, int stride, int padding, int kernel,
                 const elem_t *input, const elem_t *weights, const acc_t *bias, elem_t *output, int act, float scale,
                 int type)
{
    tiled_conv_dw_auto(n, h, w, channels, oh, ow, stride, padding, kernel, input, weights, bias, output, act, scale, 0,
                       0, 0, (enum tiled_matmul_type_t)type);
    gemmini_fence();
}

void run_conv_downsample(int dim, int ci, int co, const elem_t *input, const elem_t *weights, const acc_t *bias,
                         elem_t *output, float scale)
{
    tiled_conv_downsample(1, dim, dim, ci, co, dim / 2, dim / 2, ci, co, co, input, weights, bias, output,
                          NO_ACTIVATION, scale, WS);
}

void run_resadd(int I, int J, float A_scale, float B_scale, float C_scale, const elem_t *A, const elem_t *B, elem_t *C,
                int relu, int type)
{
    tiled_resadd_auto((size_t)I, (size_t)J, A_scale, B_scale, C_scale, A, B, C, relu, (enum tiled_matmul_type_t)type);
}

void run_global_average(int n, int channels, int dim, const elem_t *input, elem_t *output, int type)
{
    tiled_global_average_auto(input, output, n, channels, dim, (enum tiled_matmul_type_t)type);
    gemmini_fence();
}

/* A kernel of kh x kw with its own padding on each side: what the hardware loop can do and tiled_conv cannot. */
void run_loop_conv(int h, int w, int ci, int co, int kh, int kw, int top, int left, int bottom, int right, int oh,
                   int ow, const elem_t *input, const elem_t *weights, const acc_t *bias, elem_t *output, float scale)
{
    gemmini_extended_config_st(co * (int)sizeof(elem_t), RELU, scale);
    gemmini_config_ex(WEIGHT_STATIONARY, NO_ACTIVATION, 0);
    gemmini_loop_conv_ws(1, h, w, ci, co, oh, ow, oh, ow, 1, 0, kw, 1, 1, 1, 0, 1, oh, ow, co, kh, kw, ci, left, right,
                         top, bottom, 0, 0, 0, 0, oh, ow, weights, output, bias, input, false, true, false, false,
                         false, RELU, false, false, false, false, 1, ci, co, co, false, 1, 2);
    gemmini_fence();
}

/* C = scale * (A * B) with the sum over K cut in two: partial sums leave at full width and come back. */
void run_spilled_matmul(int K, const elem_t *A, const elem_t *B, acc_t *partial, elem_t *C, float scale)
{
    const uint32_t sums = 1u << 31;
    for (int k = 0; k < K; k += DIM) {
        const int depth = K - k < DIM ? K - k : DIM;
        gemmini_config_ex(WEIGHT_STATIONARY, NO_ACTIVATION, 0);
        gemmini_extended3_config_ld(K * (int)sizeof(elem_t), MVIN_SCALE_IDENTITY, false, 0);
        gemmini_extended3_config_ld(DIM * sizeof(elem_t), MVIN_SCALE_IDENTITY, false, 1);
        gemmini_extended3_config_ld(DIM * sizeof(acc_t), MVIN_SCALE_IDENTITY, false, 2);
        gemmini_extended_mvin(A + k, 0, depth, DIM);
        gemmini_extended_mvin2(B + k * DIM, DIM, DIM, depth);
        if (k > 0) {
            gemmini_extended_mvin3(partial, sums, DIM, DIM);
        }
        gemmini_extended_preload(DIM, sums | (k > 0 ? 1u << 30 : 0), DIM, depth, DIM, DIM);
        gemmini_extended_compute_preloaded(0, GARBAGE_ADDR, depth, DIM, DIM, DIM);
        if (k + DIM < K) {
            gemmini_config_st(DIM * sizeof(acc_t));
            gemmini_extended_mvout(partial, sums | 1u << 29, DIM, DIM);
        } else {
            gemmini_extended_config_st(DIM * sizeof(elem_t), NO_ACTIVATION, scale);
            gemmini_extended_mvout(C, sums, DIM, DIM);
        }
        gemmini_fence();
    }
}
