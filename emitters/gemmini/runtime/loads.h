/* Loads of images, weights and biases, instruction by instruction. */
#ifndef FADIFF_LOADS_H
#define FADIFF_LOADS_H

#include <stddef.h>

#include "accumulator.h"
#include "pace.h"

/* An image N H W C in memory.  Strides are in elements, channels are contiguous. */
typedef struct {
    const elem_t *data;
    ptrdiff_t first;    /* elements before those at `data`: a tile buffer holds a part of the image */
    ptrdiff_t stride_n, stride_y, stride_x;
    int32_t height, width; /* pixels outside are padding: zero */
    int32_t block;         /* channels of one pixel in a scratchpad row */
    int32_t repeats;       /* pixels in a scratchpad row (row packing) */
} image_t;

/* The loads of a box of an image: one scratchpad row per pixel (n, y, x), channel block after channel block. */
typedef struct {
    image_t image;
    bool inside; /* nothing of it is padding */
    int32_t row, block_stride;
    int32_t n, n_count, y, y_count, x, x_count, c, c_count;
    ptrdiff_t pitch;
    int32_t i, j, l, m; /* where the next load starts: image n + i, line y + j, pixel x + l, channel c + m */
    pace_t pace;
} image_box_t;

static inline image_box_t image_box(
    const image_t *image, int32_t row, int32_t n, int32_t n_count, int32_t y, int32_t y_count, int32_t x,
    int32_t x_count, int32_t c, int32_t c_count, int32_t products)
{
    const bool inside = y >= 0 && y + y_count <= image->height && x >= 0 && x + x_count <= image->width;
    const int32_t chunk = image->block == DIM ? MAX_BLOCK_LEN * DIM : image->block;
    const int32_t block_stride = n_count * y_count * x_count;
    ptrdiff_t pitch = image->stride_x;
    if (inside) {
        pitch = join_lines(image->stride_n, image->stride_y, image->stride_x, &n_count, &y_count, &x_count);
    }
    const int32_t line = (x_count + DIM - 1) / DIM + (inside ? 0 : 2); /* the two: padding */
    return (image_box_t){
        .image = *image, .inside = inside, .row = row, .block_stride = block_stride, .pitch = pitch,
        .n = n, .n_count = block_stride > 0 ? n_count : 0, .y = y, .y_count = y_count, .x = x, .x_count = x_count,
        .c = c, .c_count = c_count,
        .pace = pace_of(n_count * y_count * line * ((c_count + chunk - 1) / chunk), products),
    };
}

/* Issues up to `count` loads, of the first `lines` lines. */
static inline void load_box(image_box_t *box, int32_t count, int32_t lines)
{
    const image_t *image = &box->image;
    const int32_t chunk = image->block == DIM ? MAX_BLOCK_LEN * DIM : image->block;
    if (count > 0 && box->i < box->n_count && box->j < lines) {
        gemmini_extended5_config_ld(
            (uint64_t)box->pitch * sizeof(elem_t), MVIN_SCALE_IDENTITY, false, box->block_stride, image->repeats, 0);
    }
    for (; count > 0 && box->i < box->n_count && box->j < lines; count--) {
        const int32_t y = box->y + box->j;
        int32_t first = 0;
        int32_t last = box->x_count; /* pixels first..last of the line are in the image */
        if (!box->inside) {
            const bool padding = y < 0 || y >= image->height;
            first = padding ? last : MIN(MAX(-box->x, 0), last);
            last = padding ? last : MAX(MIN(image->width - box->x, last), first);
        }
        const bool zeros = box->l < first || box->l >= last;
        const int32_t stop = box->l < first ? first : box->l < last ? last : box->x_count;
        const int32_t pixels = MIN(DIM, stop - box->l);
        const ptrdiff_t from = (box->n + box->i) * image->stride_n + y * image->stride_y + box->x * image->stride_x
                               + box->l * box->pitch + box->c + box->m - image->first;
        gemmini_extended_mvin(
            zeros ? 0 : (uintptr_t)(image->data + from),
            (uint32_t)(box->row + box->m / image->block * box->block_stride + box->l),
            MIN(chunk, box->c_count - box->m), pixels);
        box->m += chunk;
        if (box->m >= box->c_count) {
            box->m = 0;
            box->l += pixels;
        }
        if (box->l == box->x_count) {
            box->l = 0;
            box->row += box->x_count;
            box->j++;
        }
        if (box->j == box->y_count) {
            box->j = 0;
            box->i++;
        }
    }
}

