/* LOOP_CONV_WS: one weight-stationary tile of a convolution, unrolled into primitive instructions.
 *
 * Local layout (rows): input (channel block, image, row, column) from the start of a half, padding
 * stored physically; weights (output block, kernel row, column, input channel) up to the end of a
 * half; output (output block, image, row, column) in one half of the accumulator. */
#include "loop_conv.h"

#include "fail.h"
#include "local.h"
#include "machine.h"

typedef struct {
  Execute *execute; /* where the instructions go */
  /* whole layer, in elements */
  uint32_t batch_size, in_row_dim, in_col_dim, in_channels, out_channels, out_row_dim, out_col_dim;
  uint32_t pool_out_row_dim, pool_out_col_dim, stride, kernel_dim, kernel_dilation, pool_size, pool_stride;
  uint32_t in_stride, weight_stride, out_stride;
  /* tile */
  uint32_t batches, porows, pocols, pochs, krows, kcols, kchs, lpad, rpad, upad, dpad, plpad, pupad, orows, ocols;
  uint64_t weights, output, bias, input;
  bool no_bias, wrot180, trans_output_1203, trans_weight_1203, trans_weight_0132, trans_input_3120, dw;
  bool no_pool, downsample, input_dilated;
  uint32_t activation, pixels;
  /* derived: input tile with padding, local rows */
  int32_t irows, icols, irows_unpadded, icols_unpadded;
  uint32_t A_row, B_row, D_row, C_row;
} Conv;

/* Padding and positions in a dilated image count every second pixel. */
static int32_t undilated(const Conv *conv, uint32_t x) {
  return (int32_t)((x + conv->input_dilated) >> conv->input_dilated);
}

static uint32_t stored(const Conv *conv, int32_t x) { return (uint32_t)(x >> conv->downsample); }

static uint32_t image_rows(const Conv *conv) { return stored(conv, conv->irows) * stored(conv, conv->icols); }

static Conv parse(uint64_t rs1, uint64_t rs2) {
  const uint64_t *c = machine.loop_conv;
  Conv conv = {
      .batch_size = field(c[0], 0, 16), .in_row_dim = field(c[0], 16, 16), .in_channels = field(c[0], 32, 16),
      .out_channels = field(c[0], 48, 16), .out_row_dim = field(c[1], 0, 16), .pool_out_row_dim = field(c[1], 16, 16),
      .out_col_dim = field(c[1], 32, 16), .stride = field(c[1], 48, 8),
      .kernel_dim = field(c[2], 48, 16), .pool_out_col_dim = field(c[2], 32, 16), .pool_size = field(c[2], 16, 16),
      .pool_stride = field(c[2], 8, 8), .batches = field(c[3], 48, 16), .porows = field(c[3], 32, 16),
      .pocols = field(c[3], 16, 16), .pochs = field(c[3], 0, 16),
      .krows = field(c[4], 48, 16), .kcols = field(c[4], 32, 16), .kchs = field(c[4], 16, 16), .lpad = field(c[4], 0, 16),
      .rpad = field(c[5], 48, 16), .upad = field(c[5], 32, 16), .dpad = field(c[5], 24, 8), .plpad = field(c[5], 16, 8),
      .in_col_dim = field(c[5], 0, 16),
      .orows = field(c[6], 48, 16), .pupad = field(c[6], 21, 11), .kernel_dilation = field(c[6], 0, 10),
      .in_stride = field(c[7], 48, 16), .weight_stride = field(c[7], 32, 16), .out_stride = field(c[7], 16, 16),
      .ocols = field(c[7], 0, 16),
      .weights = c[8], .output = c[9], .bias = c[10], .input = c[11],
      .no_bias = field(rs1, 0, 1), .wrot180 = field(rs1, 1, 1), .trans_output_1203 = field(rs1, 2, 1),
      .trans_weight_1203 = field(rs1, 3, 1), .trans_weight_0132 = field(rs1, 4, 1),
      .trans_input_3120 = field(rs1, 5, 1), .dw = field(rs1, 6, 1), .pixels = field(rs1, 8, 8),
      .no_pool = field(rs2, 0, 1), .downsample = field(rs2, 1, 1), .input_dilated = field(rs2, 2, 1),
      .activation = field(rs2, 3, 2),
  };
  if (!conv.pixels) conv.pixels = 1;
  return conv;
}

