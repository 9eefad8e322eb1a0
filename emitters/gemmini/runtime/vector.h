/* Runs of int8 by the core's vector unit (RVV 1.0), to the bit what the loops of the other headers make of them.  The
 * firmware defines FADIFF_VECTOR where its target says so (core.vector); programs for the host go without. */
#ifndef FADIFF_VECTOR_H
#define FADIFF_VECTOR_H

#include "elements.h"

#if defined(FADIFF_VECTOR) && !defined(__riscv)
#undef FADIFF_VECTOR
#endif

#ifdef FADIFF_VECTOR
#ifndef __riscv_v_intrinsic
#error "the target has a vector unit (core.vector): compile with -march=rv64gcv and GCC 14, clang 17 or newer"
#endif
#include <riscv_vector.h>

/* The statement for parts of `count` elements: `vl` of them from i on. */
#define EACH_VECTOR(i, vl, count, statement)                                                   \
    for (size_t i = 0, vl; i < (size_t)(count); i += vl) {                                     \
        vl = __riscv_vsetvl_e8m2((size_t)(count) - i);                                         \
        statement;                                                                             \
    }

ALWAYS_INLINE vint16m4_t vector_load(const int8_t *x, size_t vl)
{
    return __riscv_vsext_vf2_i16m4(__riscv_vle8_v_i8m2(x, vl), vl);
}

ALWAYS_INLINE vfloat32m8_t vector_float(vint16m4_t x, size_t vl)
{
    return __riscv_vfwcvt_f_x_v_f32m8(x, vl);
}

/* As to_elem: the rounding mode is the nearest number, ties to even, unless a program has changed it. */
ALWAYS_INLINE void vector_store(int8_t *y, vfloat32m8_t value, size_t vl)
{
    const vfloat32m8_t limited
        = __riscv_vfmin_vf_f32m8(__riscv_vfmax_vf_f32m8(value, -128.0f, vl), 127.0f, vl);
    __riscv_vse8_v_i8m2(y, __riscv_vncvt_x_x_w_i8m2(__riscv_vfncvt_x_f_w_i16m4(limited, vl), vl), vl);
}

static inline void vector_lookup(const int8_t *x, const int8_t *table, int8_t *y, int32_t count)
{
    for (size_t i = 0, vl; i < (size_t)count; i += vl) {
        vl = __riscv_vsetvl_e8m8((size_t)count - i);
        const vuint8m8_t from_zero
            = __riscv_vxor_vx_u8m8(__riscv_vle8_v_u8m8((const uint8_t *)x + i, vl), 0x80, vl);
        __riscv_vse8_v_i8m8(y + i, __riscv_vluxei8_v_i8m8(table, from_zero, vl), vl);
    }
}

/* relu(f32(a*b)) * scale. */
static inline void
vector_multiply(const int8_t *a, const int8_t *b, int8_t *y, int32_t count, float scale, bool relu)
{
    EACH_VECTOR(i, vl, count,
        const vfloat32m8_t fa = vector_float(vector_load(a + i, vl), vl);
        const vfloat32m8_t fb = vector_float(vector_load(b + i, vl), vl);
        vfloat32m8_t value = __riscv_vfmul_vv_f32m8(fa, fb, vl);
        value = relu ? __riscv_vfmax_vf_f32m8(value, 0.0f, vl) : value;
        vector_store(y + i, __riscv_vfmul_vf_f32m8(value, scale, vl), vl))
}

/* relu(f32(a)*A + f32(b)*B) * scale; a difference has -B: its sum is the same number. */
static inline void vector_add(
    const int8_t *a, const int8_t *b, int8_t *y, int32_t count, float a_scale, float b_scale, float scale, bool relu)
{
    EACH_VECTOR(i, vl, count,
        const vfloat32m8_t fa
            = __riscv_vfmul_vf_f32m8(vector_float(vector_load(a + i, vl), vl), a_scale, vl);
        const vfloat32m8_t fb
            = __riscv_vfmul_vf_f32m8(vector_float(vector_load(b + i, vl), vl), b_scale, vl);
        vfloat32m8_t value = __riscv_vfadd_vv_f32m8(fa, fb, vl);
        value = relu ? __riscv_vfmax_vf_f32m8(value, 0.0f, vl) : value;
        vector_store(y + i, __riscv_vfmul_vf_f32m8(value, scale, vl), vl))
}

/* relu(f32(x)*multiplier + addend). */
static inline void vector_scale_shift(
    const int8_t *x, const float *multiplier, const float *addend, int8_t *y, int32_t count, bool relu)
{
    EACH_VECTOR(i, vl, count,
        const vfloat32m8_t product = __riscv_vfmul_vv_f32m8(
            vector_float(vector_load(x + i, vl), vl), __riscv_vle32_v_f32m8(multiplier + i, vl), vl);
        const vfloat32m8_t sum
            = __riscv_vfadd_vv_f32m8(product, __riscv_vle32_v_f32m8(addend + i, vl), vl);
        vector_store(y + i, relu ? __riscv_vfmax_vf_f32m8(sum, 0.0f, vl) : sum, vl))
}

