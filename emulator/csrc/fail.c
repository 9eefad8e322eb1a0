#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "machine.h"
#include "regions.h"

static const char *function_name(uint32_t funct) {
  static const char *const names[] = {
      "config",      "mvin2",    "mvin",           "mvout",          "compute_preloaded", "compute_accumulated",
      "preload",     "flush",    "loop_ws",        "loop_ws_bounds", "loop_ws_addrs_ab",  "loop_ws_addrs_dc",
      "loop_ws_strides_ab",      "loop_ws_strides_dc", "mvin3",      "loop_conv_ws",      "loop_conv_ws_config_1",
      "loop_conv_ws_config_2",   "loop_conv_ws_config_3", "loop_conv_ws_config_4", "loop_conv_ws_config_5",
      "loop_conv_ws_config_6",   "clkgate",        "store_spad",     "loop_ws_spad_ab",   "loop_ws_spad_c"};
  if (funct == COUNTER) return "counter";
  if (funct == CORE_ACCESS) return "core access";
  return funct < sizeof names / sizeof *names ? names[funct] : "instruction";
}

static int describe_operand(char *out, size_t size, const char *name, uint64_t bits) {
  const Operand operand = decode(bits);
  if (operand.garbage) return snprintf(out, size, " %s=garbage", name);
  return snprintf(out, size, " %s=%s%s%s[%u] %ux%u", name, operand.accumulator ? "acc" : "spad",
                  operand.accumulator && operand.accumulate ? "+" : "",
                  operand.accumulator && operand.full_width ? "(full)" : "", operand.row, operand.rows, operand.cols);
}

static void describe_instruction(char *out, size_t size) {
  static const char *const kinds[] = {"config_ex", "config_ld", "config_st", "config_norm"};
  const uint32_t funct = machine.funct;
  char address[128];
  int used;
  switch (funct) {
    case CONFIG:
      snprintf(out, size, "%s", kinds[machine.rs1 & 3]);
      return;
    case MVIN:
    case MVIN2:
    case MVIN3:
    case MVOUT:
      used = snprintf(out, size, "%s dram=%s", function_name(funct),
                      machine.rs1 ? region_describe(machine.rs1, address, sizeof address) : "zeros");
      describe_operand(out + used, size - (size_t)used, "local", machine.rs2);
      return;
    case PRELOAD:
    case COMPUTE_PRELOADED:
    case COMPUTE_ACCUMULATED:
      used = snprintf(out, size, "%s", function_name(funct));
      used += describe_operand(out + used, size - (size_t)used, funct == PRELOAD ? "BD" : "A", machine.rs1);
      describe_operand(out + used, size - (size_t)used, funct == PRELOAD ? "C" : "BD", machine.rs2);
      return;
    default:
      snprintf(out, size, "%s", function_name(funct));
  }
}

void fail(const char *format, ...) {
  char what[512], instruction[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  describe_instruction(instruction, sizeof instruction);
  const bool unrolled = machine.funct != machine.issued;
  snprintf(machine.error, sizeof machine.error, "instruction %llu (%s%s%s)%s%s: %s",
           (unsigned long long)machine.counts.core_instructions, instruction, unrolled ? " in " : "",
           unrolled ? function_name(machine.issued) : "", machine.layer_name[0] ? ", layer " : "", machine.layer_name, what);
  machine.failed = true;
  if (machine.config.exit_on_error) {
    fprintf(stderr, "gemmini emulator: %s\n", machine.error);
    exit(1);
  }
  longjmp(machine.abandon, 1);
}
