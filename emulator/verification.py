"""`fadiff verify`: does the emitted C compute the right numbers and move the predicted bytes?"""

from __future__ import annotations

import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from fadiff.converter.check.noise import Noise, noise_of
from fadiff.converter.check.storage import from_storage, to_storage
from fadiff.converter.folders import scratch_folder
from fadiff.converter.ir.graph import Tensor
from fadiff.costmodel.schedule.document import LayerRecord, ScheduleDocument, TrafficRecord
from fadiff.costmodel.schedule.serialize import graph_from_document, read_document
from fadiff.emitters.memory_map import MEMORY_MAP, LayerPlace, MemoryMap, read_memory_map
from fadiff.emulator.build import build_firmware
from fadiff.emulator.compare import Mismatch, Program, TensorDifference, VectorResult, tolerance_of
from fadiff.emulator.errors import FirmwareError
from fadiff.emulator.pool import Progress, calls_of, prepare, run_calls
from fadiff.emulator.report import Both, LayerReport, Measured, OutputNoise, Predicted, VerifyReport
from fadiff.emulator.run import LayerRun

TIME_LIMIT = 1800.0
_MEMORIES = ("dram", "tile-buffer")
Expected = Callable[[str, VectorResult], np.ndarray]
"""What an output should be, by its ONNX name, for a test vector."""


def verify(
    folder: Path,
    *,
    progress: Progress | None = None,
    vectors: int | None = None,
    time_limit: float = TIME_LIMIT,
) -> VerifyReport:
    """Build `folder`/firmware for this machine, run it on the functional model, and compare.

    Every tensor a layer leaves in memory is compared with the integer reference on every test
    vector; every layer's bytes, per tensor role, direction and memory, with schedule.json.

    Args:
        folder: What `fadiff compile` wrote.
        progress: Called with a line of text now and then.
        vectors: How many of the test vectors to run; all by default.
        time_limit: Seconds that the vectors may take together.

    Raises:
        FirmwareError, MemoryMapError: a file is missing or unusable.
        NoCompilerError: none is installed.
        BuildError: the C does not compile without warnings.
    """
    (report,) = _verify(folder / "firmware", {folder: MEMORY_MAP}, progress, vectors, time_limit)
    return report


def verify_entries(
    firmware: Path,
    entries: Mapping[Path, str],
    *,
    progress: Progress | None = None,
    time_limit: float = TIME_LIMIT,
) -> list[VerifyReport]:
    """The same of several entries of one firmware, in turn as a run calls them: each goes on with the states
    that the one before has left, the first begins with zeros.

    Args:
        firmware: Folder of the program.
        entries: Folders of the entries with the name of each one's memory map, in the order of a run.
        progress: Called with a line of text now and then.
        time_limit: Seconds that all vectors may take together.

    Raises:
        FirmwareError, MemoryMapError, NoCompilerError, BuildError: as for `verify`.
    """
    return _verify(firmware, entries, progress, None, time_limit)


@dataclass(frozen=True)
class _Entry:
    """What the folder of an entry holds."""

    folder: Path
    document: ScheduleDocument
    map_name: str
    memory_map: MemoryMap

    @property
    def data(self) -> Path:
        """What it is compared with."""
        return self.folder / "verify"

    @cached_property
    def count(self) -> int:
        """Its test vectors."""
        return _vector_count(self.data / "inputs.npz", self.memory_map.inputs)

    @property
    def program(self) -> Program:
        """For a worker."""
        return Program(data=self.data.resolve(), map_name=self.map_name, states=_states(self.document))


def _entry(folder: Path, firmware: Path, map_name: str) -> _Entry:
    """Read and checked."""
    document, data = read_document(folder / "schedule.json"), folder / "verify"
    for name in ("reference.onnx", "quantized.onnx", "inputs.npz", "float_outputs.npz"):
        _require(data / name)
    _require(firmware / map_name)
    memory_map = read_memory_map(firmware / map_name)
    weights = memory_map.symbols.weights
    files = (f"{weights.name}.S", f"{weights.name}.bin") if weights.bytes else ()
    for file in (f"{memory_map.model}.c", f"{memory_map.model}.h", *files):
        _require(firmware / file)
    named = [layer.name for layer in document.layers]
    if sorted(named) != sorted(place.name for place in memory_map.layers):
        raise FirmwareError(
            f"{folder / 'schedule.json'}: its layers are not those of {firmware / map_name}: "
            "the folder mixes two compilations; compile the model again"
        )
    return _Entry(folder, document, map_name, memory_map)