static void check(const Conv *conv) {
  const fadiff_config *config = &machine.config;
  const bool transformed = conv->wrot180 || conv->input_dilated || conv->trans_output_1203 || conv->trans_weight_1203 ||
                           conv->trans_weight_0132 || conv->trans_input_3120;
  if (transformed && !config->has_transformed_conv)
    fail("LOOP_CONV_WS: this Gemmini has no transposed, rotated or dilated-input convolutions");
  if (!conv->batches || !conv->orows || !conv->ocols || !conv->pochs || !conv->krows || !conv->kcols || !conv->kchs)
    fail("LOOP_CONV_WS over an empty tile: batches %u, %ux%u pixels, %u output channels, kernel %ux%ux%u",
         conv->batches, conv->orows, conv->ocols, conv->pochs, conv->krows, conv->kcols, conv->kchs);
  if (conv->input_dilated && conv->stride != 1)
    fail("LOOP_CONV_WS: a dilated input needs stride 1, not %u", conv->stride);
  if (conv->pixels > 1 && !config->has_row_packing)
    fail("LOOP_CONV_WS: max_pixels_per_row %u needs HAS_FIRST_LAYER_OPTIMIZATIONS", conv->pixels);
  if (conv->activation > 1) fail("LOOP_CONV_WS activation %u is not modelled: only none and ReLU", conv->activation);
  if (!conv->no_pool && conv->output) {
    if (conv->pool_size > 3 || conv->pool_stride > 3 || conv->pupad > 3 || conv->plpad > 3)
      fail("LOOP_CONV_WS: pool size, stride and padding are at most 3");
    if (conv->pool_out_col_dim > 255 || conv->porows > 255 || conv->pocols > 255 || conv->orows > 255 ||
        conv->ocols > 255)
      fail("LOOP_CONV_WS: a pooled tile and the pooled row are at most 255 pixels long");
  }
}

/* Input tile, padding included, and where everything lies. */
static void place(Conv *conv, uint32_t a_id, uint32_t b_id) {
  const uint32_t dim = machine.config.dim, spad_half = machine.spad.count / 2, acc_half = machine.acc.count / 2;
  const uint32_t kernel_rows = conv->krows + (conv->kernel_dilation - 1) * (conv->krows - 1);
  const uint32_t kernel_cols = conv->kcols + (conv->kernel_dilation - 1) * (conv->kcols - 1);
  conv->irows = (int32_t)(conv->orows * conv->stride + kernel_rows) - 1;
  conv->icols = (int32_t)(conv->ocols * conv->stride + kernel_cols) - 1;
  conv->irows_unpadded = conv->irows - (int32_t)(conv->upad + conv->dpad);
  conv->icols_unpadded = conv->icols - (int32_t)(conv->lpad + conv->rpad);
  if (conv->input_dilated) {
    conv->irows_unpadded = (conv->irows_unpadded + 1) / 2;
    conv->icols_unpadded = (conv->icols_unpadded + 1) / 2;
    conv->irows = conv->irows_unpadded + undilated(conv, conv->upad) + undilated(conv, conv->dpad);
    conv->icols = conv->icols_unpadded + undilated(conv, conv->lpad) + undilated(conv, conv->rpad);
  }
  const uint32_t out_blocks = ceil_div(conv->pochs, dim), in_blocks = ceil_div(conv->kchs, dim);
  const uint32_t kernel = conv->krows * conv->kcols;
  const uint32_t a_rows = image_rows(conv) * (conv->trans_input_3120 ? ceil_div(conv->batches, dim) * conv->kchs
                                                                     : in_blocks * conv->batches);
  const uint32_t b_rows = kernel * (conv->trans_weight_0132 ? in_blocks * conv->pochs : out_blocks * conv->kchs);
  const uint32_t c_rows = out_blocks * conv->batches * conv->orows * conv->ocols;
  if ((uint64_t)a_rows + b_rows > spad_half)
    fail("LOOP_CONV_WS: input takes %u rows, weights %u, half the scratchpad is %u", a_rows, b_rows, spad_half);
  if (c_rows > acc_half) fail("LOOP_CONV_WS: output takes %u rows, half the accumulator is %u", c_rows, acc_half);
  if (a_id > 2 || b_id > 2) fail("LOOP_CONV_WS: spad ids are 0 (alternate), 1 or 2");
  const uint32_t half = machine.loop_conv_calls++ % 2;
  loads_over(machine.loop_conv_loads[half]);
  const uint32_t a_half = a_id ? a_id - 1 : half, b_half = b_id ? b_id - 1 : half;
  conv->A_row = a_half * spad_half;
  conv->B_row = (b_half + 1) * spad_half - b_rows;
  conv->D_row = machine.loop_conv_d_half * acc_half;
  conv->C_row = machine.loop_conv_c_half * acc_half;
  if (conv->bias) machine.loop_conv_d_half ^= 1;
  if (conv->output) machine.loop_conv_c_half ^= 1;
}

