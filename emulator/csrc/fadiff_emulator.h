/* Public interface of the functional Gemmini model.
 *
 * One machine per process.  A program reaches it through fadiff_rocc() and fadiff_fence() (see
 * headers/rocc-software/src/xcustom.h); everything else is for whoever runs the program.
 */
#ifndef FADIFF_EMULATOR_H
#define FADIFF_EMULATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* the library is built with hidden visibility */

/* One Gemmini instance.  Flags are 0 or 1; rates are per cycle of the accelerator clock. */
typedef struct {
  uint32_t dim;               /* DIM: the array is dim x dim, a local-memory row holds dim elements */
  uint32_t bank_num;          /* BANK_NUM scratchpad banks of */
  uint32_t bank_rows;         /* BANK_ROWS rows each */
  uint32_t acc_rows;          /* ACC_ROWS accumulator rows in all */
  uint32_t max_block_len;     /* MAX_BLOCK_LEN: dim-wide blocks one scratchpad mvin may move */
  uint32_t max_block_len_acc; /* MAX_BLOCK_LEN_ACC */
  uint32_t is_float;          /* elem_t and acc_t are float instead of int8_t and int32_t */
  uint32_t has_mvin_scale;
  uint32_t has_max_pool;
  uint32_t has_row_packing; /* HAS_FIRST_LAYER_OPTIMIZATIONS: pixel_repeats > 1 */
  uint32_t has_full_width_read;
  uint32_t has_normalizations; /* HAS_NORMALIZATIONS: CONFIG_NORM */
  uint32_t has_os;            /* output-stationary dataflow */
  uint32_t has_ws;            /* weight-stationary dataflow */
  uint32_t has_transformed_conv; /* has_training_convs: wrot180, dilated input, trans_* */
  uint32_t ex_read_from_acc;  /* compute operands may live in the accumulator */
  uint32_t ex_write_to_spad;  /* compute results may go to the scratchpad */
  uint32_t use_tl_ext_mem;    /* STORE_SPAD has a writer */
  uint32_t check_regions;     /* DRAM accesses must lie in a region of the current layer */
  uint32_t exit_on_error;     /* print the error and exit(1) instead of halting the machine */
  uint32_t load_queue;        /* reservation station entries; a load this many loads back is done */
  uint32_t execute_queue;     /* a PRELOAD and its COMPUTE take one each */
  uint32_t store_queue;
  double cache_bytes;                 /* of that cache; 0: everything comes from DRAM */
  double dram_bytes_per_cycle;        /* of what it lacks */
  double tile_buffer_bytes_per_cycle; /* of the bus to the SoC's cache, which holds the tile buffer */
  double request_cycles;              /* of a load between one DMA request (<= 64 bytes of a row) and the next */
  double store_row_cycles;            /* of a store to read a row of local memory */
  double load_latency;                /* from the last request to the data in local memory */
  double store_latency;               /* from the last request to the store being over */
  double fence_cycles;                /* core cycles around a fence: calls, addresses, configurations */
  double array_latency;               /* from the last row into the array to its result in local memory */
  double issue_cycles;                /* core cycles per RoCC instruction, */
  double loop_issue_cycles;           /* and per one that sets up or starts a hardware loop */
} fadiff_config;

/* Role of a DRAM region; loads are attributed to the lowest role that holds the row. */
enum { FADIFF_I, FADIFF_I2, FADIFF_W, FADIFF_BIAS, FADIFF_PSUM, FADIFF_O };
enum { FADIFF_DRAM, FADIFF_TILE_BUFFER };

typedef struct {
  uint64_t bytes_read, bytes_written; /* by Gemmini's DMA */
  uint64_t rows_read, rows_written;
} fadiff_traffic;

typedef struct {
  uint64_t core_instructions;      /* issued by the program */
  uint64_t dram_read, dram_written; /* bytes, memory class dram */
  uint64_t tile_buffer_read, tile_buffer_written;
  uint64_t rows_in, rows_out;      /* local-memory rows moved by mvin, mvout */
  uint64_t macs;                   /* useful multiply-accumulates */
  uint64_t fences;
  uint64_t peak_spad_rows;         /* most distinct rows any one layer touched */
  uint64_t peak_acc_rows;
  double cycles;                   /* estimate, see timing.c */
  double load_busy, execute_busy, store_busy;
  double host_busy;                /* of the core, with operators that it runs itself */
} fadiff_counts;

/* Instruction stream.  fadiff_rocc returns the value of the counter instruction, else 0. */
uint64_t fadiff_rocc(uint32_t funct, uint64_t rs1, uint64_t rs2);
void fadiff_fence(void);
uint64_t fadiff_cycles(void);
/* The core computes something itself for that many cycles. */
void fadiff_compute(double cycles);

/* Builds a machine, dropping the previous one.  Returns 0, or -1 with fadiff_error() set. */
int fadiff_configure(const fadiff_config *config);
/* For programs: like fadiff_configure with defaults for what gemmini_params.h does not say. */
void fadiff_configure_from_header(uint32_t dim, uint32_t bank_num, uint32_t bank_rows, uint32_t acc_rows,
                                  uint32_t max_block_len, uint32_t max_block_len_acc, int is_float, int has_mvin_scale);
/* Clears memories, counts and the error; keeps configuration and regions. */
void fadiff_reset(void);
/* Drops all regions and layers. */
void fadiff_clear_regions(void);
/* Adds a region to a layer; returns its number for fadiff_region_traffic. */
int fadiff_add_region(int layer, const char *name, const void *start, size_t bytes, int role, int memory);
fadiff_traffic fadiff_region_traffic(int region);
/* Names the layer that later instructions belong to, -1 for none. */
void fadiff_enter_layer(int layer, const char *name);
/* Fails when Gemmini stored to these bytes since the last fence: the CPU is about to read them. */
int fadiff_require_fence(const char *reader, const void *start, size_t bytes);
/* The core has stored here: Gemmini may touch the bytes after the next fence.  Fails when it may still be loading them
 * from the tile buffer. */
void fadiff_core_stored(const void *start, size_t bytes);

fadiff_counts fadiff_get_counts(void);
/* How often the instruction ran, unrolled ones included. */
uint64_t fadiff_executed(uint32_t funct);
/* NULL while all is well, else the first error; a machine with an error ignores instructions. */
const char *fadiff_error(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
