"""Runs emitted firmware on the functional model and collects what every layer left behind."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fadiff.costmodel.target.target import Target
from fadiff.emitters.memory_map import (
    MEMORY_MAP,
    LayerPlace,
    MemoryMap,
    Region,
    TensorPlace,
    Tile,
    read_memory_map,
)
from fadiff.emulator.errors import ExecutionError, FirmwareError
from fadiff.emulator.machine import Counts, Machine

BEGIN, END, COMPLETE, PAUSE = 0, 1, 2, 3
_REQUEST_BYTES = 64
_HOOK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
_POISON = 0xA5
"""What the arena holds before a run: reading what no layer wrote does not look like zeros."""


@dataclass(frozen=True)
class RegionTraffic:
    """Bytes moved by one layer through one of its regions."""

    tensor: str
    role: str
    memory: str
    read: int
    write: int


@dataclass(frozen=True)
class LayerRun:
    """What one layer did, over all its tiles."""

    name: str
    traffic: tuple[RegionTraffic, ...]
    cycles: int
    """Estimated, from the first instruction of a tile to its last."""


@dataclass(frozen=True)
class RunResult:
    """One inference: tensors in storage order by name, intermediates included."""

    tensors: Mapping[str, np.ndarray]
    layers: tuple[LayerRun, ...]
    counts: Counts
    absent: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of fused intermediates: True where no group tile needs, hence computes, the element."""


