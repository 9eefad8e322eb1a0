/* State of the one machine, shared by the files of the model. */
#ifndef FADIFF_MACHINE_H
#define FADIFF_MACHINE_H

#include <setjmp.h>
#include <string.h>

#include "fadiff_emulator.h"
#include "instruction.h"

#define MAX_DIM 256
#define LOAD_STATES 3
#define MAX_QUEUE 64
#define NUM_FUNCTS 128

/* What the strict checks and the cycle estimate know about one local-memory row. */
typedef struct {
  uint64_t valid;        /* columns ever written (one bit per dim/64 columns beyond dim 64) */
  uint64_t loaded;       /* columns written by `load`, while that may still be in flight */
  uint32_t load;         /* number of the last mvin that wrote the row, 0 = none */
  uint32_t tail_load;    /* the packed mvin in whose untracked last rows this row is, 0 = none */
  uint32_t writer_start; /* first row of the last compute that wrote the row */
  uint32_t writer_fence; /* fence count at that compute, 0 = no compute wrote it */
  uint32_t copied_fence; /* fence count when a store that is not tracked read the row, 0 = never */
  uint32_t strewn_fence; /* fence count when a STORE_SPAD with a stride wrote the row untracked, 0 = never */
  uint32_t touched;      /* layer visit that last used the row */
  double ready, free;    /* estimated cycles: last write done, last read done, */
  double settled;        /* and when what a compute wrote is there for all but computes that add to it */
} Row;

typedef struct {
  const char *name;
  Row *rows;
  uint32_t count;
  uint32_t used, peak; /* distinct rows touched in this layer, most in any layer */
} Memory;

typedef struct {
  uint64_t stride;
  uint32_t block_stride, pixels;
  float scale;
  bool shrunk, configured;
} LoadState;

typedef struct {
  bool configured;
  uint32_t dataflow, activation, shift, a_stride, c_stride;
  float acc_scale;
  bool a_transpose, b_transpose;
} ExecuteState;

typedef struct {
  bool configured, relu, igelu, has_polynomial;
  uint64_t stride;
  float scale;
  uint32_t qb, qc; /* of I-GELU; given by CONFIG_NORM, they stay */
  uint32_t pool_stride, pool_size, pool_upad, pool_lpad, pool_out_dim, porows, pocols, orows, ocols;
} StoreState;

/* What the array is doing; its matrices are in array.c. */
typedef struct {
  bool loaded;      /* something has been flipped in by COMPUTE_PRELOADED */
  bool pending;     /* a PRELOAD waits for its COMPUTE */
  bool pending_new; /* that PRELOAD names a matrix */
  Operand result;   /* C of the pending PRELOAD */
  double ready;     /* when the preloaded operand is in local memory */
  uint32_t bank;    /* of the scratchpad, that it is in */
} Array;

typedef struct {
  fadiff_config config;
  bool by_program; /* the configuration is that of a program's gemmini_params.h */
  bool configured;

  Memory spad, acc;
  void *spad_data, *acc_data; /* int8_t or float; int32_t or float */
  uint32_t mask_shift;        /* columns per bit of Row.valid, as a power of two */

  LoadState load[LOAD_STATES];
  ExecuteState execute;
  StoreState store;
  Array array;
  uint64_t loop_ws[10], loop_conv[12]; /* rs1, rs2 of the configuration instructions, in funct order */
  uint32_t loop_ws_calls, loop_conv_calls, loop_conv_d_half, loop_conv_c_half;
  uint32_t loop_ws_half[3]; /* accumulator half of the next loads of D, products, stores of C */
  struct {
    uint32_t A_start, B_end;
    bool given; /* by LOOP_WS_CONFIG_SPAD_AB; stays until given again */
  } loop_ws_spad[2]; /* alternate calls */
  uint32_t loop_ws_loads[2], loop_conv_loads[2]; /* the last mvin of each of the last two calls */

  uint32_t loads;         /* mvins so far */
  uint32_t fence_load;    /* the last one known to be over: a fence, or a hardware loop, waited for it */
  bool completed[MAX_QUEUE]; /* load is known to be done because something read it */
  uint32_t fence_count;   /* starts at 1 */
  uint32_t layer_visit;   /* starts at 1 */

  int layer;
  char layer_name[128];
  uint32_t issued; /* by the program */
  uint32_t funct;  /* being executed: the same, or unrolled from a hardware loop */
  uint64_t rs1, rs2;
  fadiff_counts counts;
  uint64_t executed[NUM_FUNCTS];

  bool failed;
  char error[1024];
  jmp_buf abandon;
} Machine;

extern Machine machine;

static inline uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

static inline uint32_t minimum(uint32_t a, uint32_t b) { return a < b ? a : b; }

static inline uint32_t element_bytes(void) { return machine.config.is_float ? 4 : 1; }

#endif