static void config_load(const Conv *conv, uint32_t state, uint64_t stride, uint32_t block_stride, uint32_t pixels) {
  const uint64_t one = 0x3F800000; /* 1.0f */
  if (block_stride > 0xFFFF) fail("LOOP_CONV_WS: block stride %u does not fit 16 bits", block_stride);
  conv->execute(CONFIG, one << 32 | (uint64_t)block_stride << 16 | pixels << 8 | state << 3 | CONFIG_LD, stride);
}

static void load_bias(const Conv *conv) {
  const uint32_t dim = machine.config.dim, image = conv->orows * conv->ocols;
  const uint32_t most = minimum(conv->pochs, machine.config.max_block_len_acc * dim);
  config_load(conv, 2, 0, conv->batches * image, 1);
  for (uint32_t b = 0; b < conv->batches; b++)
    for (uint32_t orow = 0; orow < conv->orows; orow++)
      for (uint32_t ocol = 0; ocol < conv->ocols; ocol += dim)
        for (uint32_t och = 0; och < conv->pochs; och += most) {
          const uint32_t row = conv->D_row + och / dim * conv->batches * image + b * image + orow * conv->ocols + ocol;
          conv->execute(MVIN3, conv->no_bias ? 0 : conv->bias + och * 4,
                  encode(ACC_BIT | row, minimum(most, conv->pochs - och), minimum(dim, conv->ocols - ocol)));
        }
}

static void load_input_segment(const Conv *conv, uint32_t b, int32_t irow, int32_t icol, uint32_t pixels,
                               uint32_t most) {
  const uint32_t dim = machine.config.dim, item = element_bytes(), image = image_rows(conv);
  const uint32_t line = stored(conv, irow + undilated(conv, conv->upad)) * stored(conv, conv->icols);
  const uint32_t local = line + stored(conv, icol + undilated(conv, conv->lpad));
  const bool padding = irow < 0 || irow >= conv->irows_unpadded || icol < 0 || icol >= conv->icols_unpadded;
  const int64_t pixel = (int64_t)irow * conv->in_col_dim + icol, whole = (int64_t)conv->in_row_dim * conv->in_col_dim;
  const uint32_t step = conv->trans_input_3120 ? 1 : most;
  for (uint32_t ich = 0; ich < conv->kchs; ich += step) {
    int64_t element = (b * whole + pixel) * conv->in_stride + ich;
    uint32_t row = conv->A_row + ich / dim * conv->batches * image + b * image + local;
    uint32_t cols = minimum(most, conv->kchs - ich);
    if (conv->trans_input_3120) {
      element = (ich * whole + pixel) * conv->batch_size + b;
      row = conv->A_row + b / dim * conv->kchs * image + ich * image + local;
      cols = minimum(most, conv->batches - b);
    }
    conv->execute(MVIN, padding ? 0 : conv->input + (uint64_t)(element * item),
            encode(row, cols, stored(conv, (int32_t)pixels)));
  }
}

static void load_input(const Conv *conv) {
  const uint32_t dim = machine.config.dim, item = element_bytes();
  const uint32_t packed = conv->trans_input_3120 ? conv->batches : conv->kchs;
  const uint32_t most = minimum(packed, machine.config.max_block_len * dim);
  const uint64_t stride = (uint64_t)(conv->trans_input_3120 ? conv->batch_size : conv->in_stride) * item;
  config_load(conv, 0, stride << conv->downsample,
              (conv->trans_input_3120 ? conv->kchs : conv->batches) * image_rows(conv), conv->pixels);
  const int32_t above = undilated(conv, conv->upad), below = undilated(conv, conv->dpad);
  const int32_t left = undilated(conv, conv->lpad), right = undilated(conv, conv->rpad);
  const int32_t segment = (int32_t)(dim << conv->downsample), block = (int32_t)dim;
  for (uint32_t b = 0; b < conv->batches; b += conv->trans_input_3120 ? most : 1)
    for (int32_t irow = -above; irow < conv->irows_unpadded + below; irow += 1 << conv->downsample)
      for (int32_t icol = -left; icol < conv->icols_unpadded + right;) {
        int32_t pixels = conv->icols_unpadded - icol;
        if (pixels > segment) pixels = segment;
        if (icol < 0) pixels = -icol > block ? block : -icol;
        if (icol >= conv->icols_unpadded) {
          pixels = conv->icols_unpadded + right - icol;
          if (pixels > block) pixels = block;
        }
        load_input_segment(conv, b, irow, icol, (uint32_t)pixels, most);
        icol += pixels;
      }
}

