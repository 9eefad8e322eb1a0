"""Which layers run together, and which tensors stay on chip: one picture per column of layers."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.group_records import EdgeRecord
from fadiff.emitters.report.svg import box, canvas, element, text, title
from fadiff.emitters.report.text import short

ROW, NODE, LEFT, WIDTH = 24, 232, 30, 322
TALLEST = 30
"""Layers in a column, but for a group that is longer."""
LETTERS = 31
"""Of name and operator in one node."""
WIDEST = 9
"""Layers that an arc bends outwards for."""


@dataclass(frozen=True)
class Column:
    """Consecutive groups that are drawn below each other, and their layers' rows."""

    groups: tuple[tuple[str, ...], ...]

    @property
    def rows(self) -> dict[str, int]:
        """Row of every layer."""
        names = (name for group in self.groups for name in group)
        return {name: row for row, name in enumerate(names)}


def columns(document: ScheduleDocument) -> list[Column]:
    """Groups of the whole network, split so that no group is cut and columns are about equally long."""
    groups = document.fusion.groups
    layers = len(document.layers)
    length = -(-layers // -(-layers // TALLEST)) if layers else 1
    found: list[list[tuple[str, ...]]] = [[]]
    for group in groups:
        if found[-1] and sum(map(len, found[-1])) + len(group) > length:
            found.append([])
        found[-1].append(group)
    return [Column(tuple(column)) for column in found if column]


def fusion_graph(document: ScheduleDocument) -> list[Markup]:
    """Layers top to bottom, groups as frames, tensors as lines (thick: never goes to DRAM).

    A tensor that goes to another column leaves at the right, with the number of the layer that reads it.
    """
    index = {layer.name: number for number, layer in enumerate(document.layers)}
    return [_picture(document, column, index) for column in columns(document)]


def _picture(document: ScheduleDocument, column: Column, index: dict[str, int]) -> Markup:
    rows = column.rows
    layers = {layer.name: layer for layer in document.layers}
    parts: list[Markup] = []
    top = 0
    for group in column.groups:
        if len(group) > 1:
            tip = f"{len(group)} layers run tile by tile as one group"
            tall = len(group) * ROW - 1
            parts.append(box("frame", tip, LEFT - 6, top * ROW + 1, NODE + 12, tall, rx=7))
        top += len(group)
    parts += [_edge(edge, rows, index) for edge in document.fusion.edges if edge.producer in rows]
    for name, row in rows.items():
        y, op = row * ROW, layers[name].op
        kind = "node core" if layers[name].is_tensor_core else "node other"
        parts.append(box(kind, name, LEFT, y + 4, NODE, ROW - 7, rx=4))
        parts.append(text(short(name, max(LETTERS - len(op), 10)), LEFT + 6, y + 17))
        parts.append(text(op, LEFT + NODE - 6, y + 17, "note", text_anchor="end"))
        parts.append(text(str(index[name]), LEFT - 9, y + 17, "note", text_anchor="end"))
    first, last = (index[name] for name in (column.groups[0][0], column.groups[-1][-1]))
    return canvas(WIDTH, len(rows) * ROW + 6, f"Layers {first} to {last} and their fusion groups", parts)


def _edge(edge: EdgeRecord, rows: dict[str, int], index: dict[str, int]) -> Markup:
    stays = edge.fused or edge.path != "dram"
    kind = "edge fused" if stays else "edge"
    tip = title(
        f"{edge.tensor}: {edge.producer} to {edge.consumer}, {'stays on chip' if stays else 'through DRAM'}"
    )
    first, side = rows[edge.producer], LEFT + NODE
    y = first * ROW + 12
    if edge.consumer not in rows:
        stub = element("path", tip, d=f"M{side} {y}h16", class_=kind)
        return stub + text(str(index[edge.consumer]), side + 20, y + 4, "note")
    last = rows[edge.consumer]
    if last == first + 1:
        middle = LEFT + NODE / 2
        return element("path", tip, d=f"M{middle:.0f} {first * ROW + 21}V{last * ROW + 4}", class_=kind)
    bulge, drop = 6 * min(abs(last - first), WIDEST) + 4, (last - first) * ROW
    return element("path", tip, d=f"M{side} {y}c{bulge} 0 {bulge} {drop} 0 {drop}", class_=kind)
