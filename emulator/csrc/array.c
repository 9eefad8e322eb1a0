#include "array.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

int32_t array_sums_i32[MAX_DIM][PITCH];
float array_sums_f32[MAX_DIM][PITCH];

/* Pairs of k side by side, so that one multiply-add instruction handles both: [k / 2][j][k % 2]. */
typedef int16_t PackedWeights[MAX_DIM / 2][PITCH][2];
static PackedWeights packed[2];
static float plain[2][MAX_DIM][PITCH];
static int stationary; /* which of the two buffers computes; PRELOAD fills the other */

void array_clear_next(uint32_t rows) {
  const int next = !stationary;
  for (uint32_t k = 0; k < rows; k++)
    for (uint32_t j = 0; j < machine.config.dim; j++)
      if (machine.config.is_float)
        plain[next][k][j] = 0;
      else
        packed[next][k / 2][j][k % 2] = 0;
}

void array_set_next_i8(uint32_t k, const int8_t *row, uint32_t cols, bool transposed) {
  PackedWeights *next = &packed[!stationary];
  if (transposed)
    for (uint32_t j = 0; j < cols; j++) (*next)[j / 2][k][j % 2] = row[j];
  else
    for (uint32_t j = 0; j < cols; j++) (*next)[k / 2][j][k % 2] = row[j];
}

void array_set_next_f32(uint32_t k, const float *row, uint32_t cols, bool transposed) {
  for (uint32_t j = 0; j < cols; j++) *(transposed ? &plain[!stationary][j][k] : &plain[!stationary][k][j]) = row[j];
}

void array_flip(bool output_stationary) {
  stationary = !stationary;
  if (!output_stationary) return;
  for (uint32_t i = 0; i < machine.config.dim; i++)
    for (uint32_t j = 0; j < machine.config.dim; j++)
      if (machine.config.is_float)
        array_sums_f32[i][j] = plain[stationary][i][j];
      else
        array_sums_i32[i][j] = packed[stationary][i / 2][j][i % 2];
}

void array_multiply_i8(int8_t a[][PITCH], uint32_t rows, uint32_t depth, int32_t sums[][PITCH]) {
  const uint32_t pairs = (depth + 1) / 2, dim = machine.config.dim;
  const PackedWeights *weights = &packed[stationary];
  for (uint32_t i = 0; i < rows; i++) {
#ifdef __SSE2__
    for (uint32_t j = 0; j < dim; j += 16) { /* columns beyond dim are zero */
      __m128i s0 = _mm_loadu_si128((__m128i *)&sums[i][j]), s1 = _mm_loadu_si128((__m128i *)&sums[i][j + 4]);
      __m128i s2 = _mm_loadu_si128((__m128i *)&sums[i][j + 8]), s3 = _mm_loadu_si128((__m128i *)&sums[i][j + 12]);
      for (uint32_t p = 0; p < pairs; p++) {
        const uint32_t pair = (uint16_t)a[i][2 * p] | (uint32_t)(uint16_t)a[i][2 * p + 1] << 16;
        const __m128i both = _mm_set1_epi32((int32_t)pair);
        const __m128i *w = (const __m128i *)&(*weights)[p][j];
        s0 = _mm_add_epi32(s0, _mm_madd_epi16(both, _mm_loadu_si128(w)));
        s1 = _mm_add_epi32(s1, _mm_madd_epi16(both, _mm_loadu_si128(w + 1)));
        s2 = _mm_add_epi32(s2, _mm_madd_epi16(both, _mm_loadu_si128(w + 2)));
        s3 = _mm_add_epi32(s3, _mm_madd_epi16(both, _mm_loadu_si128(w + 3)));
      }
      _mm_storeu_si128((__m128i *)&sums[i][j], s0);
      _mm_storeu_si128((__m128i *)&sums[i][j + 4], s1);
      _mm_storeu_si128((__m128i *)&sums[i][j + 8], s2);
      _mm_storeu_si128((__m128i *)&sums[i][j + 12], s3);
    }
#else
    for (uint32_t p = 0; p < pairs; p++)
      for (uint32_t j = 0; j < dim; j++)
        sums[i][j] += a[i][2 * p] * (*weights)[p][j][0] + a[i][2 * p + 1] * (*weights)[p][j][1];
#endif
  }
}

void array_multiply_f32(float a[][PITCH], uint32_t rows, uint32_t depth, float sums[][PITCH]) {
  for (uint32_t i = 0; i < rows; i++)
    for (uint32_t k = 0; k < depth; k++)
      for (uint32_t j = 0; j < machine.config.dim; j++) sums[i][j] += a[i][k] * plain[stationary][k][j];
}