static inline int64_t vector_largest(const int8_t *x, int32_t count)
{
    vint8m1_t largest = __riscv_vmv_s_x_i8m1(-128, 1);
    EACH_VECTOR(i, vl, count,
        largest = __riscv_vredmax_vs_i8m2_i8m1(__riscv_vle8_v_i8m2(x + i, vl), largest, vl))
    return __riscv_vmv_x_s_i8m1_i8(largest);
}

/* of_zero[x], an int32 for each element. */
ALWAYS_INLINE vint32m8_t vector_entries(const int32_t *of_zero, const int8_t *x, size_t vl)
{
    const vint16m4_t from_zero = __riscv_vadd_vx_i16m4(vector_load(x, vl), 128, vl);
    const vuint16m4_t bytes = __riscv_vsll_vx_u16m4(__riscv_vreinterpret_v_i16m4_u16m4(from_zero), 2, vl);
    return __riscv_vluxei16_v_i32m8(of_zero - 128, bytes, vl);
}

static inline int64_t vector_sum_of_entries(const int32_t *of_zero, const int8_t *x, int32_t count)
{
    vint64m1_t sum = __riscv_vmv_s_x_i64m1(0, 1);
    EACH_VECTOR(i, vl, count,
        sum = __riscv_vwredsum_vs_i32m8_i64m1(vector_entries(of_zero, x + i, vl), sum, vl))
    return __riscv_vmv_x_s_i64m1_i64(sum);
}

/* The same; y gets the lowest byte of each entry. */
static inline int64_t
vector_store_entries(const int32_t *of_zero, const int8_t *x, int8_t *y, int32_t count)
{
    vint64m1_t sum = __riscv_vmv_s_x_i64m1(0, 1);
    EACH_VECTOR(i, vl, count,
        const vint32m8_t entries = vector_entries(of_zero, x + i, vl);
        sum = __riscv_vwredsum_vs_i32m8_i64m1(entries, sum, vl);
        const vint16m4_t halves = __riscv_vncvt_x_x_w_i16m4(entries, vl);
        __riscv_vse8_v_i8m2(y + i, __riscv_vncvt_x_x_w_i8m2(halves, vl), vl))
    return __riscv_vmv_x_s_i64m1_i64(sum);
}

static inline void
vector_entries_scaled(const int32_t *of_zero, const int8_t *x, int8_t *y, int32_t count, float gain)
{
    EACH_VECTOR(i, vl, count,
        const vfloat32m8_t e = __riscv_vfcvt_f_x_v_f32m8(vector_entries(of_zero, x + i, vl), vl);
        vector_store(y + i, __riscv_vfmul_vf_f32m8(e, gain, vl), vl))
}

static inline void vector_moments(const int8_t *x, int32_t count, int64_t *sum, int64_t *squares)
{
    const vint32m1_t nothing = __riscv_vmv_s_x_i32m1(0, 1);
    EACH_VECTOR(i, vl, count,
        const vint16m4_t part = vector_load(x + i, vl);
        const vint16m4_t square = __riscv_vmul_vv_i16m4(part, part, vl);
        *sum += __riscv_vmv_x_s_i32m1_i32(__riscv_vwredsum_vs_i16m4_i32m1(part, nothing, vl));
        *squares += __riscv_vmv_x_s_i32m1_i32(__riscv_vwredsum_vs_i16m4_i32m1(square, nothing, vl)))
}

/* (f32(x - middle)*factor + shift)*gamma + beta, without `shift` where nothing is centred. */
static inline void vector_normalise(
    const int8_t *x, int8_t *y, int32_t count, bool center, int16_t middle, float factor, float shift,
    const float *gamma, const float *beta)
{
    EACH_VECTOR(i, vl, count,
        const vint16m4_t distance = __riscv_vsub_vx_i16m4(vector_load(x + i, vl), middle, vl);
        vfloat32m8_t value = __riscv_vfmul_vf_f32m8(vector_float(distance, vl), factor, vl);
        value = center ? __riscv_vfadd_vf_f32m8(value, shift, vl) : value;
        value = __riscv_vfmul_vv_f32m8(value, __riscv_vle32_v_f32m8(gamma + i, vl), vl);
        value = __riscv_vfadd_vv_f32m8(value, __riscv_vle32_v_f32m8(beta + i, vl), vl);
        vector_store(y + i, value, vl))
}

/* The sum of each column times `scale`, as elements. */
static inline void vector_sum_columns(
    const int8_t *x, ptrdiff_t distance, int32_t rows, int8_t *y, int32_t columns, float scale)
{
    enum { MOST = 256 }; /* sums of int8 that int16 holds */
    EACH_VECTOR(i, vl, columns,
        vint32m8_t sum = __riscv_vmv_v_x_i32m8(0, vl);
        for (int32_t first = 0; first < rows; first += MOST) {
            vint16m4_t part = __riscv_vmv_v_x_i16m4(0, vl);
            for (int32_t r = first; r < MIN(rows, first + MOST); r++) {
                part = __riscv_vwadd_wv_i16m4(part, __riscv_vle8_v_i8m2(x + r * distance + i, vl), vl);
            }
            sum = __riscv_vwadd_wv_i32m8(sum, part, vl);
        } vector_store(y + i, __riscv_vfmul_vf_f32m8(__riscv_vfcvt_f_x_v_f32m8(sum, vl), scale, vl), vl))
}

#endif
#endif