def _verify(
    firmware: Path,
    folders: Mapping[Path, str],
    progress: Progress | None,
    vectors: int | None,
    time_limit: float,
) -> list[VerifyReport]:
    """A report of each entry."""
    say = progress or (lambda _: None)
    entries = [_entry(folder, firmware, map_name) for folder, map_name in folders.items()]
    target = entries[0].document.target
    calls = calls_of([entry.count for entry in entries])
    if vectors is not None:
        calls = calls[: max(1, vectors)]
    with scratch_folder() as scratch:
        say("building the functional model and the firmware")
        prepare()
        built = build_firmware(firmware, target, scratch)
        say(f"running {len(calls)} test vectors")
        totals = [entry.document.totals for entry in entries]
        cycles = sum(totals[c.program].clock_cycles or totals[c.program].latency_cycles for c in calls)
        programs = [entry.program for entry in entries]
        results = run_calls(firmware, target, built, scratch, programs, calls, time_limit, say, cycles)
    return [
        _report(
            entry.document,
            entry.memory_map.layers,
            [result for result in results if result.program == number or result.error],
            entry.data,
        )
        for number, entry in enumerate(entries)
    ]


def _require(path: Path) -> None:
    if not path.is_file():
        raise FirmwareError(f"{path}: no such file: compile the model again")


def _vector_count(path: Path, names: Sequence[str]) -> int:
    """How many test vectors the file holds for the firmware's inputs."""
    try:
        with np.load(path, allow_pickle=False) as inputs:
            for name in names:
                if name not in inputs.files:
                    raise FirmwareError(f"{path}: no array {name}: compile the model again")
            return len(inputs[names[0]])
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise FirmwareError(f"{path}: not an .npz file: compile the model again") from error


def _report(
    document: ScheduleDocument, places: Sequence[LayerPlace], results: Sequence[VectorResult], data: Path
) -> VerifyReport:
    error = next((result.error for result in results if result.error), None)
    good = [result for result in results if result.run is not None]
    records = {layer.name: layer for layer in document.layers}
    predicted = Predicted(
        dram_bytes=sum(_total(layer.cost.traffic, "dram") for layer in document.layers),
        tile_buffer_bytes=sum(_total(layer.cost.traffic, "tile-buffer") for layer in document.layers),
        latency_cycles=document.totals.latency_cycles,
    )
    if error or not good or good[0].run is None:
        return VerifyReport(vectors=len(results), error=error or "no vector ran", predicted=predicted)
    counts = good[0].run.counts
    differences = _by_layer(places, good)
    layers = tuple(
        _layer_report(place, records[place.name], run, differences[place.name])
        for place, run in zip(places, good[0].run.layers, strict=True)
    )
    with np.load(data / "float_outputs.npz", allow_pickle=False) as stored:
        floats = {name: stored[name] for name in map(_onnx_name, _outputs(document))}
    noise = _noise(document, good, lambda name, result: floats[name][result.vector])
    return VerifyReport(
        vectors=len(results),
        vectors_are=_origin(document),
        tolerance=tolerance_of(document.target),
        predicted=predicted,
        measured=Measured(
            dram_bytes=counts.dram_bytes,
            tile_buffer_bytes=counts.tile_buffer_bytes,
            instructions=sum(counts.instructions.values()),
            core_instructions=counts.core_instructions,
            instructions_by_kind=dict(counts.instructions),
            estimated_cycles=round(counts.cycles),
            peak_spad_rows=counts.peak_spad_rows,
            peak_acc_rows=counts.peak_acc_rows,
        ),
        layers=layers,
        first_divergence=next((layer.first_mismatch for layer in layers if layer.first_mismatch), None),
        traffic_repeats=all(
            r.run is not None and _traffic(r.run.layers) == _traffic(good[0].run.layers) for r in good
        ),
        top1_agreement=_top1(document, good, lambda name, result: floats[name][result.vector]),
        quantized_top1_agreement=_top1(document, good, lambda name, result: result.quantized[name]),
        sqnr_db=_worst(noise),
        outputs=tuple(OutputNoise(output=name, **asdict(one)) for name, one in noise.items()),
        runtime_sqnr_db=_runtime_sqnr(document, good),
        runtime_steps=document.conversion.runtime_steps,
    )


def _origin(document: ScheduleDocument) -> Literal["test", "random"] | None:
    accuracy = document.conversion.accuracy
    if accuracy is None:
        return None
    return "test" if accuracy.inputs == "test" else "random"


def _traffic(layers: Sequence[LayerRun]) -> list[object]:
    return [layer.traffic for layer in layers]


def _by_layer(
    places: Sequence[LayerPlace], results: Sequence[VectorResult]
) -> Mapping[str, Sequence[TensorDifference]]:
    """What differs in the outputs of each layer, vector by vector."""
    writers: dict[str, list[str]] = defaultdict(list)
    for place in places:
        for tensor in place.outputs:
            writers[tensor].append(place.name)
    found: dict[str, list[TensorDifference]] = defaultdict(list)
    for result in results:
        for difference in result.differences:
            for name in writers[difference.tensor]:
                found[name].append(difference)
    return found


def _layer_report(
    place: LayerPlace, record: LayerRecord, run: LayerRun, differences: Sequence[TensorDifference]
) -> LayerReport:
    mismatches = [d.mismatch for d in differences if d.mismatch is not None]
    steps = [d.largest for d in differences if not d.is_float]
    return LayerReport(
        name=place.name,
        agrees=not mismatches if differences else None,
        bit_exact=all(d.largest == 0 for d in differences) if differences else None,
        max_lsb_diff=max(steps, default=None),
        max_relative_error=max((d.relative for d in differences), default=None),
        dram_bytes=Both(
            measured=sum(t.read + t.write for t in run.traffic if t.memory == "dram"),
            predicted=_total(record.cost.traffic, "dram"),
        ),
        traffic=_compare_traffic(record.cost.traffic, run),
        estimated_cycles=run.cycles,
        first_mismatch=_first(place, mismatches),
    )


