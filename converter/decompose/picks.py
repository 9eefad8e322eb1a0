"""Picks, what readers take of a value: what nobody takes is not computed, functions of parts stand before it.

Gaussian policies compute means and deviations and keep the means: the deviations cost products, and their
range would set the scale of both; joins are parted again.  Tables whose features are normalised one by one
(Split or Gather, (x - mean) / std of each, Concat) become functions of all columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from onnx_ir import Value

from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import ARITHMETIC, Kind
from fadiff.converter.ir.operators import channel_axis, is_a, output_axis
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.inputs import UNCHANGED, Affine, as_affine


@dataclass(frozen=True)
class Pick:
    """A node takes evenly or unevenly spaced indices of an axis, for each output that somebody reads."""

    node: Node
    axis: int
    indices: tuple[tuple[str, tuple[int, ...]], ...]
    drops_axis: bool = False


def drop_unused(program: Program) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model without what nobody reads; how many columns of products, and joined parts, went."""
    edit, done, changed = Editor(program.model), 0, set[str]()
    for node in program.nodes:
        found = picks_of(program, node)
        if not found or changed.intersection((*node.inputs, *node.outputs)):  # (the next time)
            continue
        axis = found[0].axis
        if sources := _sources(program, node, axis):
            count = _pass_by(edit, program, axis, found, sources)
            done += count
            changed.update(v for pick in found for v in pick.node.outputs if count)
            continue
        used = sorted({i for pick in found for _, taken in pick.indices for i in taken})
        chain = chain_of(program, node, axis)
        if chain and 0 < len(used) < _shape(program, node)[axis]:
            _narrow(edit, program, chain, used)
            _pick_again(edit, node.outputs[0], found, used)
            changed.update(v for pick in found for v in (*node.outputs, *pick.node.outputs))
            done += _shape(program, node)[axis] - len(used)
    return edit.model(), (f"{done} columns or joined parts",) if done else ()


def picks_of(program: Program, node: Node) -> Sequence[Pick]:
    """What readers take of the one value of a node; nothing where one takes it whole."""
    if len(node.outputs) != 1 or node.outputs[0] in program.outputs:
        return ()
    return _picks(program, node.outputs[0])


def _picks(program: Program, value: str) -> Sequence[Pick]:
    """What readers take of a value along one axis; nothing where one of them takes anything else."""
    picks = [pick_of(program, reader, value) for reader in program.consumers(value)]
    found = [pick for pick in picks if pick is not None]
    return found if len(found) == len(picks) and len({pick.axis for pick in found}) == 1 else ()


def _shape(program: Program, node: Node) -> tuple[int, ...]:
    return program.shapes[node.outputs[0]]


def pick_of(program: Program, node: Node, value: str) -> Pick | None:
    """Indices of the value that a reader takes; None where they are not of one axis."""
    shape = program.shapes.get(value)
    if shape is None or any(v and v not in program.shapes for v in node.outputs):  # (it is refused later)
        return None
    if node.inputs[0] != value or value in node.inputs[1:] or node.domain:
        return None
    if node.op == "Split":
        if any(len(program.shapes[output]) != len(shape) for output in node.outputs):  # (so is this)
            return None
        axis, start, parts = int(node.attributes.get("axis", 0)) % len(shape), 0, []
        for output in node.outputs:
            count = program.shapes[output][axis]
            if program.consumers(output) or output in program.outputs:
                parts.append((output, tuple(range(start, start + count))))
            start += count
        return Pick(node, axis, tuple(parts))
    if node.op == "Slice":
        bounds = [program.constant(node.input(i)) for i in (1, 2, 3, 4)]
        if bounds[0] is None or bounds[1] is None or bounds[0].size != 1:
            return None
        if any(node.input(i) and bounds[i - 1] is None for i in (3, 4)):
            return None
        start, end = (int(np.asarray(bound).reshape(-1)[0]) for bound in bounds[:2])
        axis = 0 if bounds[2] is None else int(bounds[2].reshape(-1)[0]) % len(shape)
        step = 1 if bounds[3] is None else int(bounds[3].reshape(-1)[0])
        taken = tuple(range(*slice(start, end, step).indices(shape[axis])))
        return Pick(node, axis, ((node.outputs[0], taken),)) if step > 0 and taken else None
    indices = program.constant(node.inputs[1]) if node.op == "Gather" else None
    if indices is None or indices.ndim > 1 or not indices.size:
        return None
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    taken = tuple(int(i) % shape[axis] for i in indices.reshape(-1))
    return Pick(node, axis, ((node.outputs[0], taken),), drops_axis=indices.ndim == 0)


