/* The processing elements: the stationary matrix and the products. */
#ifndef FADIFF_ARRAY_H
#define FADIFF_ARRAY_H

#include "machine.h"

/* Row pitch of every matrix here; rows are padded with zeros to a multiple of the vector width. */
#define PITCH MAX_DIM

/* The matrix a PRELOAD brings (WS: weights [k][j], OS: initial sums [i][j]); all zeros to start. */
void array_clear_next(uint32_t rows);
void array_set_next_i8(uint32_t k, const int8_t *row, uint32_t cols, bool transposed);
void array_set_next_f32(uint32_t k, const float *row, uint32_t cols, bool transposed);
/* COMPUTE_PRELOADED: the preloaded matrix becomes the stationary one. */
void array_flip(bool output_stationary);

/* sums[i][j] += sum over k of a[i][k] * weights[k][j]. */
void array_multiply_i8(int8_t a[][PITCH], uint32_t rows, uint32_t depth, int32_t sums[][PITCH]);
void array_multiply_f32(float a[][PITCH], uint32_t rows, uint32_t depth, float sums[][PITCH]);

/* Sums held in the array (output stationary). */
extern int32_t array_sums_i32[MAX_DIM][PITCH];
extern float array_sums_f32[MAX_DIM][PITCH];

#endif