class Firmware:
    """Emitted firmware, loaded: one entry of it, where it has several.  On one machine at a time per process.

    Args:
        folder: The firmware folder, for its memory map.
        built: Shared object from `fadiff.emulator.build.build_firmware`.
        target: What the firmware was emitted for.
        machine: That of other entries, which run on it in turn; None: a new one.
        map_name: The file of the memory map.

    Raises:
        MemoryMapError: the memory map is unusable.
        FirmwareError: a symbol is missing.
    """

    def __init__(
        self,
        folder: Path,
        built: Path,
        target: Target,
        machine: Machine | None = None,
        map_name: str = MEMORY_MAP,
    ) -> None:
        self.memory_map: MemoryMap = read_memory_map(folder / map_name)
        self._machine = machine or Machine(target)
        self._lib = ctypes.CDLL(str(built))
        symbols = self.memory_map.symbols
        self._bases: dict[tuple[str, int], int] = {}
        for name, symbol in (
            ("arena", symbols.arena),
            ("weights", symbols.weights),
            ("tile_buffer", symbols.tile_buffer),
            ("state", symbols.state),
        ):
            if symbol.bytes:
                self._bases[name, 0] = self._address(symbol.name)
        self._inputs = self._arguments("input", self.memory_map.inputs)
        self._outputs = self._arguments("output", self.memory_map.outputs)
        self._regions: list[list[tuple[Region, int]]] = []
        self._run = getattr(self._lib, f"{self.memory_map.model}_run")
        self._run.restype = ctypes.c_int
        self._set_hook = getattr(self._lib, f"{self.memory_map.model}_set_hook")
        self._set_hook.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._set_hook.restype = None

    def reset(self) -> None:
        """Set the states of the program to zero."""
        if self.memory_map.states:
            owner = self.memory_map.symbols.state.name.removesuffix("_state")
            reset = getattr(self._lib, f"{owner}_reset")
            reset.restype = None
            reset()

    def run(self, inputs: Mapping[str, np.ndarray]) -> RunResult:
        """One inference.

        Args:
            inputs: One array per argument of the program, by tensor name, in storage order and dtype.

        Raises:
            ExecutionError: the program broke a rule of the hardware, or returned non-zero.
        """
        for name, buffer in self._inputs.items():
            np.copyto(buffer, inputs[name].reshape(buffer.shape), casting="no")
        for kind in ("arena", "tile_buffer"):
            if size := getattr(self.memory_map.symbols, kind).bytes:
                ctypes.memset(self._bases[kind, 0], _POISON, size)
        machine = self._machine
        machine.clear_regions()
        self._regions = [
            [(region, self._add_region(index, region)) for region in layer.regions]
            for index, layer in enumerate(self.memory_map.layers)
        ]
        machine.reset()
        observer = _Observer(self)
        hook = _HOOK(observer.observe)
        self._set_hook(hook, None)
        try:
            machine.enter_layer(-1, "(before the first layer)")
            for buffer in self._inputs.values():
                machine.core_stored(buffer.ctypes.data, buffer.nbytes)
            pointers = [
                ctypes.c_void_p(b.ctypes.data) for b in (*self._inputs.values(), *self._outputs.values())
            ]
            status = self._run(*pointers)
        finally:
            self._set_hook(None, None)
        if observer.failure is not None:
            raise observer.failure
        machine.check()
        machine.require_fence("the caller")
        machine.check()
        if status:
            raise ExecutionError(f"{self.memory_map.model}_run returned {status}")
        observer.tensors.update({name: buffer.copy() for name, buffer in self._outputs.items()})
        return RunResult(observer.tensors, self._layer_runs(observer), machine.counts(), observer.absent)

    def _layer_runs(self, observer: _Observer) -> tuple[LayerRun, ...]:
        traffic: dict[str, list[RegionTraffic]] = {layer.name: [] for layer in self.memory_map.layers}
        for layer, regions in zip(self.memory_map.layers, self._regions, strict=True):
            for region, number in regions:
                moved = self._machine.traffic(number)
                of_region = RegionTraffic(region.tensor, region.role, region.memory, moved.read, moved.write)
                traffic[layer.name].append(of_region)
        return tuple(
            LayerRun(layer.name, tuple(traffic[layer.name]), cycles)
            for layer, cycles in zip(self.memory_map.layers, observer.cycles, strict=True)
        )

    def _address(self, symbol: str) -> int:
        try:
            return ctypes.addressof(ctypes.c_uint8.in_dll(self._lib, symbol))
        except ValueError as error:
            raise FirmwareError(
                f"the firmware has no symbol {symbol}, which memory_map.json names"
            ) from error

    def _arguments(self, kind: str, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        buffers = {}
        for index, name in enumerate(names):
            place = self.memory_map.tensors[name]
            buffers[name] = _aligned(place.shape, place.dtype)
            self._bases[kind, index] = buffers[name].ctypes.data
        return buffers

    def _add_region(self, layer: int, region: Region) -> int:
        address = self.locate(region.symbol, region.index, region.offset)
        name = f"{region.role} {region.tensor}"
        return self._machine.add_region(layer, name, address, region.bytes, region.role, region.memory)

    def locate(self, symbol: str, index: int, offset: int) -> int:
        """Host address of a place in the memory map."""
        try:
            return self._bases[symbol, index] + offset
        except KeyError:
            raise FirmwareError(f"memory_map.json uses {symbol} {index}, which has no bytes") from None


class _Observer:
    """Gets the firmware's hook calls: names the layer, takes outputs before they are overwritten."""

    def __init__(self, firmware: Firmware) -> None:
        self.firmware = firmware
        self.machine = firmware._machine
        self.tensors: dict[str, np.ndarray] = {}
        self.absent: dict[str, np.ndarray] = {}
        self.cycles = [0] * len(firmware.memory_map.layers)
        self.failure: Exception | None = None
        self._began = 0
        self._visits = [0] * len(firmware.memory_map.layers)
        self._tiles: list[dict[int, list[Tile]]] = []
        for layer in firmware.memory_map.layers:
            by_visit: dict[int, list[Tile]] = {}
            for tile in layer.tiles:
                by_visit.setdefault(tile.visit, []).append(tile)
            self._tiles.append(by_visit)

    def observe(self, _context: int | None, index: int, phase: int) -> int:
        """The hook.  An exception cannot cross the C frames: it stops the run, and `run` raises it."""
        try:
            self._observe(index, phase)
        except Exception as error:
            self.failure = error
        return self.failure is not None

    def _observe(self, index: int, phase: int) -> None:
        layer = self.firmware.memory_map.layers[index]
        if phase == BEGIN:
            self.machine.enter_layer(index, layer.name)
            self._began = self.machine.cycles()
            if layer.kind == "host":
                self._require_fence(index, layer)
        elif phase in (PAUSE, END):
            if (work := layer.work) is not None:
                self.machine.compute(work.operator, work.elements / work.visits / work.parts)
                if work.elements:  # the stores of a convolution do a pool that joined it
                    self._core_stored(layer, self._tiles[index].get(self._visits[index], ()))
            self.cycles[index] += self.machine.cycles() - self._began
            if phase == PAUSE:
                return
            for tile in self._tiles[index].get(self._visits[index], ()):
                self._take_tile(layer, tile)
            self._visits[index] += 1
            self.machine.enter_layer(-1, f"(after {layer.name})")
        elif phase == COMPLETE:
            for name in layer.outputs:
                place = self.firmware.memory_map.tensors.get(name)
                if place is not None and place.symbol is not None:
                    self.tensors[name] = self._take(place)

    def _require_fence(self, index: int, layer: LayerPlace) -> None:
        """Of all that Gemmini stored; while it runs another layer, of what this one uses."""
        if layer.inputs is not None:
            for name in (*layer.inputs, *layer.outputs):
                place = self.firmware.memory_map.tensors[name]
                address = self.firmware.locate(place.symbol or "", place.index, place.offset)
                self.machine.require_fence(f"layer {layer.name}", address, place.bytes)
            return
        if layer.reads is None:
            self.machine.require_fence(f"layer {layer.name}")
            return
        for tile in self._tiles[layer.reads].get(self._visits[index], ()):
            self.machine.require_fence(f"layer {layer.name}", *self._span(tile, layer))

    def _span(self, tile: Tile, layer: LayerPlace) -> tuple[int, int]:
        """Address and size of a box in the tile buffer, gaps included."""
        item = np.dtype(self.firmware.memory_map.tensors[layer.outputs[0]].dtype).itemsize
        return self.firmware.locate(tile.symbol, 0, tile.offset), _extent(tile) * item

    def _core_stored(self, layer: LayerPlace, tiles: Sequence[Tile]) -> None:
        """What the core just wrote: the boxes of this visit, and the outputs that exist in full."""
        for name in layer.outputs:
            place = self.firmware.memory_map.tensors.get(name)
            if place is not None and place.symbol is not None:
                self.machine.core_stored(
                    self.firmware.locate(place.symbol, place.index, place.offset), place.bytes
                )
        for tile in tiles:
            self.machine.core_stored(*self._span(tile, layer))

    def _take(self, place: TensorPlace) -> np.ndarray:
        address = self.firmware.locate(place.symbol or "", place.index, place.offset)
        flat = np.frombuffer(ctypes.string_at(address, place.bytes), place.dtype)
        return flat[: int(np.prod(place.shape, dtype=np.int64))].reshape(place.shape).copy()

    def _take_tile(self, layer: LayerPlace, tile: Tile) -> None:
        """Copy a box of a tensor that never exists in full."""
        name = layer.outputs[0]
        place = self.firmware.memory_map.tensors[name]
        whole = self.tensors.setdefault(name, np.zeros(place.shape, place.dtype))
        box = self._box(tile, np.dtype(place.dtype))
        at = layer.part(tile)
        absent = self.absent.setdefault(name, np.ones(place.shape, bool))
        box = box.reshape(*tile.shape[:3], -1, layer.image[4])
        for array, values in ((whole, box), (absent, False)):
            strides = tuple(array.itemsize * stride for stride in layer.image_strides)
            np.lib.stride_tricks.as_strided(array, layer.image, strides)[at] = values

    def _box(self, tile: Tile, dtype: np.dtype[Any]) -> np.ndarray:
        item = dtype.itemsize
        address = self.firmware.locate(tile.symbol, 0, tile.offset)
        flat = np.frombuffer(ctypes.string_at(address, _extent(tile) * item), dtype)
        strides = tuple(stride * item for stride in tile.strides)
        return np.lib.stride_tricks.as_strided(flat, tile.shape, strides, writeable=False)


def _extent(tile: Tile) -> int:
    """Elements from the first of a box to its last."""
    return 1 + sum((n - 1) * s for n, s in zip(tile.shape, tile.strides, strict=True))


def _aligned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Zeros that start with a DMA request, as the firmware's own buffers do: estimates then repeat."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    room = np.zeros(nbytes + _REQUEST_BYTES, np.uint8)
    start = -room.ctypes.data % _REQUEST_BYTES
    return room[start : start + nbytes].view(dtype).reshape(shape)