def chain_of(program: Program, node: Node, axis: int) -> list[Node]:
    """From the node back to the product whose columns are those of the value; nothing where there is none."""
    chain = [node]
    while not is_a(chain[-1], Kind.PRODUCT):
        last = chain[-1]
        computed = list(program.activations(last))
        before = program.producer.get(computed[0]) if len(computed) == 1 else None
        alone = before is not None and program.sole_consumer(computed[0]) is not None
        if before is None or not alone or program.shapes.get(computed[0]) != _shape(program, last):
            return []
        if not is_a(last, Kind.UNARY | ARITHMETIC):
            return []
        chain.append(before)
    product = chain[-1]
    weight = program.constant(product.inputs[1])
    plain = weight is not None and (product.op == "Conv" or weight.ndim == 2)
    if (
        not plain
        or product.inputs[1] in program.stored
        or axis != channel_axis(program, product.outputs[0], product)
    ):
        return []
    bias = product.input(2)
    has_vector = not bias or (bias in program.constants and program.constants[bias].ndim <= 1)
    return chain if has_vector and product.attributes.get("group", 1) == 1 else []


def _narrow(edit: Editor, program: Program, chain: Sequence[Node], used: Sequence[int]) -> None:
    """Leave only some columns in a product and what follows it."""
    product = chain[-1]
    rank = len(program.shapes[product.outputs[0]])
    axis = channel_axis(program, product.outputs[0], product)
    edit.change_constant(product, 1, partial(np.take, indices=used, axis=output_axis(product)))
    if product.input(2) and program.constants[product.inputs[2]].size > 1:
        edit.change_constant(product, 2, partial(np.take, indices=used, axis=0))
    for node in chain[:-1]:
        for place, name in enumerate(node.inputs):
            array = program.constants.get(name)
            at = -1 if array is None else axis - (rank - array.ndim)
            if array is not None and at >= 0 and array.shape[at] > 1:
                edit.change_constant(node, place, partial(np.take, indices=used, axis=at))
    for node in chain:
        edit.value(node.outputs[0]).shape = None


def _pick_again(edit: Editor, value: str, picks: Sequence[Pick], used: Sequence[int]) -> None:
    """The readers take what they took of a value with fewer indices."""
    place = {index: i for i, index in enumerate(used)}
    for pick in picks:
        for output, taken in pick.indices:
            indices = np.array([place[i] for i in taken], np.int64)
            if not pick.drops_axis and indices.tolist() == list(range(len(used))):
                _give(edit, pick, edit.value(value), output)
                continue
            array = indices.reshape(()) if pick.drops_axis else indices
            operands = [edit.value(value), edit.constant(f"{output}.indices", array)]
            node = edit.node(pick.node)
            (made,) = edit.insert(
                node, "Gather", operands, f"{output}.used", called=f"{pick.node.name}.used", axis=pick.axis
            )
            edit.replace(edit.value(output), made)
        edit.remove(edit.node(pick.node))


def _give(edit: Editor, pick: Pick, value: Value, output: str) -> None:
    """What a reader took is a value as it is."""
    (made,) = edit.insert(
        edit.node(pick.node), "Identity", [value], f"{output}.used", called=f"{pick.node.name}.used"
    )
    edit.replace(edit.value(output), made)


@dataclass(frozen=True)
class Source:
    """Indices `start` to `end` of a node's result are those of `value` from `first` on."""

    value: str
    start: int
    end: int
    first: int = 0


def _sources(program: Program, node: Node, axis: int) -> Sequence[Source]:
    """What a Concat along the axis joins, or a Slice takes a run of; nothing for other nodes."""
    if node.op == "Concat" and int(node.attributes["axis"]) % len(_shape(program, node)) == axis:
        ends = np.cumsum([program.shapes[name][axis] for name in node.inputs]).tolist()
        return [Source(name, *span) for name, *span in zip(node.inputs, [0, *ends[:-1]], ends, strict=True)]
    taken = pick_of(program, node, node.inputs[0]) if node.op == "Slice" else None
    if taken is None or taken.axis != axis:
        return ()
    ((_, indices),) = taken.indices
    first, count = indices[0], len(indices)
    return [Source(node.inputs[0], 0, count, first)] if indices == tuple(range(first, first + count)) else ()


