"""onnx's own conformance suite: every case converts and verifies, or is refused by name.

The node cases of `onnx.backend.test` are single operators with inputs.  A case whose weights are
graph inputs is tried again with them as constants, which is how models use them.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx.backend.test
from onnx import numpy_helper

from benchmarks.command import command
from fadiff.converter import Conversion, ModelError, UnsupportedError, convert
from fadiff.converter.check.agreement import agreement
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from fadiff.converter.ir.graph import ElementType
from fadiff.converter.read.runtime import NOT_OPTIMISED, open_session, session_options

Status = Literal["verified", "refused", "wrong"]
_FLOAT32_TOLERANCE = 1e-5
_FLOAT_TOLERANCE = 0.01  # of an output's range: half precision cases among them
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Verdict:
    """What became of one case; `detail` says by how much, or why not."""

    case: str
    status: Status
    detail: str
    operators: tuple[str, ...]


def cases(kind: str = "node") -> list[Any]:
    """The suite's cases (slow: it computes all expected outputs)."""
    if kind == "light":
        return light_networks()
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind=kind))


@dataclass(frozen=True)
class Network:
    """A case made here, with the attributes of the suite's own."""

    name: str
    model: onnx.ModelProto
    data_sets: list[tuple[list[np.ndarray], list[np.ndarray]]]


def light_networks() -> list[Network]:
    """The suite's light_* networks: seeded random weights where it has one constant for all of them."""
    folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
    return [_light_network(path) for path in sorted(folder.glob("light_*.onnx"))]


def _light_network(path: Path) -> Network:
    model = onnx.load(path)
    generator = np.random.default_rng(zlib.crc32(path.stem.encode()))
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            array = _random_weight(shapes[node.input[0]].tolist(), generator)
            model.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        else:
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    known = {tensor.name for tensor in model.graph.initializer}
    sources = [value for value in model.graph.input if value.name not in known]
    inputs = [
        generator.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in sources
    ]
    session = open_session(model)
    outputs = session.run(None, {value.name: x for value, x in zip(sources, inputs, strict=True)})
    return Network(path.stem, model, [(inputs, outputs)])


def _random_weight(shape: list[int], generator: np.random.Generator) -> np.ndarray:
    """Weights that keep the variance; vectors (biases, and all of a batch norm) around one half."""
    if len(shape) < 2:
        return generator.uniform(0.25, 0.75, shape).astype(np.float32)
    deviation = np.sqrt(2 / np.prod(shape[1:]))
    return np.asarray(generator.standard_normal(shape) * deviation, np.float32)


def judge(case: Any, element: ElementType = "int8") -> Verdict:
    """Convert one case and compare the reference with ONNX Runtime's quantised (float32: float) model."""
    model, data = _content(case)
    operators = tuple(sorted({node.op_type for node in model.graph.node}))
    last = Verdict(
        case.name,
        "refused",
        "inputs that are no numbers (strings, sequences, optionals, types below 8 bits), or none",
        operators,
    )
    expected = _outputs(case)
    for attempt in _attempts(model, data):
        with tempfile.TemporaryDirectory() as folder:  # (large weights stay in the file)
            last = _judge(case.name, operators, expected, *attempt, element, Path(folder) / "case.onnx")
        if last.status != "refused":
            return last
    return last


def _outputs(case: Any) -> list[Any]:
    """The outputs that onnx says the case has."""
    if case.model is not None:
        return [_array(value) for value in case.data_sets[0][1]] if case.data_sets else []
    files = sorted((Path(case.model_dir) / "test_data_set_0").glob("output_*.pb"), key=_number)
    return [_array(onnx.TensorProto.FromString(f.read_bytes())) for f in files]


def _number(file: Path) -> int:
    return int(file.stem.split("_")[1])


def _content(case: Any) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    if case.model is not None:
        return case.model, [_array(value) for value in case.data_sets[0][0]] if case.data_sets else []
    folder = Path(case.model_dir)
    files = sorted((folder / "test_data_set_0").glob("input_*.pb"), key=_number)
    data = [numpy_helper.to_array(onnx.TensorProto.FromString(f.read_bytes())) for f in files]
    return onnx.load(folder / "model.onnx"), data


