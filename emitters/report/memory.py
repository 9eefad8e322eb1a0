"""What lies where and when: arena and tile buffer by address, scratchpad and accumulator by use."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from fadiff.costmodel.group.fusion import plan_group
from fadiff.costmodel.group.scratchpad import member_spaces
from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emitters.memory_map import MemoryMap
from fadiff.emitters.report.svg import Scale, axis_below, axis_beside, box, canvas, text
from fadiff.emitters.report.text import count, percent, tick

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1180, 64, 8, 10, 40
LABEL = 14
"""Height of a line of text; letters are half as wide."""


@dataclass(frozen=True)
class Block:
    """Bytes of a tensor from one layer to another, both included."""

    name: str
    first: int
    last: int
    offset: int
    nbytes: int


def arena_blocks(document: ScheduleDocument, memory_map: MemoryMap) -> list[Block]:
    """Tensors in the activation arena while they live."""
    live = lifetimes(document)
    return [
        Block(name, *live[name], tensor.offset, tensor.bytes)
        for name, tensor in memory_map.tensors.items()
        if tensor.symbol == "arena" and name in live
    ]


def tile_buffer_blocks(memory_map: MemoryMap) -> list[Block]:
    """What layers touch in the tile buffer; a tensor that stays is one block until its last reader."""
    found: dict[tuple[str, int, int], list[int]] = {}
    for index, layer in enumerate(memory_map.layers):
        for region in layer.regions:
            if region.symbol == "tile_buffer":
                place = region.tensor, region.offset, region.bytes
                found.setdefault(place, []).append(index)
    return [Block(name, min(at), max(at), offset, nbytes) for (name, offset, nbytes), at in found.items()]


def lifetimes(document: ScheduleDocument) -> dict[str, tuple[int, int]]:
    """For every activation: index of the layer that first writes it and of the last that touches it."""
    constant = {tensor.name for tensor in document.tensors if tensor.constant}
    live: dict[str, tuple[int, int]] = {}
    for index, layer in enumerate(document.layers):
        for name in (*layer.inputs, *layer.outputs):
            if name not in constant:
                live[name] = (live.get(name, (index, index))[0], index)
    for name in document.model.outputs:
        if name in live:
            live[name] = (live[name][0], len(document.layers) - 1)
    return live


def memory_picture(what: str, blocks: list[Block], size: int, layers: int) -> Markup | None:
    """Offset against layer: one rectangle per tensor while it lives, named where there is room."""
    if not blocks or not size:
        return None
    height = 240
    x, y = Scale(0, layers, LEFT, WIDTH - RIGHT), Scale(0, size, height - BOTTOM, TOP)
    parts = axis_beside(y, LEFT, WIDTH - RIGHT, ((v, tick(v)) for v in y.ticks()), "bytes")
    parts += _layers_axis(x, layers, height)
    for number, block in enumerate(sorted(blocks, key=lambda b: (b.first, b.last, b.name))):
        left, right = x(block.first), x(block.last + 1)
        low, high = y(block.offset), y(block.offset + block.nbytes)
        where = f"{count(block.nbytes)} bytes at {count(block.offset)}"
        tip = f"{block.name}: {where}, layers {block.first} to {block.last}"
        tall = max(1.0, low - high)
        parts.append(box(f"block shade{number % 4}", tip, left, high, right - left, tall))
        if low - high >= LABEL and right - left >= LABEL / 2 * len(block.name):
            middle = (left + right) / 2, (low + high) / 2 + 4
            parts.append(text(block.name, *middle, "label", text_anchor="middle"))
    return canvas(WIDTH, height, f"Memory map of the {what}", parts)


@dataclass(frozen=True)
class Use:
    """Rows that one layer takes of a local memory: (CSS class, what, rows) from below."""

    layer: int
    stack: tuple[tuple[str, str, int], ...]


def local_memories(document: ScheduleDocument, schedule: Schedule) -> list[tuple[str, Markup]]:
    """Scratchpad and accumulator: rows that each layer's tiles take, what stays for others included."""
    if document.profile != "hw":
        return []
    index = {layer.name: number for number, layer in enumerate(document.layers)}
    target = schedule.target
    spad, acc = list[Use](), list[Use]()
    for group in schedule.groups:
        plan = plan_group(schedule.graph, group)
        for space in member_spaces(schedule, group, plan):
            at = index[space.layer.name]
            inputs = ("mac", _twice("inputs", space.tiles.inputs_twice), space.inputs)
            twice = space.tiles.weights_twice and not space.room.is_resident
            weights = ("l1", _twice("weights", twice), space.weights)
            spad.append(Use(at, (inputs, weights, ("tb", "held for other layers", space.room.reserved))))
            acc.append(Use(at, (("mac", "sums", space.tiles.outputs),)))
    names = [layer.name for layer in document.layers]
    return [
        ("Scratchpad", _use_picture("scratchpad", names, spad, target.scratchpad_rows)),
        ("Accumulator", _use_picture("accumulator", names, acc, target.accumulator_rows)),
    ]


def _twice(what: str, twice: bool) -> str:
    return f"{what}, double buffered" if twice else what


def _use_picture(what: str, names: list[str], uses: list[Use], rows: int) -> Markup:
    height = 150
    x, y = Scale(0, len(names), LEFT, WIDTH - RIGHT), Scale(0, 1, height - BOTTOM, TOP)
    parts = _layers_axis(x, len(names), height)
    parts += axis_beside(y, LEFT, WIDTH - RIGHT, ((v, percent(v, 0)) for v in (0.0, 0.5, 1.0)))
    for use in uses:
        left, right, base = x(use.layer), x(use.layer + 1), 0.0
        for kind, label, taken in use.stack:
            share = taken / rows
            if taken:
                of = f"{count(taken)} of {count(rows)} rows ({percent(share, 0)})"
                tip = f"{use.layer} {names[use.layer]}: {label}, {of}"
                wide, high = max(right - left - 0.5, 0.5), y(base + share)
                parts.append(box(f"busy {kind}", tip, left, high, wide, y(base) - high))
            base += share
    return canvas(WIDTH, height, f"Rows of the {what} in use", parts)


def _layers_axis(x: Scale, layers: int, height: float) -> list[Markup]:
    numbers = ((index + 0.5, str(index)) for index in range(0, layers, -(-layers // 32)))
    return axis_below(x, height - BOTTOM, numbers, "layer, in order of execution", top=None)