/* Issues all loads of a box. */
static inline void load_image(
    const image_t *image, int32_t row, int32_t n, int32_t n_count, int32_t y, int32_t y_count, int32_t x,
    int32_t x_count, int32_t c, int32_t c_count)
{
    /* Gemmini's reservation station moves the rows of a packed load down by repeats - 1, so that nothing
     * orders its last rows against products: wait for those before and for the load after. */
    if (image->repeats > 1) {
        gemmini_fence();
    }
    image_box_t box = image_box(image, row, n, n_count, y, y_count, x, x_count, c, c_count, 1);
    load_box(&box, INT32_MAX, INT32_MAX);
    if (image->repeats > 1) {
        gemmini_fence();
    }
}

/* Weights R S C K in memory.  Strides are in elements, output channels are contiguous. */
typedef struct {
    const elem_t *data;
    ptrdiff_t stride_r, stride_s, stride_c;
    int32_t block; /* output channels in a scratchpad row */
} weights_t;

/* Taps that adjoin in memory go as one, where an instruction would move less than DIM rows otherwise. */
static inline void merge_taps(const weights_t *weights, int32_t *r_count, int32_t *s_count, int32_t *c_count)
{
    if (*c_count % DIM != 0 && *c_count * weights->stride_c == weights->stride_s) {
        *c_count *= *s_count;
        *s_count = 1;
        if (*c_count * weights->stride_c == weights->stride_r) {
            *c_count *= *r_count;
            *r_count = 1;
        }
    }
}

/* Loads a box of weights: one scratchpad row per (r, s, c), output channel block after block.  Input channels go
 * outermost, as products use them: the first can start while the rest is on its way. */
static inline void load_weights(
    const weights_t *weights, int32_t row, int32_t r, int32_t r_count, int32_t s, int32_t s_count, int32_t c,
    int32_t c_count, int32_t k, int32_t k_count)
{
    const elem_t *from = weights->data + r * weights->stride_r + s * weights->stride_s + c * weights->stride_c + k;
    const int32_t chunk = weights->block == DIM ? MAX_BLOCK_LEN * DIM : weights->block;
    const int32_t block_stride = r_count * s_count * c_count;
    merge_taps(weights, &r_count, &s_count, &c_count);
    gemmini_extended4_config_ld(
        (uint64_t)weights->stride_c * sizeof(elem_t), MVIN_SCALE_IDENTITY, false, block_stride, 1);
    for (int32_t l = 0; l < c_count; l += DIM) {
        for (int32_t i = 0; i < r_count; i++) {
            for (int32_t j = 0; j < s_count; j++) {
                const elem_t *tap
                    = from + i * weights->stride_r + j * weights->stride_s + l * weights->stride_c;
                for (int32_t m = 0; m < k_count; m += chunk) {
                    const int32_t block = row + m / weights->block * block_stride;
                    gemmini_extended_mvin2(
                        (uintptr_t)(tap + m), (uint32_t)(block + (i * s_count + j) * c_count + l),
                        MIN(chunk, k_count - m), MIN(DIM, c_count - l));
                }
            }
        }
    }
}

/* Weights that load while products run.  Boxes, each one scratchpad row per (r, s, c). */
typedef struct {
    weights_t weights;
    int32_t row, boxes, box_rows;
    ptrdiff_t box_stride;
    int32_t r_count, s_count, c_count, k_count;
    int32_t box, r, s, c, k; /* where the next load starts */
    int32_t issued, end;     /* loads so far, and after this run */
    int32_t products;        /* of this run */
    pace_t pace;
} early_t;

