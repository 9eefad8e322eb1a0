"""Debug checks on the device: a fault in weights or code is found in the layer that it is in."""

from __future__ import annotations

import ctypes
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fadiff.converter.check.reference import run_reference
from fadiff.costmodel.schedule.clock import program_cycles
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.emitters.gemmini import emit
from fadiff.emitters.gemmini.layer_checks import layer_checks
from fadiff.emitters.memory_map import LayerPlace, MemoryMap, SymbolRecord, Symbols, TensorPlace
from fadiff.emulator.build import build_firmware, link_flags
from tests.emitters.gemmini.compilers import WARNINGS, hardware_flags, need, run_compiler, small_schedule
from tests.emitters.gemmini.executed import random_inputs

SOURCES = ("main.c", "small.c", "small_layers.c", "small_self_test.c", "small_weights.S")


@pytest.fixture
def firmware(tmp_path: Path) -> Path:
    graph = small_schedule().graph
    inputs = random_inputs(graph)
    vectors = inputs | run_reference(graph, inputs)
    return emit(small_schedule(), model_name="small", out_dir=tmp_path / "firmware", test_vectors=vectors)


def _checked(firmware: Path) -> tuple[int, str]:
    flags = ("-std=gnu11", "-DFADIFF_CHECK_LAYERS", *WARNINGS, *hardware_flags(firmware))
    done = run_compiler(need("gcc"), *flags, *SOURCES, *link_flags(), "-o", "main", folder=firmware)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([firmware / "main"], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout


def test_every_layer_agrees(firmware: Path) -> None:
    assert _checked(firmware) == (0, "small: 6 of 6 layers compared, all agree\nsmall: all outputs agree\n")


@pytest.mark.parametrize("groups", [(0, 0), (0, 1), (1, 0)])
def test_what_several_layers_write_is_compared_after_the_last(groups: tuple[int, int]) -> None:
    """A layer beside one of an earlier group runs before layers that precede it in the graph."""
    place = TensorPlace(shape=(2, 2), dtype="int8", symbol="arena", bytes=4)
    writers = [
        LayerPlace(name=name, kind="host", outputs=("both",), group=group, regions=())
        for name, group in zip("ab", groups, strict=True)
    ]
    symbol = SymbolRecord(name="m", bytes=4)
    symbols = Symbols(arena=symbol, weights=symbol, tile_buffer=symbol)
    memory = MemoryMap(
        version=1, model="m", symbols=symbols, inputs=(), outputs=(), tensors={"both": place}, layers=writers
    )
    values = {"both": np.array([[1, 2], [3, 4]], np.int8)}
    (check,) = layer_checks(memory, values, exact=True)
    assert (check.layer, check.nbytes, check.crc) == (
        int(groups != (1, 0)),
        4,
        zlib.crc32(bytes([1, 2, 3, 4])),
    )


def _weight_of(layer: str) -> Callable[[Path], None]:
    """Another first weight."""

    def change(firmware: Path) -> None:
        graph = small_schedule().graph
        table = (firmware / "small.h").read_text()
        tensor = next(found.weight.tensor for found in graph.tensor_core_layers if found.name == layer)
        (row,) = [line.split() for line in table.splitlines() if line.endswith(f"  {tensor}")]
        blob = np.fromfile(firmware / "small_weights.bin", np.int8)
        blob[int(row[2])] ^= 64
        blob.tofile(firmware / "small_weights.bin")

    return change


def _code(before: str, after: str, function: str) -> Callable[[Path], None]:
    """Another instruction in one function of the C."""

    def change(firmware: Path) -> None:
        text = (firmware / "small.c").read_text()
        start = text.index(f"{function}(")
        assert before in text[start:]
        (firmware / "small.c").write_text(text[:start] + text[start:].replace(before, after, 1))

    return change


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (_weight_of("l0"), "0, conv l0 (ONNX nodes: ): y0 is wrong in group tile 0, from image 0, row 0"),
        (_weight_of("l2"), "2, conv l2 (ONNX nodes: ): y2 is wrong in bytes 0 to 255"),
        (_code(".activation = RELU", ".activation = NO_ACTIVATION", "layer_l2"), "2, conv l2"),
        (_code(".activation = NO_ACTIVATION", ".activation = RELU", "int small_run"), "4, add l4"),
        (_code("output0, 0x1", "output0, 0x1.8p1f * 0x1", "int small_run"), "5, global_average_pool pool"),
        (
            _code("{j * 3, j * 3 + 5}", "{j * 2, j * 2 + 5}", "group_l1"),
            "0, conv l0 (ONNX nodes: ): y0 is wrong in group tile 1, from image 0, row 3, column 0 on",
        ),
    ],
    ids=["weight, fused", "weight", "activation", "sum", "host", "tile"],
)
def test_the_first_wrong_layer_is_named(firmware: Path, fault: Callable[[Path], None], said: str) -> None:
    fault(firmware)
    code, output = _checked(firmware)
    assert code == 1
    assert output.startswith(f"small: layer {said}"), output
    assert output.endswith("the run ended with status 1\n")


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("operation", "name", "onnx_nodes")),
        *((name, ctypes.c_uint64) for name in ("macs", "dram_bytes", "tile_buffer_bytes", "cycles")),
    ]


def test_the_table_of_layers_and_a_hook_that_stops(firmware: Path, tmp_path: Path) -> None:
    schedule = small_schedule()
    library = ctypes.CDLL(str(build_firmware(firmware, schedule.target, tmp_path)))
    table = (_Layer * len(schedule.graph.layers)).in_dll(library, "small_layers")
    cost, cycles = evaluate(schedule), program_cycles(schedule)
    for row, layer in zip(table, schedule.graph.layers, strict=True):
        moved = {
            memory: sum(move.bytes for _, move in cost.by_name[layer.name].moves if move.memory == memory)
            for memory in ("dram", "tile-buffer")
        }
        assert (row.operation.decode(), row.name.decode()) == (layer.op, layer.name)
        assert (row.dram_bytes, row.tile_buffer_bytes) == (moved["dram"], moved["tile-buffer"])
        assert row.cycles == round(cycles[layer.name])
    # 8 x 8 outputs, 3 x 3 taps, 8 x 8 channels; 1 x 1 taps, 24 x 8 channels
    assert [row.macs for row in table] == [36864, 36864, 12288, 12288, 0, 0]

    seen: list[tuple[int, int, int]] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    def stop(context: int, layer: int, phase: int) -> int:
        seen.append((context, layer, phase))
        return 7 if (layer, phase) == (2, 1) else 0

    library.small_set_hook(stop, ctypes.c_void_p(4711))
    buffers = [ctypes.create_string_buffer(512), ctypes.create_string_buffer(8)]
    assert library.small_run(*buffers) == 7
    # two tiles of the group, its layers complete, the next one up to where it was stopped
    tiles = [(layer, phase) for _ in range(2) for layer in (0, 1) for phase in (0, 1)]
    assert [call[1:] for call in seen] == [*tiles, (0, 2), (1, 2), (2, 0), (2, 1)]
    assert {call[0] for call in seen} == {4711}
    library.small_set_hook(None, None)
    assert library.small_run(*buffers) == 0
