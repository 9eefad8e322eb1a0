"""Pictures of structure: which layers run together, and what lies where in the arena."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from costmodel.schedule.document import ScheduleDocument
from emitters.report.svg import Scale, canvas, element, title
from emitters.report.text import count, tick

ROW, NODE_WIDTH, LEFT = 26, 250, 40
LABEL = 14
"""Height of a line of text; letters are half as wide."""


def fusion_graph(document: ScheduleDocument) -> Markup:
    """Layers top to bottom, fusion groups as frames, tensors as arcs (thick: never goes to DRAM)."""
    rows = [name for group in document.fusion.groups for name in group]
    at = {name: index for index, name in enumerate(rows)}
    layers = {layer.name: layer for layer in document.layers}
    reach = max((abs(at[e.consumer] - at[e.producer]) for e in document.fusion.edges), default=1)
    width = LEFT + NODE_WIDTH + 30 + 16 * min(reach, 12)
    parts: list[Markup] = []
    top = 0
    for group in document.fusion.groups:
        if len(group) > 1:
            label = title(f"{len(group)} layers run tile by tile as one group")
            parts.append(
                element(
                    "rect",
                    label,
                    x=LEFT - 10,
                    y=top * ROW + 2,
                    width=NODE_WIDTH + 20,
                    height=len(group) * ROW - 2,
                    rx=8,
                    class_="frame",
                )
            )
        top += len(group)
    for edge in document.fusion.edges:
        first, last = at[edge.producer], at[edge.consumer]
        tip = f"{edge.tensor}: {edge.producer} to {edge.consumer}, " + (
            "stays on chip" if edge.fused or edge.path != "dram" else "through DRAM"
        )
        kind = "edge" if edge.path == "dram" and not edge.fused else "edge fused"
        if last == first + 1:
            middle = LEFT + NODE_WIDTH / 2
            path = f"M{middle} {first * ROW + 24}V{last * ROW + 5}"
        else:
            side, bulge = LEFT + NODE_WIDTH, 16 * min(abs(last - first), 12)
            drop = (last - first) * ROW
            path = f"M{side} {first * ROW + 14}c{bulge} 0 {bulge} {drop} 0 {drop}"
        parts.append(element("path", title(tip), d=path, class_=kind))
    for name, index in at.items():
        parts.append(
            element(
                "rect",
                title(name),
                x=LEFT,
                y=index * ROW + 5,
                width=NODE_WIDTH,
                height=ROW - 7,
                rx=4,
                class_=f"node {'core' if layers[name].is_tensor_core else 'other'}",
            )
        )
        parts.append(element("text", _short(name, 34), x=LEFT + 8, y=index * ROW + 19))
        parts.append(
            element(
                "text",
                layers[name].op,
                x=LEFT + NODE_WIDTH - 8,
                y=index * ROW + 19,
                text_anchor="end",
                class_="note",
            )
        )
        parts.append(
            element("text", str(index), x=LEFT - 14, y=index * ROW + 19, text_anchor="end", class_="note")
        )
    return canvas(width, len(rows) * ROW + 8, "Layers and fusion groups", parts)


def _short(name: str, limit: int) -> str:
    return name if len(name) <= limit else f"{name[: limit // 2 - 1]}…{name[-(limit // 2) :]}"


def arena_map(document: ScheduleDocument, memory_map: Mapping[str, Any]) -> Markup | None:
    """Arena offset against layer: one rectangle per tensor while it lives, named where there is room."""
    arena = memory_map["symbols"]["arena"]["bytes"]
    live = lifetimes(document)
    tensors = {n: t for n, t in memory_map["tensors"].items() if t["symbol"] == "arena" and n in live}
    if not tensors or not arena:
        return None
    width, height, left, bottom = 1040, 300, 64, 46
    x = Scale(0, len(document.layers), left, width - 10)
    y = Scale(0, arena, height - bottom, 10)
    parts: list[Markup] = []
    for value in y.ticks():
        parts.append(element("line", x1=left, x2=width - 10, y1=y(value), y2=y(value), class_="grid"))
        parts.append(element("text", tick(value), x=left - 6, y=y(value) + 4, text_anchor="end"))
    layers = len(document.layers)
    for index in range(0, layers, -(-layers // 32)):
        at = x(index + 0.5)
        parts.append(element("text", str(index), x=at, y=height - bottom + 16, text_anchor="middle"))
    for index, (name, tensor) in enumerate(sorted(tensors.items(), key=lambda item: live[item[0]])):
        first, last = live[name]
        low, high = y(tensor["offset"]), y(tensor["offset"] + tensor["bytes"])
        tip = title(
            f"{name}: {count(tensor['bytes'])} bytes at {count(tensor['offset'])}, layers {first} to {last}"
        )
        parts.append(
            element(
                "rect",
                tip,
                x=x(first),
                y=high,
                width=x(last + 1) - x(first),
                height=max(1.0, low - high),
                class_=f"block shade{index % 4}",
            )
        )
        if low - high >= LABEL and x(last + 1) - x(first) >= LABEL / 2 * len(name):
            middle = (x(first) + x(last + 1)) / 2
            parts.append(
                element("text", name, x=middle, y=(low + high) / 2 + 4, text_anchor="middle", class_="label")
            )
    parts.append(
        element("text", "bytes", x=12, y=height / 2, class_="axis", transform=f"rotate(-90 12 {height / 2})")
    )
    parts.append(
        element(
            "text",
            "layer, in order of execution",
            x=(left + width) / 2,
            y=height - 8,
            text_anchor="middle",
            class_="axis",
        )
    )
    return canvas(width, height, "Memory map of the activation arena", parts)


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