def _first(place: LayerPlace, mismatches: Sequence[Mismatch]) -> dict[str, object] | None:
    if not mismatches:
        return None
    return {"layer": place.name, **asdict(mismatches[0])}


def _total(traffic: TrafficRecord, memory: str) -> int:
    transfers = traffic.dram if memory == "dram" else traffic.tile_buffer
    return sum(t.read + t.write for t in transfers.values())


def _compare_traffic(predicted: TrafficRecord, run: LayerRun) -> dict[str, dict[str, Both]]:
    """Bytes per "memory role" and direction, whatever of them is not zero on both sides.

    Roles that read one tensor (queries and keys of one projection, x times its own transpose) share their
    addresses, so their bytes are only known together: they are compared as "I+W".
    """
    table: dict[str, dict[str, Both]] = {}
    for memory in _MEMORIES:
        expected = predicted.dram if memory == "dram" else predicted.tile_buffer
        regions = [t for t in run.traffic if t.memory == memory]
        tensors: dict[str, set[str]] = {role: set() for role in expected}
        for region in regions:
            tensors.setdefault(region.role, set()).add(region.tensor)
        for roles in sorted({_sharing(role, tensors) for role in tensors}):
            for direction in ("read", "write"):
                measured = sum(getattr(t, direction) for t in regions if t.role in roles)
                wanted = sum(int(getattr(expected[role], direction)) for role in roles if role in expected)
                if measured or wanted:
                    table.setdefault(f"{memory} {'+'.join(roles)}", {})[direction] = Both(
                        measured=measured, predicted=wanted
                    )
    return table


def _sharing(role: str, tensors: Mapping[str, set[str]]) -> tuple[str, ...]:
    """The role and those that have a tensor in common with it."""
    return tuple(sorted(other for other in tensors if other == role or tensors[other] & tensors[role]))


def _outputs(document: ScheduleDocument) -> list[Tensor]:
    graph = graph_from_document(document)
    return [graph.tensors[name] for name in graph.results]


def _states(document: ScheduleDocument) -> tuple[tuple[str, str], ...]:
    tensors = graph_from_document(document).tensors
    return tuple(
        (_onnx_name(tensors[state.output]), _onnx_name(tensors[state.input]))
        for state in document.model.states
    )


def _onnx_name(tensor: Tensor) -> str:
    return tensor.onnx_name or tensor.name


def _value(tensor: Tensor, result: VectorResult, shape: tuple[int, ...]) -> np.ndarray:
    """An output of the device as the float model would return it."""
    return from_storage(tensor, result.outputs[tensor.name], shape)


def _top1(document: ScheduleDocument, results: Sequence[VectorResult], expected: Expected) -> float | None:
    """Share of rows whose largest class is the expected one.

    None where the first output is no [rows, classes] matrix.
    """
    output = _outputs(document)[0]
    agreements: list[bool] = []
    for result in results:
        wanted = expected(_onnx_name(output), result)
        if wanted.ndim != 2 or wanted.shape[1] < 2:
            return None
        device = _value(output, result, wanted.shape)
        agreements += list(np.argmax(device, axis=1) == np.argmax(wanted, axis=1))
    return float(np.mean(agreements)) if agreements else None


def _noise(
    document: ScheduleDocument, results: Sequence[VectorResult], expected: Expected
) -> dict[str, Noise]:
    """Of every output that is no index (which has no noise, only ties), by its ONNX name."""
    found = {}
    for output in _outputs(document):
        if output.dtype != "int32":
            name = _onnx_name(output)
            wanted = np.stack([expected(name, result) for result in results])
            got = np.stack([_value(output, r, want.shape) for r, want in zip(results, wanted, strict=True)])
            found[name] = noise_of(wanted, got)
    return found


def _runtime_sqnr(document: ScheduleDocument, results: Sequence[VectorResult]) -> float | None:
    """The worst output against ONNX Runtime's run of the quantised model: an independent judge of meaning.

    An output that is never off by more than the one step that rounding may be is equal.
    """
    noise = _noise(document, results, lambda name, result: result.quantized[name])
    for output in _outputs(document):
        name = _onnx_name(output)
        if output.dtype == "int8" and all(_steps(output, r, r.quantized[name]) <= 1 for r in results):
            noise.pop(name, None)
    return _worst(noise)


def _steps(output: Tensor, result: VectorResult, wanted: np.ndarray) -> int:
    """The most by which integers of an output are off."""
    stored = to_storage(output, wanted).astype(np.int32)
    return int(np.abs(stored - result.outputs[output.name].reshape(stored.shape)).max(initial=0))


def _worst(noise: Mapping[str, Noise]) -> float | None:
    return min((one.sqnr_db for one in noise.values() if one.sqnr_db is not None), default=None)
