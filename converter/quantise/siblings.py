"""merge-siblings: products that read the same value become one wider product.

Query, key and value projections, the 1x1 branches of an inception block, gate and up of SwiGLU: their
input is read once, and each result is a slice of one stored tensor.

Legal for convolutions and matrix products of equal kernel, stride, pads and dilation, one group, equal
activation, weights that nobody else reads, and results that are no outputs of the graph.  The array
multiplies all sums of a layer by one number s_x s_w / s_y.  So weights and results of siblings may have
scales of their own, but equal ratios s_w / s_y.  Ratios that calibration leaves free are made equal,
within `TOLERATED_RATIO`: larger ones become results of a wider range, smaller ones coarser weights, by
the square root of the ratio at most.  Scales of an imported model never change.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from converter.ir.graph import Graph, HostLayer
from converter.ir.program import Node, Program
from converter.plan.plan import Step
from converter.quantise.scales import symmetric_scale
from converter.quantise.weights import Quantisation, Quantised

TOLERATED_RATIO = 2.0
_EQUAL = 1e-6
_WINDOW = ("kernel_shape", "strides", "pads", "dilations", "auto_pad")
_MATRIX = ("transA", "transB", "alpha")


@dataclass(frozen=True)
class Siblings:
    """Steps that can become one.

    `channels` are their output channels, `spread` is the largest ratio of s_w / s_y among them.
    """

    steps: tuple[Step, ...]
    channels: tuple[int, ...]
    spread: float = 1.0

    @property
    def kind(self) -> str:
        """Equal for groups that look alike: those of the repeated blocks of a network."""
        return " ".join(map(str, (self.steps[0].head.op, *self.channels)))

    def part(self, channel: int) -> int:
        """Which of the steps computes a channel of the merged result."""
        return bisect.bisect_right(list(itertools.accumulate(self.channels)), channel)

    def only(self, names: Collection[str]) -> Siblings | None:
        """Those of the steps that are named, None where less than two are."""
        kept = [pair for pair in zip(self.steps, self.channels, strict=True) if pair[0].name in names]
        if len(kept) < 2:
            return None
        return replace(self, steps=tuple(s for s, _ in kept), channels=tuple(c for _, c in kept))

    @property
    def name(self) -> str:
        """What the merged layer is called."""
        return f"{self.steps[0].name}.merged"

    @property
    def note(self) -> str:
        """One line for people."""
        names = ", ".join(step.name for step in self.steps)
        scales = f"; their scales were within {self.spread:.2f}x" if self.spread > 1 + _EQUAL else ""
        return f"{names} read {self.steps[0].source}: one layer{scales}"


def find_siblings(program: Program, steps: Sequence[Step]) -> tuple[Siblings, ...]:
    """Groups of steps that compute alike from the same value, in the order of the plan."""
    alike: dict[object, list[Step]] = {}
    for step in steps:
        if _is_candidate(program, step):
            alike.setdefault(_key(program, step), []).append(step)
    groups = [group for group in alike.values() if len(group) > 1]
    return tuple(Siblings(tuple(g), tuple(_channels(program, step) for step in g)) for g in groups)


def _channels(program: Program, step: Step) -> int:
    return program.shapes[step.head.inputs[1]][_channel_axis(step.head)]


def _is_candidate(program: Program, step: Step) -> bool:
    head = step.head
    if step.kind != "node" or step.mask or head.op not in ("Conv", "Gemm", "MatMul") or head.domain:
        return False
    weight = program.constant(head.input(1))
    return (
        weight is not None
        and weight.ndim >= 2
        and (head.op == "Conv" or weight.ndim == 2)
        and head.attributes.get("group", 1) == 1
        and step.ceiling is None
        and len(program.consumers(head.inputs[1])) == 1
        and head.inputs[0] == step.source
        and step.output not in program.outputs
    )


def _key(program: Program, step: Step) -> object:
    """Equal for steps whose iteration spaces differ in output channels only."""
    head = step.head
    names = _WINDOW if head.op == "Conv" else _MATRIX
    attributes = tuple(head.attributes.get(name) for name in names)
    kernel = program.shapes[head.inputs[1]][2:]
    return head.op, head.inputs[0], attributes, kernel, step.activation


def balanced(
    program: Program,
    groups: Sequence[Siblings],
    ranges: Mapping[str, tuple[float, float]],
    known: Mapping[str, float],
) -> tuple[tuple[Siblings, ...], dict[str, tuple[float, float]]]:
    """The groups, or parts of them, whose scales fit together, and ranges that bring them closer."""
    kept: list[Siblings] = []
    wider = dict(ranges)
    for group in groups:
        ratios = {step.name: _ratio(program, step, ranges, known) for step in group.steps}
        fixed = any(step.output in known or step.head.inputs[1] in known for step in group.steps)
        for run in _runs(group.steps, ratios, 1 + _EQUAL if fixed else TOLERATED_RATIO):
            low, high = min(ratios[s.name] for s in run), max(ratios[s.name] for s in run)
            part = group.only([step.name for step in run])
            assert part is not None
            kept.append(replace(part, spread=high / low))
            for step in run:
                factor = ratios[step.name] / math.sqrt(low * high)
                if factor > 1 and step.output in wider:
                    bottom, top = wider[step.output]
                    wider[step.output] = (bottom * factor, top * factor)
    return tuple(kept), wider


def _ratio(
    program: Program,
    step: Step,
    ranges: Mapping[str, tuple[float, float]],
    known: Mapping[str, float],
) -> float:
    """s_w / s_y as calibration would have it."""
    name = step.head.inputs[1]
    weight = program.constants[name]
    w = known.get(name) or symmetric_scale(float(weight.min()), float(weight.max()))
    return w / (known.get(step.output) or symmetric_scale(*ranges.get(step.output, (0.0, 0.0))))


def _runs(steps: Sequence[Step], ratios: Mapping[str, float], tolerated: float) -> list[tuple[Step, ...]]:
    """Two or more steps whose ratios are within `tolerated` of each other, from the largest ratio down."""
    runs: list[list[Step]] = []
    for step in sorted(steps, key=lambda s: -ratios[s.name]):
        if runs and ratios[runs[-1][0].name] <= tolerated * ratios[step.name]:
            runs[-1].append(step)
        else:
            runs.append([step])
    order = {step.name: i for i, step in enumerate(steps)}
    return [tuple(sorted(run, key=lambda s: order[s.name])) for run in runs if len(run) > 1]


def merge_siblings(
    program: Program, steps: Sequence[Step], quantisation: Quantisation, groups: Sequence[Siblings]
) -> tuple[Program, tuple[Step, ...], Quantisation]:
    """Program, plan and integers with each group as one step, whose `parts` are the results."""
    shapes, types = dict(program.shapes), dict(program.types)
    scales = dict(quantisation.scales)
    weights, biases = dict(quantisation.weights), dict(quantisation.biases)
    first: dict[str, Step] = {}
    merged_away: set[str] = set()
    for group in groups:
        step = _merged_step(group)
        axis = 1 if step.head.op == "Conv" else -1
        shape = list(program.shapes[group.steps[0].output])
        shape[axis] = sum(group.channels)
        shapes[step.output] = tuple(shape)
        types[step.output] = program.types[group.steps[0].output]
        if group.steps[0].output in scales:
            scales[step.output] = scales[group.steps[0].output]
        weight_axis = _channel_axis(step.head)
        members = [weights[s.head.inputs[1]] for s in group.steps]
        data = np.concatenate([member.data for member in members], weight_axis)
        weights[step.head.inputs[1]] = Quantised(data, members[0].scale)
        bias = _merged_bias(group, quantisation)
        if bias is not None:
            biases[step.name] = bias
        first[group.steps[0].name] = step
        merged_away.update(s.name for s in group.steps[1:])
    plan = tuple(first.get(step.name, step) for step in steps if step.name not in merged_away)
    merged = replace(quantisation, scales=scales, weights=weights, biases=biases)
    return replace(program, shapes=shapes, types=types), plan, merged


def _merged_step(group: Siblings) -> Step:
    head = group.steps[0].head
    output = f"{group.steps[0].output}.merged"
    node = Node(
        group.name,
        head.op,
        head.domain,
        head.version,
        (head.inputs[0], f"{head.inputs[1]}.merged"),
        (output,),
        head.attributes,
    )
    parts = tuple((s.output, count) for s, count in zip(group.steps, group.channels, strict=True))
    nodes = tuple(n for s in group.steps for n in s.nodes)
    activation = group.steps[0].activation
    return Step("node", node, nodes, output, "", activation, source=head.inputs[0], parts=parts)


def _channel_axis(head: Node) -> int:
    """Axis of the output channels in the weights."""
    return 0 if head.op == "Conv" or head.attributes.get("transB", 0) else 1


def _merged_bias(group: Siblings, quantisation: Quantisation) -> Quantised | None:
    """Biases one after the other, each in units of its own accumulator; zeros where there is none."""
    found = [quantisation.biases.get(step.name) for step in group.steps]
    present = [bias for bias in found if bias is not None]
    if not present:
        return None
    kind = present[0].data.dtype
    vectors = [
        np.zeros(count, kind) if bias is None else np.broadcast_to(bias.data.reshape(-1), (count,))
        for bias, count in zip(found, group.channels, strict=True)
    ]
    return Quantised(np.concatenate(vectors), present[0].scale)


def worsened(graph: Graph, apart: Graph, groups: Sequence[Siblings]) -> frozenset[str]:
    """Steps whose results something has to copy apart, or that keep an add from Gemmini's own."""
    found: set[str] = set()
    for group in groups:
        nodes = {node.name for step in group.steps for node in step.nodes}
        for layer in graph.tensor_core_layers:
            if not nodes <= set(layer.onnx_nodes):
                continue
            for reader in graph.consumers(layer.output.tensor):
                if isinstance(reader, HostLayer) and _is_worse(reader, apart):
                    channels = _channels_read(reader, layer.output.tensor, layer.dims.K)
                    found.update(group.steps[group.part(channel)].name for channel in channels)
    return frozenset(found)


def _is_worse(reader: HostLayer, apart: Graph) -> bool:
    before = apart.by_name.get(reader.name)
    return reader.op == "copy" or (before is not None and before.op == "add" != reader.op)


def _channels_read(reader: HostLayer, tensor: str, channels: int) -> list[int]:
    """The first channel of each operand of `reader` that is part of `tensor`."""
    offsets = ("offset", "b_offset", "c_offset")
    return [
        int(str(reader.attributes.get(key, 0))) % channels
        for name, key in zip(reader.inputs, offsets, strict=False)
        if name == tensor
    ]