static void load_weights(const Conv *conv) {
  const uint32_t dim = machine.config.dim, item = element_bytes(), kernel = conv->krows * conv->kcols;
  const bool swapped = conv->trans_weight_0132; /* rows are output channels */
  const uint32_t most = minimum(swapped ? conv->kchs : conv->pochs, machine.config.max_block_len * dim);
  uint64_t stride = conv->weight_stride;
  if (conv->dw)
    stride = 1;
  else if (conv->trans_weight_1203)
    stride = (uint64_t)conv->kernel_dim * conv->kernel_dim * conv->out_channels;
  else if (swapped)
    stride = conv->in_channels;
  config_load(conv, 1, stride * item, kernel * (swapped ? conv->pochs : conv->kchs), 1);
  for (uint32_t och = 0; och < conv->pochs; och += swapped ? dim : most)
    for (uint32_t krow = 0; krow < conv->krows; krow++)
      for (uint32_t kcol = 0; kcol < conv->kcols; kcol++)
        for (uint32_t kch = 0; kch < conv->kchs; kch += swapped ? most : dim) {
          const uint64_t tap = (uint64_t)krow * conv->kernel_dim + kcol;
          uint32_t rows = minimum(dim, conv->kchs - kch), cols = minimum(most, conv->pochs - och);
          uint32_t row = och / dim * kernel * conv->kchs + (krow * conv->kcols + kcol) * conv->kchs + kch;
          uint64_t element = (tap * conv->in_channels + kch) * conv->weight_stride + och;
          if (swapped) {
            rows = minimum(dim, conv->pochs - och);
            cols = minimum(most, conv->kchs - kch);
            row = kch / dim * kernel * conv->pochs + (krow * conv->kcols + kcol) * conv->pochs + och;
            element = (tap * conv->out_channels + och) * conv->in_channels + kch;
          }
          if (conv->dw)
            element = tap;
          else if (conv->trans_weight_1203)
            element = ((uint64_t)kch * conv->kernel_dim * conv->kernel_dim + tap) * conv->out_channels + och;
          conv->execute(MVIN2, conv->weights + element * item, encode(conv->B_row + row, cols, rows));
        }
}

/* All output pixels of the tile for one block of weights. */
static void multiply_weights(const Conv *conv, uint32_t och, uint32_t krow, uint32_t kcol, uint32_t kch) {
  const uint32_t dim = machine.config.dim, image = image_rows(conv), kernel = conv->krows * conv->kcols;
  const uint32_t out_image = conv->orows * conv->ocols;
  const uint32_t segment = dim << conv->input_dilated;
  const uint32_t cols = minimum(dim, conv->pochs - och);
  const uint32_t depth = minimum(conv->pixels, conv->kcols - kcol) * minimum(dim, conv->kchs - kch);
  const uint32_t weight_row = conv->wrot180 ? conv->krows - krow - 1 : krow;
  const uint32_t weight_col = conv->wrot180 ? conv->kcols - kcol - 1 : kcol;
  const uint32_t tap = weight_row * conv->kcols + weight_col;
  const uint32_t weights = conv->B_row + (conv->trans_weight_0132
                                              ? kch / dim * kernel * conv->pochs + tap * conv->pochs + och
                                              : och / dim * kernel * conv->kchs + tap * conv->kchs + kch);
  bool fresh = true;
  for (uint32_t b = 0; b < conv->batches; b += conv->trans_input_3120 ? dim : 1)
    for (uint32_t orow = 0; orow < conv->orows; orow++) {
      if (conv->input_dilated && (krow * conv->kernel_dilation + orow + conv->upad) % 2) continue;
      for (uint32_t ocol = 0; ocol < conv->ocols;) {
        if (conv->input_dilated && (kcol * conv->kernel_dilation + ocol + conv->lpad) % 2) {
          ocol++;
          continue;
        }
        const int32_t irow = undilated(conv, orow * conv->stride + krow * conv->kernel_dilation);
        const int32_t icol = undilated(conv, ocol * conv->stride + kcol * conv->kernel_dilation);
        const uint32_t local = stored(conv, irow) * stored(conv, conv->icols) + stored(conv, icol);
        uint32_t a = conv->A_row + kch / dim * conv->batches * image + b * image + local;
        uint32_t rows = (uint32_t)undilated(conv, minimum(segment, conv->ocols - ocol));
        if (conv->trans_input_3120) {
          a = conv->A_row + b / dim * conv->kchs * image + kch * image + local;
          rows = minimum(dim, conv->batches - b);
        }
        const uint32_t c =
            conv->C_row + och / dim * conv->batches * out_image + b * out_image + orow * conv->ocols + ocol;
        conv->execute(PRELOAD, encode(fresh ? weights : GARBAGE, cols, depth),
                      encode(ACC_BIT | ACCUMULATE_BIT | c, cols, rows));
        conv->execute(fresh ? COMPUTE_PRELOADED : COMPUTE_ACCUMULATED, encode(a, depth, rows),
                      encode(GARBAGE, cols, rows));
        ocol += conv->trans_input_3120 ? 1 : segment;
        fresh = false;
      }
    }
}

