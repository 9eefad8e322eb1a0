"""How far a point of the relaxed model is from the rules: mapping, array, capacity, one grid per group."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fadiff.converter.ir.loops import C, G, K, N, P, Q, R, S
from fadiff.costmodel.count.row_layout import input_rows, output_rows, weight_rows
from fadiff.costmodel.relaxed.straight_through import ceil, exact
from fadiff.costmodel.relaxed.terms import Terms


def _over(ratio: Tensor) -> Tensor:
    """Squared log of a ratio that must not exceed one."""
    return torch.relu(torch.log(ratio)).square()


def penalties(terms: Terms) -> dict[str, Tensor]:
    """All rules as [B] tensors, zero where they hold; costmodel/relaxed/model.py lists them."""
    m, p = terms.model, terms.point
    side = m.target.side
    nesting = [p.l2 / m.bounds, p.l1 / p.l2, p.l0 / p.l1, p.rows * p.cols / p.l0, 1 / p.l0]
    mapping = _over(torch.cat(nesting, dim=-1))
    array = _over(p.rows.prod(dim=-1) / side) + _over(p.cols.prod(dim=-1) / side)
    found = {"mapping": mapping.sum(dim=(-1, -2)), "array": array.sum(dim=-1)}
    occupied = occupancy(terms)
    used, spad = scratchpad_use(terms, occupied)
    memory = _over(used / spad) + _over(occupied.outputs / m.target.accumulator_rows)
    # An add streams through the accumulator piece by piece.
    found["memory"] = (memory * (1 - m.adds)).sum(dim=-1)
    zero = torch.zeros_like(found["memory"])
    found.update(buffer=zero, grid=zero, final=zero, reuse=zero, shape=zero)
    if terms.fused:
        sigma = p.sigma
        assert sigma is not None
        buffered = m.counting.has_tile_buffer
        if not buffered:
            final = torch.log(terms.fetch_o).square() * (1 - m.adds)
            found["final"] = (sigma * final[:, m.source]).sum(dim=-1)
        reuse = (torch.log(terms.fetch_i).square() * (1 - m.adds))[:, m.sink]
        found["reuse"] = (sigma * reuse).sum(dim=-1)
        found["shape"] = m.shape.consistent(sigma, terms.strength)
        if m.paper:
            found["grid"] = (sigma * _tile_mismatch(terms)).sum(dim=-1)
            return found
        found["grid"] = _misalignment(terms)
        walkable = m.shape.walkable(terms.strength, terms.operands, terms.unread)
        found["shape"] = found["shape"] + walkable + _uncomputed(terms)
        if buffered:
            found["buffer"] = _buffer(terms)
    return found


def _buffer(terms: Terms) -> Tensor:
    """Fused tensors of a group live side by side, one place each however many members read it, [B]."""
    m, sigma = terms.model, terms.point.sigma
    assert sigma is not None
    space = sigma * _intermediates(terms) * m.target.element_bytes
    own = torch.cat([space, torch.zeros_like(space[:, :1])], dim=1)[:, m.out_edges].amax(dim=-1)
    group = own + m.companions.sum(terms.strength, own)
    # Every tensor answers for its share, so that a group counts once.
    share = own / group.clamp(min=1e-9)
    room = max(m.target.tile_buffer_bytes, 1)
    return (_over((group / room).clamp(min=1e-9)) * share).sum(dim=-1)


def _uncomputed(terms: Terms) -> Tensor:
    """A fused tensor that is also stored has to be computed everywhere, [B]."""
    m = terms.model
    missing = torch.log(m.grid.size.squeeze(-1) / terms.regions.covered.clamp(min=1)).sum(dim=0)
    return (missing * terms.copied * terms.written).sum(dim=-1)


def scratchpad_use(terms: Terms, occupied: Occupied) -> tuple[Tensor, float]:
    """Scratchpad space taken while every node runs, [B, L], and the capacity: rows, in dosa bytes."""
    m = terms.model
    used = occupied.weights + occupied.inputs + _carried(terms, occupied)
    return used, m.counting.scratchpad_size(m.target)


class Occupied(NamedTuple):
    """Space of the tiles of every node, [B, L]: rows (dosa: bytes, words of the fullest column)."""

    weights: Tensor
    inputs: Tensor
    outputs: Tensor


def occupancy(terms: Terms) -> Occupied:
    """Scratchpad space of the W and I tile, accumulator space of the O tile; twice if double-buffered.

    The formulas of fadiff.costmodel.count.row_layout, rounding up with a gradient.
    """
    m, e = terms.model, terms.model.target.element_bytes
    l2, l1, cols, rows = terms.l2, terms.l1, terms.cols, terms.rows
    h, w = terms.boxes()

    def blocks(extent: Tensor, width: Tensor) -> Tensor:
        ratio = extent / width
        return exact(ceil(ratio), ratio)

    outputs = output_rows(l1, cols, blocks)
    taps = l2[G] * l2[R] * l2[S]
    if not m.counting.in_rows:
        return Occupied(taps * l2[K] * l2[C] * e, l2[G] * l2[N] * l2[C] * h * w * e, outputs)
    weights = weight_rows(l2, rows, cols, transposed=False, blocks=blocks)
    if m.any_transposed:
        along = weight_rows(l2, rows, cols, transposed=True, blocks=blocks)
        weights = weights + m.transposed * (along - weights)
    inputs = input_rows(l2, rows, cols, h * w, blocks)
    once, within = terms.once3, (1 - terms.gate2).unbind(-1)
    kernel = once[G] * once[C] * once[R] * once[S]
    image = once[N] * once[P] * once[Q]
    weight_loops, input_loops = kernel * once[K], kernel * image
    output_loops = once[G] * once[K] * image
    output_loops = output_loops * within[G] * within[N] * within[K] * within[P] * within[Q]
    return Occupied(
        weights * (2 - weight_loops),
        inputs * (2 - input_loops),
        outputs * (2 - output_loops),
    )


def _carried(terms: Terms, occupied: Occupied) -> Tensor:
    """Scratchpad space that the rest of the group occupies while a member runs."""
    weights, inputs, _ = occupied
    m = terms.model
    if not terms.fused:
        return torch.zeros_like(weights)
    once = terms.once3
    whole = once[G] * once[K] * once[C] * once[R] * once[S]
    held = (weights + inputs if m.paper else weights * whole) * (1 - m.adds)
    carried = m.companions.sum(terms.strength, held)
    if m.paper:
        return carried
    if not m.counting.has_tile_buffer:
        # A fused operand is read where it is: its own tile takes no further space.  (Adds have no tiles.)
        carried = carried + _live(terms) - terms.into * inputs * (1 - m.adds)
    return carried


def _live(terms: Terms) -> Tensor:
    """Bytes of the fused tensors alive while every node runs, [B, L]."""
    m, sigma = terms.model, terms.point.sigma
    assert sigma is not None
    space = _intermediates(terms) * m.target.element_bytes
    return m.live(sigma * space, terms.strength, m.n_layers)


def _intermediates(terms: Terms) -> Tensor:
    """Elements of the region that one group tile needs of each fused tensor, [B, E]."""
    m = terms.model
    b = m.columns
    channels = (b[G] * b[K])[m.source]
    size = channels * terms.l2[N][:, m.sink]
    for at, box in enumerate(_boxes(terms)):
        size = size * exact(terms.regions.largest[at][:, m.source], box)
    return size


def _boxes(terms: Terms) -> list[Tensor]:
    """Rows and columns that one group tile makes each edge's consumer read, clipped to the image, [B, E]."""
    m = terms.model
    boxes = []
    for at, axis in enumerate(m.axes):
        reach = (axis.kernel - 1) * axis.dilation
        box = (terms.group[at] - 1) * axis.stride + reach + 1
        boxes.append(torch.minimum(box[:, m.sink], m.columns[axis.outputs][m.source]))
    return boxes