def _pass_by(
    edit: Editor, program: Program, axis: int, picks: Sequence[Pick], sources: Sequence[Source]
) -> int:
    """Readers of runs within one operand of a join, or of a run of something, read these; how many did."""
    read = []
    for pick in picks:
        for output, indices in pick.indices:
            start, end = indices[0], indices[-1] + 1
            source = next((s for s in sources if s.start <= start and end <= s.end), None)
            if source is None or pick.drops_axis or indices != tuple(range(start, end)):
                return 0
            read.append((pick, output, source, start - source.start + source.first, end - start))
    for pick, output, source, start, count in read:
        value = edit.value(source.value)
        if count < program.shapes[source.value][axis]:
            bounds = [
                edit.constant(f"{output}.{name}", np.array([number], np.int64))
                for name, number in (("start", start), ("end", start + count), ("axis", axis))
            ]
            called = f"{pick.node.name}.run"
            (value,) = edit.insert(
                edit.node(pick.node), "Slice", [value, *bounds], f"{output}.run", called=called
            )
        _give(edit, pick, value, output)
    for pick in picks:
        edit.remove(edit.node(pick.node))
    return len(read)


@dataclass(frozen=True)
class _Parted:
    """An input that only parts are taken of, what they are functions of by index, and these functions."""

    picks: Sequence[Pick]
    factor: np.ndarray
    shift: np.ndarray
    chains: dict[str, tuple[Node, ...]]
    """By the part that they begin at."""


def functions_before_parts(program: Program) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model, itself if there are none, and the inputs that have some."""
    edit, done = Editor(program.model), list[str]()
    for name in program.inputs:
        parted = _parted(program, name)
        if parted is not None:
            _put_before(edit, program, name, parted)
            done.append(name)
    return edit.model(), tuple(done)


def _parted(program: Program, name: str) -> _Parted | None:
    found = _picks(program, name)
    if not found or not program.is_float(name):
        return None
    chains = dict[str, tuple[Node, ...]]()
    numbers = np.full((2, program.shapes[name][found[0].axis]), np.nan)
    for pick in found:
        for part, indices in pick.indices:
            chains[part], known = _affine_chain(program, part, None if pick.drops_axis else pick.axis)
            for place, at in enumerate(indices):
                own = [
                    array.reshape(-1)[place if array.size > 1 else 0] for array in (known.factor, known.shift)
                ]
                if not np.isnan(numbers[0, at]) and not np.array_equal(numbers[:, at], own):
                    return None
                numbers[:, at] = own
    factor, shift = np.where(np.isnan(numbers[0]), [[1.0], [0.0]], numbers)
    whole = Affine(factor, shift, found[0].axis)
    return _Parted(found, factor, shift, chains) if any(chains.values()) and whole.is_meaning else None


def _affine_chain(program: Program, value: str, axis: int | None) -> tuple[tuple[Node, ...], Affine]:
    """The longest affine chain that alone reads a part, and its function along the axis."""
    nodes, known = list[Node](), UNCHANGED
    while (node := program.sole_consumer(value)) is not None:
        one = as_affine(program, node)
        if one is None or one.axis not in (None, axis):
            break
        following = known.then(one.factor, one.shift, one.axis)
        assert following is not None
        known, value = following, node.outputs[0]
        nodes.append(node)
    return tuple(nodes), known


def _put_before(edit: Editor, program: Program, name: str, parted: _Parted) -> None:
    """x -> part -> function becomes x -> function of all columns -> part."""
    axis, rank = parted.picks[0].axis, len(program.shapes[name])
    shape = [-1 if at == axis else 1 for at in range(rank)]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(program.types[name])
    moved, first = edit.value(name), edit.nodes()[0]
    for op, numbers in (("Add", parted.shift / parted.factor), ("Mul", parted.factor)):
        constant = edit.constant(f"{name}.{op}", numbers.astype(dtype).reshape(shape))
        moved = edit.elementwise(first, op, [moved, constant], f"{name}.columns")
    for pick in parted.picks:
        edit.node(pick.node).replace_input_with(0, moved)
    for part, nodes in parted.chains.items():
        if nodes:
            edit.replace(edit.value(nodes[-1].outputs[0]), edit.value(part))
        for node in reversed(nodes):
            edit.remove(edit.writer(node.outputs[0]))