static void multiply(const Conv *conv) {
  const uint32_t dim = machine.config.dim;
  if (conv->trans_input_3120) {
    const uint64_t a_stride = (uint64_t)(conv->irows * conv->icols), c_stride = conv->orows * conv->ocols;
    conv->execute(CONFIG, a_stride << 16 | 1 << 7 | CONFIG_EX, c_stride << 48);
  }
  for (uint32_t och = 0; och < conv->pochs; och += dim)
    for (uint32_t krow = 0; krow < conv->krows; krow++)
      for (uint32_t kcol = 0; kcol < conv->kcols; kcol += conv->pixels)
        for (uint32_t kch = 0; kch < conv->kchs; kch += dim) multiply_weights(conv, och, krow, kcol, kch);
}

static void store_output(const Conv *conv) {
  const uint32_t dim = machine.config.dim, item = element_bytes(), image = conv->orows * conv->ocols;
  for (uint32_t b = 0; b < conv->batches; b++)
    for (uint32_t orow = 0; orow < conv->orows; orow++)
      for (uint32_t ocol = 0; ocol < conv->ocols; ocol += dim)
        for (uint32_t och = 0; och < conv->pochs; och += dim) {
          const uint32_t row = conv->C_row + och / dim * conv->batches * image + b * image + orow * conv->ocols + ocol;
          const uint64_t pixel = ((uint64_t)b * conv->out_row_dim + orow) * conv->out_col_dim + ocol;
          uint64_t element = pixel * conv->out_stride + och;
          if (conv->trans_output_1203)
            element = (((uint64_t)orow * conv->out_col_dim + ocol) * conv->batch_size + b) * conv->out_channels + och;
          conv->execute(MVOUT, conv->output + element * item,
                        encode(ACC_BIT | ACCUMULATE_BIT | row, minimum(dim, conv->pochs - och),
                               minimum(dim, conv->ocols - ocol)));
        }
}

static void store_pooled(const Conv *conv) {
  const uint32_t dim = machine.config.dim, item = element_bytes(), image = conv->orows * conv->ocols;
  const uint64_t keep_scale = 0xFFFFFFFFull << 32, stride = (uint64_t)conv->out_stride * item;
  conv->execute(CONFIG,
          (uint64_t)conv->ocols << 56 | (uint64_t)conv->orows << 48 | (uint64_t)conv->pocols << 40 |
              (uint64_t)conv->porows << 32 | (uint64_t)conv->pool_out_col_dim << 24 | conv->plpad << 10 |
              conv->pupad << 8 | conv->pool_size << 6 | conv->pool_stride << 4 | conv->activation << 2 | CONFIG_ST,
          keep_scale | stride);
  for (uint32_t b = 0; b < conv->batches; b++)
    for (uint32_t och = 0; och < conv->pochs; och += dim) {
      const uint64_t pixel = (uint64_t)b * conv->pool_out_row_dim * conv->pool_out_col_dim;
      const uint32_t row = conv->C_row + och / dim * conv->batches * image + b * image;
      conv->execute(MVOUT, conv->output + (pixel * conv->out_stride + och) * item,
              encode(ACC_BIT | ACCUMULATE_BIT | row, minimum(dim, conv->pochs - och), 0));
    }
  conv->execute(CONFIG, conv->activation << 2 | CONFIG_ST, keep_scale | stride);
}

void loop_conv(uint64_t rs1, uint64_t rs2, Execute *execute) {
  Conv conv = parse(rs1, rs2);
  conv.execute = execute;
  check(&conv);
  place(&conv, field(rs1, 18, 2), field(rs1, 16, 2));
  if (conv.bias) load_bias(&conv);
  if (conv.input) load_input(&conv);
  if (conv.weights) load_weights(&conv);
  multiply(&conv);
  if (conv.output && conv.no_pool)
    store_output(&conv);
  else if (conv.output)
    store_pooled(&conv);
  machine.loop_conv_loads[(machine.loop_conv_calls - 1) % 2] = machine.loads;
}
