"""Gemmini instructions from Python: a machine with numpy arrays as DRAM."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import numpy as np

from fadiff.costmodel.target.target import Target
from fadiff.emulator.machine import Machine

ACC = 1 << 31
ACCUMULATE = 1 << 30
FULL = 1 << 29
GARBAGE = 0xFFFFFFFF
WS, OS, CPU = 1, 0, 2
RELU, LAYERNORM, IGELU = 1, 2, 3
PROGRAMS = Path(__file__).parent / "programs"
SHARED = ("-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")
ROWS = np.arange(64, dtype=np.int8).reshape(16, 4)
"""Operands of four columns: a tile of 4 rows, and three more behind it."""
WORDS = np.arange(64, dtype=np.int32).reshape(16, 4)


def target(side: int = 4, **changes: object) -> Target:
    """A small Gemmini: 64 scratchpad rows, 32 accumulator rows at side 4."""
    values: dict[str, object] = {
        "name": "tiny",
        "side": side,
        "scratchpad_bytes": 64 * side,
        "accumulator_bytes": 32 * side * 4,
        "max_bytes": 4 * side,
    }
    if changes.get("element_type") == "float32":
        values.update(element_bytes=4, scratchpad_bytes=256 * side, max_bytes=16 * side)
    return Target.model_validate(values | changes)


def bits(value: float) -> int:
    """A float32 as the integer that carries it."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def local(address: int, cols: int, rows: int) -> int:
    """rs2 of a move, rs1 or rs2 of a compute."""
    return rows << 48 | cols << 32 | address


class Device(Machine):
    """A machine whose methods are the instructions."""

    def config_ex(
        self, dataflow: int = WS, *, act: int = 0, shift: int = 0, scale: float = 1.0, a_stride: int = 1,
        c_stride: int = 1, a_transpose: bool = False, b_transpose: bool = False,
    ) -> None:  # fmt: skip
        rs1 = (
            bits(scale) << 32
            | a_stride << 16
            | b_transpose << 9
            | a_transpose << 8
            | act << 3
            | dataflow << 2
        )
        self.issue(0, rs1, c_stride << 48 | shift)

    def config_ld(
        self, stride: int, *, state: int = 0, scale: float = 1.0, shrunk: bool = False,
        block_stride: int | None = None, pixels: int = 1,
    ) -> None:  # fmt: skip
        block = 0xFFFF if block_stride is None else block_stride
        self.issue(0, bits(scale) << 32 | block << 16 | pixels << 8 | state << 3 | shrunk << 2 | 1, stride)

    def config_st(
        self, stride: int, *, act: int = 0, scale: float = 1.0, pool: tuple[int, ...] = (0,) * 9
    ) -> None:
        """pool: stride, size, out_dim, porows, pocols, orows, ocols, upad, lpad."""
        pool_stride, size, out_dim, porows, pocols, orows, ocols, upad, lpad = pool
        rs1 = ocols << 56 | orows << 48 | pocols << 40 | porows << 32 | out_dim << 24 | lpad << 10 | upad << 8
        self.issue(0, rs1 | size << 6 | pool_stride << 4 | act << 2 | 2, bits(scale) << 32 | stride)

    def config_norm(self, qb: int, qc: int, *, softmax: bool = False) -> None:
        """Activation's highest bit, and constants."""
        self.issue(0, softmax << 16 | 3, (qc % 2**32) << 32 | qb % 2**32)

    def mvin(self, source: np.ndarray | None, address: int, cols: int, rows: int, state: int = 0) -> None:
        pointer = 0 if source is None else source.ctypes.data
        self.issue((2, 1, 14)[state], pointer, local(address, cols, rows))

    def mvout(self, to: np.ndarray, address: int, cols: int, rows: int) -> None:
        self.issue(3, to.ctypes.data, local(address, cols, rows))

    def preload(self, bd: int, c: int, bd_shape: tuple[int, int], c_shape: tuple[int, int]) -> None:
        """Shapes are (rows, cols)."""
        self.issue(6, local(bd, bd_shape[1], bd_shape[0]), local(c, c_shape[1], c_shape[0]))

    def compute(
        self, a: int, bd: int, a_shape: tuple[int, int], bd_shape: tuple[int, int], *, flip: bool = True
    ) -> None:
        """Shapes are (rows, cols)."""
        rs2 = local(bd, bd_shape[1], bd_shape[0])
        self.issue(4 if flip else 5, local(a, a_shape[1], a_shape[0]), rs2)

    def expect_error(self, *fragments: str) -> str:
        """The machine stopped, and says so in these words."""
        message = self.error
        assert message is not None, "no error"
        for fragment in fragments:
            assert fragment in message, message
        return message


def load_operands(device: Device) -> None:
    """A in rows 0..3, B in rows 4..7, zeros in accumulator rows 0..3."""
    device.mvin(ROWS, 0, 4, 4)
    device.mvin(ROWS[4:], 4, 4, 4)
    device.mvin(None, ACC, 4, 4, state=2)


def saturate(values: np.ndarray) -> np.ndarray:
    """Round half to even, then clip to int8."""
    return np.clip(np.rint(values), -128, 127).astype(np.int8)


def requantise(sums: np.ndarray, scale: float, relu: bool = False) -> np.ndarray:
    """An accumulator read at element width."""
    active = np.maximum(sums, 0) if relu else sums
    return saturate(active.astype(np.float32) * np.float32(scale))


def pool(x: np.ndarray, size: int, stride: int, padding: int) -> np.ndarray:
    """Max pooling of N H W C."""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))[:, ::stride, ::stride].max(
        (-2, -1)
    )


def call(library: ctypes.CDLL, machine: Machine, function: str, *arguments: object) -> None:
    """A C function with arrays by address; the machine must not complain."""
    converted: list[object] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            converted.append(ctypes.c_void_p(argument.ctypes.data))
        elif isinstance(argument, float):
            converted.append(ctypes.c_float(argument))
        elif argument is None:
            converted.append(ctypes.c_void_p(None))
        else:
            converted.append(ctypes.c_int(int(argument)))  # type: ignore[call-overload]
    getattr(library, function)(*converted)
    machine.check()
