/* Rounding and saturation exactly as the hardware does them. */
#ifndef FADIFF_NUMERICS_H
#define FADIFF_NUMERICS_H

#include <stdbool.h>
#include <stdint.h>

static inline int32_t wrapping_add(int32_t a, int32_t b) { return (int32_t)((uint32_t)a + (uint32_t)b); }

/* Saturate to int8, rounding half to even.  Clamping first is the same (the bounds are integers and
 * rounding is monotone) and makes adding 1.5 * 2^23 an exact rounding that compilers vectorise. */
static inline int8_t saturate_i8(float value) {
  const float magic = 12582912.0f;
  const float low = value > -128.0f ? value : -128.0f;
  const float clamped = low < 127.0f ? low : 127.0f;
  return (int8_t)(int32_t)((clamped + magic) - magic);
}

static inline int8_t scale_to_i8(int32_t value, float scale) { return saturate_i8((float)value * scale); }

/* Accumulator read: ReLU on the sum, one float32 multiplication, round, saturate. */
static inline void scale_row_to_i8(const int32_t *in, uint32_t cols, float scale, bool relu, int8_t *out) {
  const int32_t floor = relu ? 0 : INT32_MIN;
  for (uint32_t j = 0; j < cols; j++) {
    const int32_t value = in[j] > floor ? in[j] : floor;
    out[j] = saturate_i8((float)value * scale);
  }
}

/* I-GELU on the sum, modulo 2^32 in every step; then as above. */
static inline void igelu_row_to_i8(const int32_t *in, uint32_t cols, float scale, uint32_t qb, uint32_t qc, int8_t *out) {
  for (uint32_t j = 0; j < cols; j++) {
    const uint32_t q = (uint32_t)in[j], size = in[j] < 0 ? 0 - q : q;
    const uint32_t clipped = (int32_t)size > (int32_t)(0 - qb) ? 0 - qb : size;
    const uint32_t polynomial = (clipped + qb) * (clipped + qb) + qc;
    const uint32_t value = q * ((in[j] < 0 ? 0 - polynomial : polynomial) + qc);
    out[j] = saturate_i8((float)(int32_t)value * scale);
  }
}

static inline void scale_row_f32(const float *in, uint32_t cols, float scale, bool relu, float *out) {
  for (uint32_t j = 0; j < cols; j++) out[j] = (relu && in[j] < 0 ? 0 : in[j]) * scale;
}

/* Output-stationary shift: arithmetic right shift, rounding half to even. */
static inline int32_t rounding_shift(int32_t value, uint32_t shift) {
  if (!shift) return value;
  const int32_t floor = value >> shift;
  const uint32_t rest = (uint32_t)value & ((1u << shift) - 1), half = 1u << (shift - 1);
  return floor + (rest > half || (rest == half && (floor & 1)));
}

#endif