/* Output channels that one instruction loads. */
static inline int32_t early_chunk(const early_t *early)
{
    return early->weights.block == DIM ? MAX_BLOCK_LEN * DIM : early->weights.block;
}

/* Starts one of `runs` runs that share all loads. */
static inline void start_early(early_t *early, int32_t runs)
{
    const int32_t chunk = early_chunk(early);
    const int32_t tiles = ((early->c_count + DIM - 1) / DIM) * ((early->k_count + chunk - 1) / chunk);
    const int32_t loads = early->boxes * early->r_count * early->s_count * tiles;
    early->end = MIN(early->issued + (loads + runs - 1) / runs, loads);
    early->pace = pace_of(early->end - early->issued, early->products);
}

/* Issues all loads before load `end`. */
static inline void load_early(early_t *early, int32_t end)
{
    const int32_t chunk = early_chunk(early);
    const int32_t block_stride = early->r_count * early->s_count * early->c_count;
    if (early->issued < end) {
        gemmini_extended4_config_ld(
            (uint64_t)early->weights.stride_c * sizeof(elem_t), MVIN_SCALE_IDENTITY, false, block_stride, 1);
    }
    for (; early->issued < end; early->issued++) {
        const elem_t *from = early->weights.data + early->box * early->box_stride + early->r * early->weights.stride_r
                             + early->s * early->weights.stride_s + early->c * early->weights.stride_c + early->k;
        const int32_t tap = early->r * early->s_count + early->s;
        const int32_t block = early->k / early->weights.block * block_stride;
        gemmini_extended_mvin2(
            (uintptr_t)from, (uint32_t)(early->row + early->box * early->box_rows + block + tap * early->c_count + early->c),
            MIN(chunk, early->k_count - early->k), MIN(DIM, early->c_count - early->c));
        early->k += chunk;
        if (early->k >= early->k_count) {
            early->k = 0;
            early->s++;
        }
        if (early->s == early->s_count) {
            early->s = 0;
            early->r++;
        }
        if (early->r == early->r_count) {
            early->r = 0;
            early->c += DIM;
        }
        if (early->c >= early->c_count) {
            early->c = 0;
            early->box++;
        }
    }
}

/* Before a product: the loads that are due. */
static inline void load_share(early_t *early)
{
    if (early->issued < early->end) {
        const int32_t count = moves_due(&early->pace);
        load_early(early, MIN(early->issued + count, early->end));
    }
}

/* What load_weights would load, over as many products. */
static inline early_t slice_of(
    const weights_t *weights, int32_t row, int32_t r, int32_t r_count, int32_t s, int32_t s_count, int32_t c,
    int32_t c_count, int32_t k, int32_t k_count, int32_t products)
{
    early_t slice = {
        .weights = *weights, .row = row, .boxes = 1,
        .r_count = r_count, .s_count = s_count, .c_count = c_count, .k_count = k_count, .products = products,
    };
    slice.weights.data += r * weights->stride_r + s * weights->stride_s + c * weights->stride_c + k;
    merge_taps(weights, &slice.r_count, &slice.s_count, &slice.c_count);
    start_early(&slice, 1);
    return slice;
}

/* Fills `rows` accumulator rows per block of output channels with the bias. */
static inline void load_bias(const acc_t *bias, int32_t row, int32_t rows, int32_t k_count, int32_t block)
{
    gemmini_extended4_config_ld(0, MVIN_SCALE_IDENTITY, false, DIM, 2);
    for (int32_t k = 0; k < k_count; k += block) {
        for (int32_t i = 0; i < rows; i += DIM) {
            const uint32_t target = OVERWRITE | (uint32_t)(row + k / block * rows + i);
            gemmini_extended_mvin3((uintptr_t)(bias + k), target, MIN(block, k_count - k), MIN(DIM, rows - i));
        }
    }
}

#endif