def _array(value: Any) -> Any:
    """An input as an array where it is one: a number, or a tensor of a type that numpy has."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, onnx.TensorProto):
        array = numpy_helper.to_array(value)
        return array if array.dtype.kind in "fiub" or array.dtype.name == "bfloat16" else value
    return value


def _attempts(
    model: onnx.ModelProto, data: Sequence[Any]
) -> Iterator[tuple[onnx.ModelProto, dict[str, np.ndarray]]]:
    """The case as it is, then with all inputs but the first as constants."""
    if not all(isinstance(array, np.ndarray) for array in data) or not data:
        return
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in weights]
    feeds = dict(zip(names, data, strict=False))
    if len(feeds) == len(names):
        yield _sized(model, feeds), feeds
        if len(feeds) > 1:
            first, *others = names
            yield _with_constants(model, {n: feeds[n] for n in others}), {first: feeds[first]}


def _sized(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Symbolic input dimensions replaced by those of the data."""
    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    for value in sized.graph.input:
        if value.name in feeds:
            for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=False):
                dim.dim_value = size
    return sized


def _with_constants(model: onnx.ModelProto, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    fixed = _sized(model, {})
    kept = [value for value in fixed.graph.input if value.name not in constants]
    del fixed.graph.input[:]
    fixed.graph.input.extend(kept)
    fixed.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return fixed


def _judge(
    name: str,
    operators: tuple[str, ...],
    expected: list[Any],
    model: onnx.ModelProto,
    feeds: dict[str, np.ndarray],
    element: ElementType,
    path: Path,
) -> Verdict:
    try:
        path.write_bytes(model.SerializeToString())
        conversion = convert(path, element=element, calibration=[_numbers(_as_float32(feeds))])
    except UnsupportedError as error:
        return Verdict(name, "refused", "; ".join(f"{p.op}: {p.reason}" for p in error.problems), operators)
    except ModelError as error:
        return Verdict(name, "refused", str(error).removeprefix(f"{path}: "), operators)
    off = float_error(conversion.float_model, _as_float32(feeds) | dict(conversion.float_weights), expected)
    # where ONNX Runtime is as far off with the very same model, it is not the conversion
    if off > _FLOAT_TOLERANCE and off - float_error(model, feeds, expected) > _FLOAT_TOLERANCE:
        return Verdict(
            name, "wrong", f"the float model is {off:.2g} of the range off what onnx expects", operators
        )
    steps = difference(conversion, _as_float32(feeds))
    if element == "float32":
        status: Status = "verified" if steps <= _FLOAT32_TOLERANCE else "wrong"
        return Verdict(name, status, f"{steps:.1e} of the largest output", operators)
    bound = max(1, len(conversion.graph.layers))
    if steps <= bound + 0.01:
        return Verdict(name, "verified", f"{steps:.2f} steps, bound {bound}", operators)
    graph, inputs = conversion.graph, _as_float32(feeds)  # (a recurrence may amplify what one layer rounds)
    alone = agreement(conversion, inputs, run_reference(graph, store_inputs(graph, inputs))).differences
    own = max((d.own_steps for d in alone), default=steps)
    status = "verified" if own <= 1 else "wrong"
    return Verdict(name, status, f"{steps:.2f} steps, bound {bound}; at most {own} of one layer", operators)


def _as_float32(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: array.astype(np.float32) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array
        for name, array in feeds.items()
    }


def _numbers(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Samples have no NaN: zeros stand for it."""
    return {name: np.nan_to_num(array, posinf=np.inf, neginf=-np.inf) for name, array in feeds.items()}


def float_error(model: onnx.ModelProto, feeds: dict[str, np.ndarray], expected: list[Any]) -> float:
    """How far a model's outputs are from the suite's own, of each output's range.

    0 for an imported quantised model, whose 8-bit inputs and outputs have become float, and for one
    that ONNX Runtime cannot run.
    """
    try:
        session = open_session(model)
    except Exception:
        return 0.0
    kinds = {value.name: value.type for value in session.get_inputs()}
    if any(array.dtype.kind != "f" and kinds.get(name) == "tensor(float)" for name, array in feeds.items()):
        return 0.0
    found = session.run(None, {name: array for name, array in feeds.items() if name in kinds})
    worst = 0.0
    for value, wanted in zip(found, expected, strict=False):
        if not isinstance(wanted, np.ndarray) or not wanted.size or wanted.dtype.kind not in "fiub":
            continue
        if value.dtype.kind == "f" and wanted.dtype.kind in "iu":
            continue
        wanted = wanted.astype(np.float64)
        with np.errstate(invalid="ignore"):
            same = (
                (value == wanted) | (np.isnan(value) & np.isnan(wanted)) | ~(np.abs(wanted) <= _FLOAT32_MAX)
            )
            error = np.where(same, 0, np.abs(value - wanted))
        span = max(float(np.max(np.abs(wanted), where=np.isfinite(wanted), initial=0.0)), 1e-6)
        worst = max(worst, float(np.max(error)) / span)
    return worst


def difference(conversion: Conversion, feeds: dict[str, np.ndarray]) -> float:
    """Largest difference of the reference to ONNX Runtime's run of the model.

    In output steps; for float32 outputs of their largest finite magnitude.
    """
    options = session_options(NOT_OPTIMISED)
    session = open_session(conversion.quantized_model, options)
    kinds = {value.name: value.type for value in session.get_inputs()}
    # 8-bit inputs of quantised models have become float
    feeds = {n: a.astype(np.float32) if kinds.get(n) == "tensor(float)" else a for n, a in feeds.items()}
    wanted = session.run(None, {name: array for name, array in feeds.items() if name in kinds})
    real = open_session(conversion.float_model, options)
    given = {name: array for name, array in feeds.items() if name in kinds}
    floats = real.run(None, given | dict(conversion.float_weights))
    graph = conversion.graph
    found = run_reference(graph, store_inputs(graph, feeds))
    worst = 0.0
    for name, expected, exact in zip(graph.outputs, wanted, floats, strict=True):
        tensor = graph.tensors[name]
        value = from_storage(tensor, found[name], expected.shape)
        if expected.size:
            defined = ~np.isnan(exact) if exact.dtype.kind == "f" else np.True_
            unit = tensor.scale or 1.0
            if tensor.dtype == "float32":
                defined = np.isfinite(exact)
                unit = float(np.max(np.abs(exact), where=defined, initial=0.0)) or 1.0
            with np.errstate(invalid="ignore"):
                # QuantizeLinear makes a number of NaN (a row that is masked throughout): right is then what
                # the float model says
                errors = [np.abs(value.astype(np.float64) - other) for other in (expected, exact)]
                error = np.max(np.fmin(*errors), where=defined, initial=0.0)
            worst = max(worst, float(error) / unit)
    return worst


def main(arguments: list[str]) -> int:
    """Judge all cases; 1 when one of them is neither verified nor refused."""
    parser = command("conformance", __doc__)
    parser.add_argument(
        "--kind", default="node", choices=["node", "pytorch-converted", "pytorch-operator", "simple", "light"]
    )
    parser.add_argument("--element", default="int8", choices=["int8", "float32"], help="of the array")
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="only every n-th case")
    parser.add_argument("--list", action="store_true", help="print every verdict, not only the wrong ones")
    options = parser.parse_args(arguments)
    chosen = [case for case in cases(options.kind) if options.match in case.name][:: options.every]
    count: Counter[str] = Counter()
    for number, case in enumerate(chosen):
        if number % 100 == 0:
            print(f"{number} of {len(chosen)}", file=sys.stderr)
        try:
            verdict = judge(case, options.element)
        except Exception as error:
            verdict = Verdict(case.name, "wrong", f"{type(error).__name__}: {error}", ())
        count[verdict.status] += 1
        if options.list or verdict.status == "wrong":
            print(f"{verdict.status:9} {verdict.case}: {verdict.detail}")
    print(f"{len(chosen)} cases: " + ", ".join(f"{n} {status}" for status, n in sorted(count.items())))
    return 1 if count["wrong"] else 0
