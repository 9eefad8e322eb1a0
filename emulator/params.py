"""gemmini_params.h for a target: what the hardware generator would write for that instance."""

from __future__ import annotations

from fadiff.costmodel.target.target import Target

_COMMON = """\
/* {target.name}: {target.sizes}. */
#ifndef GEMMINI_PARAMS_H
#define GEMMINI_PARAMS_H

#include <limits.h>
#include <stdint.h>

#define XCUSTOM_ACC 3
#define DIM {target.side}
#define ADDR_LEN 32
#define BANK_NUM {target.scratchpad_banks}
#define BANK_ROWS {bank_rows}
#define ACC_ROWS {target.accumulator_rows}
#define MAX_BYTES {target.max_bytes}
#define MAX_BLOCK_LEN {target.max_block_len}
#define MAX_BLOCK_LEN_ACC {max_block_len_acc}

{types}
#define row_align(blocks) __attribute__((aligned((blocks) * DIM * sizeof(elem_t))))
#define row_align_acc(blocks) __attribute__((aligned((blocks) * DIM * sizeof(acc_t))))

#define MVIN_SCALE_IDENTITY 1.0
#define ACC_SCALE_IDENTITY 1.0

#ifdef __cplusplus
#define SAME_TYPE(x) decltype(x)
#else
#define SAME_TYPE(x) typeof(x)
#endif

#define ACC_SCALE_T_IS_FLOAT
#define ACC_SCALE_EXP_BITS 8
#define ACC_SCALE_SIG_BITS 24
{flags}
#endif
"""

_INT8 = """\
typedef int8_t elem_t;
static const elem_t elem_t_max = 127;
static const elem_t elem_t_min = -128;
typedef int32_t acc_t;
typedef int64_t full_t;
#define HAS_MVIN_SCALE
typedef float scale_t;
typedef uint32_t scale_t_bits;
typedef int32_t scale_acc_t;
typedef uint32_t scale_acc_t_bits;
typedef float acc_scale_t;
typedef uint32_t acc_scale_t_bits;

/* Nearest integer, ties to even: adding 1.5 * 2^23 rounds a float of that size to an integer. */
static inline float gemmini_round_near_even(float x) {
  return x >= 4194304.0f || x <= -4194304.0f ? x : (x + 12582912.0f) - 12582912.0f;
}
static inline int8_t gemmini_scale(int32_t x, float scale) {
  const float y = gemmini_round_near_even((float)x * scale);
  return (int8_t)(y > 127.0f ? 127.0f : y < -128.0f ? -128.0f : y);
}
/* Arithmetic right shift, ties to even; a negative shift is a left shift. */
static inline int64_t gemmini_rounding_right_shift(int64_t x, int shift) {
  if (shift <= 0) return x << -shift;
  const int64_t low = x >> shift, rest = x - (low << shift), half = (int64_t)1 << (shift - 1);
  return low + (rest > half || (rest == half && (low & 1)));
}
#define ROUND_NEAR_EVEN(x) gemmini_round_near_even(x)
#define ROUNDING_RIGHT_SHIFT(x, shift) gemmini_rounding_right_shift(x, shift)
#define ROUNDING_RIGHT_SHIFT_BITS(x, shift) gemmini_rounding_right_shift(x, shift)
#define ACC_SCALE(x, scale) ((acc_t)gemmini_scale(x, scale))
#define MVIN_SCALE(x, scale) gemmini_scale(x, scale)
#define MVIN_SCALE_ACC(x, scale) (x)
"""

_FLOAT = """\
typedef float elem_t;
static const elem_t elem_t_max = 3.4028235e38f;
static const elem_t elem_t_min = -3.4028235e38f;
typedef float acc_t;
typedef double full_t;
typedef uint32_t elem_t_bits;
typedef uint32_t acc_t_bits;
#define HAS_MVIN_SCALE
typedef float scale_t;
typedef uint32_t scale_t_bits;
#define HAS_MVIN_ACC_SCALE
typedef float scale_acc_t;
typedef uint32_t scale_acc_t_bits;
typedef float acc_scale_t;
typedef uint32_t acc_scale_t_bits;
#define ELEM_T_IS_FLOAT
#define ELEM_T_EXP_BITS 8
#define ELEM_T_SIG_BITS 24
#define ACC_T_EXP_BITS 8
#define ACC_T_SIG_BITS 24

#define ROUND_NEAR_EVEN(x) (x)
#define ROUNDING_RIGHT_SHIFT(x, shift) ((x) / (float)(1ll << (shift)))
#define ROUNDING_RIGHT_SHIFT_BITS(x, shift) ROUNDING_RIGHT_SHIFT(x, shift)
#define ACC_SCALE(x, scale) ((x) * (scale))
#define MVIN_SCALE(x, scale) ((x) * (scale))
#define MVIN_SCALE_ACC(x, scale) ((x) * (scale))
"""


def params_header(target: Target) -> str:
    """The text of include/gemmini_params.h that describes `target`.

    Same names and meanings as the header Chisel elaboration writes; block lengths are plain
    integers so that a row wider than MAX_BYTES still moves one block.
    """
    flags = ["#define ACC_READ_SMALL_WIDTH"]
    if target.has_full_width_read:
        flags.append("#define ACC_READ_FULL_WIDTH")
    if target.has_row_packing:
        flags.append("#define HAS_FIRST_LAYER_OPTIMIZATIONS")
    if target.has_normalizations:
        flags += ["#define HAS_NORMALIZATIONS", "#define NORM_STAT_IDS 2"]
    return _COMMON.format(
        target=target,
        bank_rows=target.scratchpad_rows // target.scratchpad_banks,
        max_block_len_acc=max_block_len_acc(target),
        types=_FLOAT if target.element_type == "float32" else _INT8,
        flags="\n".join(flags),
    )


def max_block_len_acc(target: Target) -> int:
    """MAX_BLOCK_LEN_ACC: side-wide blocks one accumulator mvin of full-width words may move."""
    return max(1, target.max_bytes // (target.side * target.accumulator_bytes_per_word))
