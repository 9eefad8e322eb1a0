"""The functional model from Python: configuration, DRAM regions, counts."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from fadiff.costmodel.latency.clock import clock_of
from fadiff.costmodel.target.target import Target
from fadiff.emulator.build import library
from fadiff.emulator.errors import ExecutionError
from fadiff.emulator.params import max_block_len_acc

INSTRUCTIONS: Mapping[str, tuple[int, ...]] = {
    "config": (0,),
    "mvin": (2,),
    "mvin2": (1,),
    "mvin3": (14,),
    "mvout": (3,),
    "preload": (6,),
    "compute_preloaded": (4,),
    "compute_accumulated": (5,),
    "flush": (7,),
    "loop_ws": (8,),
    "loop_ws_config": (9, 10, 11, 12, 13),
    "loop_conv_ws": (15,),
    "loop_conv_ws_config": (16, 17, 18, 19, 20, 21),
    "store_spad": (23,),
    "counter": (126,),
}
"""functs of the instruction set by name, for counts."""

_QUEUES = {"load_queue": 8, "execute_queue": 16, "store_queue": 4}
"""Reservation station entries of Gemmini's default configuration."""
_ESTIMATE = {
    "request_cycles": 0.1,
    "store_row_cycles": 1.7,
    "load_latency": 20.0,
    "store_latency": 40.0,
    "fence_cycles": 60.0,
}
"""Constants of the cycle estimate (csrc/timing.c), of moves and loops timed alone on RTL of side 16 and 32;
that of a fence, two in a layer, is what the 16 x 16 programs of `python -m benchmarks rtl` lacked."""
_COMMAND_CYCLES = 12.0
"""From one command to the next where the core issues each: 10 in a convolution timed on RTL, 20 in a product.
The clock's own coefficient is fitted to programs of hardware loops, which say nothing about it."""
_LOOP_COMMANDS = 8
"""Commands that set up and start a loop unit for one tile."""

_ROLES = {"I": 0, "I2": 1, "W": 2, "bias": 3, "psum": 4, "O": 5}
_MEMORIES = {"dram": 0, "tile-buffer": 1}
_EVERYTHING = (1 << 64) - 1


class _Traffic(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64) for name in ("bytes_read", "bytes_written", "rows_read", "rows_written")
    ]


@dataclass(frozen=True)
class Traffic:
    """Bytes that Gemmini's DMA moved through one DRAM region."""

    read: int
    write: int


@dataclass(frozen=True)
class Counts:
    """What one run did.  Bytes are the DMA's; cycles are an estimate (csrc/timing.c says of what)."""

    core_instructions: int
    instructions: Mapping[str, int]
    """By name, those that hardware loops unroll included."""
    dram_read: int
    dram_written: int
    tile_buffer_read: int
    tile_buffer_written: int
    rows_in: int
    rows_out: int
    macs: int
    fences: int
    peak_spad_rows: int
    peak_acc_rows: int
    cycles: float
    load_busy: float
    execute_busy: float
    store_busy: float
    host_busy: float

    @property
    def dram_bytes(self) -> int:
        """Read and written."""
        return self.dram_read + self.dram_written

    @property
    def tile_buffer_bytes(self) -> int:
        """Read and written."""
        return self.tile_buffer_read + self.tile_buffer_written


_COUNTED = [field for field in fields(Counts) if field.name != "instructions"]


class _Counts(ctypes.Structure):
    """struct fadiff_counts of csrc/fadiff_emulator.h: the fields of `Counts` in their order."""

    _fields_ = [
        (field.name, ctypes.c_double if field.type == "float" else ctypes.c_uint64) for field in _COUNTED
    ]


def _config(target: Target, check_regions: bool) -> ctypes.Structure:
    """struct fadiff_config of csrc/fadiff_emulator.h, field by field in its order."""
    is_float = target.element_type == "float32"
    flags = {
        "dim": target.side,
        "bank_num": target.scratchpad_banks,
        "bank_rows": target.scratchpad_rows // target.scratchpad_banks,
        "acc_rows": target.accumulator_rows,
        "max_block_len": target.max_block_len,
        "max_block_len_acc": max_block_len_acc(target),
        "is_float": is_float,
        "has_mvin_scale": True,
        "has_max_pool": target.has_max_pool,
        "has_row_packing": target.has_row_packing,
        "has_full_width_read": target.has_full_width_read,
        "has_normalizations": target.has_normalizations,
        "has_os": True,
        "has_ws": True,
        "has_transformed_conv": not is_float,
        "ex_read_from_acc": target.ex_read_from_acc,
        "ex_write_to_spad": True,
        "use_tl_ext_mem": target.use_tl_ext_mem,
        "check_regions": check_regions,
        "exit_on_error": False,
        **_QUEUES,
    }
    rates = {
        "cache_bytes": target.last_level_cache_bytes,
        "dram_bytes_per_cycle": target.bandwidth.dram_bytes,
        "tile_buffer_bytes_per_cycle": target.bandwidth.tile_buffer_bytes,
        **_ESTIMATE,
        "array_latency": 2 * target.side,
        "issue_cycles": target.core.command or _COMMAND_CYCLES,
        "loop_issue_cycles": clock_of(target).loop / _LOOP_COMMANDS,
    }

    class Config(ctypes.Structure):
        _fields_ = [*((n, ctypes.c_uint32) for n in flags), *((n, ctypes.c_double) for n in rates)]

    return Config(**flags, **rates)