def _misalignment(terms: Terms) -> Tensor:
    """Members' tiles against what the group computes of them: equal along N, inside it along P and Q, [B]."""
    m, sigma = terms.model, terms.point.sigma
    assert sigma is not None
    images = torch.log(terms.l2[N][:, m.source] / terms.l2[N][:, m.sink]).square()
    outside = torch.zeros_like(terms.copied)
    for at, (axis, box) in enumerate(zip(m.axes, _boxes(terms), strict=True)):
        # Several readers: the farthest-reaching decides.
        need = torch.cat([sigma.detach().round() * box, torch.zeros_like(box[:, :1])], dim=1)
        need = need[:, m.out_edges].amax(dim=-1)
        limit = torch.where(need > 0, need, terms.group[at])
        outside = outside + _over(terms.l2[axis.outputs] / limit)
    return (sigma * images).sum(dim=-1) + (terms.member * outside).sum(dim=-1)


def _tile_mismatch(terms: Terms) -> Tensor:
    """Producer tile against the consumer's input box along N, P, Q, in logs, [B, E] (Eq. 26)."""
    m = terms.model
    total = torch.log(terms.l2[N][:, m.source] / terms.l2[N][:, m.sink]).square()
    for axis, box in zip(m.axes, _boxes(terms), strict=True):
        total = total + torch.log(terms.l2[axis.outputs][:, m.source] / box).square()
    return total