@cache
def _load(model: Path) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(model), mode=ctypes.RTLD_GLOBAL)
    lib.fadiff_rocc.argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64]
    lib.fadiff_rocc.restype = ctypes.c_uint64
    lib.fadiff_configure.argtypes = [ctypes.c_void_p]
    lib.fadiff_add_region.argtypes = [
        ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int
    ]  # fmt: skip
    lib.fadiff_region_traffic.argtypes = [ctypes.c_int]
    lib.fadiff_region_traffic.restype = _Traffic
    lib.fadiff_enter_layer.argtypes = [ctypes.c_int, ctypes.c_char_p]
    lib.fadiff_require_fence.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
    lib.fadiff_core_stored.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    lib.fadiff_get_counts.restype = _Counts
    lib.fadiff_executed.argtypes = [ctypes.c_uint32]
    lib.fadiff_executed.restype = ctypes.c_uint64
    lib.fadiff_error.restype = ctypes.c_char_p
    lib.fadiff_compute.argtypes = [ctypes.c_double]
    lib.fadiff_cycles.restype = ctypes.c_uint64
    return lib


class Machine:
    """One Gemmini of a target.  There is one per process: a new one replaces the last."""

    def __init__(self, target: Target, *, check_regions: bool = True, model: Path | None = None) -> None:
        self._lib = _load(library() if model is None else model)
        self._core = target.core
        if self._lib.fadiff_configure(ctypes.byref(_config(target, check_regions))):
            raise ExecutionError(self.error or "the functional model refused the target")
        self.clear_regions()

    @property
    def error(self) -> str | None:
        """The first rule the program broke; from then on the machine ignores instructions."""
        text = self._lib.fadiff_error()
        return None if text is None else str(text.decode())

    def check(self) -> None:
        """Raises ExecutionError when a rule was broken."""
        if message := self.error:
            raise ExecutionError(message)

    def issue(self, funct: int, rs1: int, rs2: int) -> int:
        """One instruction; returns what the counter instruction returns, else 0."""
        return int(self._lib.fadiff_rocc(funct, rs1 & (1 << 64) - 1, rs2 & (1 << 64) - 1))

    def fence(self) -> None:
        """Wait until Gemmini is idle."""
        self._lib.fadiff_fence()

    def reset(self) -> None:
        """Clear memories, counts and error."""
        self._lib.fadiff_reset()

    def clear_regions(self) -> None:
        """Forget the regions that were added."""
        self._lib.fadiff_clear_regions()

    def add_region(self, layer: int, name: str, address: int, size: int, role: str, memory: str) -> int:
        """DRAM that a layer may touch; the regions of one layer are added one after the other."""
        return int(
            self._lib.fadiff_add_region(layer, name.encode(), address, size, _ROLES[role], _MEMORIES[memory])
        )

    def traffic(self, region: int) -> Traffic:
        """What moved through a region so far."""
        moved = self._lib.fadiff_region_traffic(region)
        return Traffic(moved.bytes_read, moved.bytes_written)

    def enter_layer(self, layer: int, name: str) -> None:
        """Later instructions belong to this layer (-1: to none)."""
        self._lib.fadiff_enter_layer(layer, name.encode())

    def require_fence(self, reader: str, address: int = 0, size: int = _EVERYTHING) -> None:
        """An error when the core is about to read bytes that Gemmini stored since the last fence."""
        self._lib.fadiff_require_fence(reader.encode(), address, size)

    def core_stored(self, address: int, size: int) -> None:
        """The core has stored here: an error when Gemmini touches the bytes before the next fence."""
        self._lib.fadiff_core_stored(address, size)

    def compute(self, operator: str, elements: float) -> None:
        """The core runs an operator of its own."""
        self._lib.fadiff_compute(self._core.host_cycles(operator, elements))

    def cycles(self) -> int:
        """Estimated cycles so far."""
        return int(self._lib.fadiff_cycles())

    def counts(self) -> Counts:
        """Everything counted since the last reset."""
        raw = self._lib.fadiff_get_counts()
        counted = {field.name: getattr(raw, field.name) for field in _COUNTED}
        executed = {
            name: sum(int(self._lib.fadiff_executed(funct)) for funct in functs)
            for name, functs in INSTRUCTIONS.items()
        }
        return Counts(instructions={k: v for k, v in executed.items() if v}, **counted)
