"""How far a point of the relaxed model is from the rules: mapping, array, capacity, one grid per group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from costmodel.straight_through import ceil, exact
from costmodel.traffic import path_of

if TYPE_CHECKING:
    from costmodel.relaxed_terms import Terms

G, N, K, C, P, Q, R, S = range(8)


def _over(ratio: Tensor) -> Tensor:
    """Squared log of a ratio that must not exceed one."""
    return torch.relu(torch.log(ratio)).square()


def penalties(terms: Terms) -> dict[str, Tensor]:
    """All rules as [B] tensors, zero where they hold; costmodel/relaxed.py lists them."""
    m, p = terms.model, terms.point
    side = m.target.side
    nesting = [p.l2 / m.bounds, p.l1 / p.l2, p.l0 / p.l1, p.rows * p.cols / p.l0, 1 / p.l0]
    mapping = _over(torch.cat(nesting, dim=-1))
    array = _over(p.rows.prod(dim=-1) / side) + _over(p.cols.prod(dim=-1) / side)
    found = {"mapping": mapping.sum(dim=(-1, -2)), "array": array.sum(dim=-1)}
    weights, inputs, outputs, spad, acc = _occupancy(terms)
    carried = _carried(terms, weights, inputs)
    memory = _over((weights + inputs + carried) / spad) + _over(outputs / acc)
    # An add streams through the accumulator piece by piece.
    found["memory"] = (memory * (1 - m.adds)).sum(dim=-1)
    zero = torch.zeros_like(found["memory"])
    found.update(buffer=zero, grid=zero, final=zero, reuse=zero)
    if terms.fused:
        sigma = p.sigma
        assert sigma is not None
        final = torch.log(terms.fetch_o).square()[:, m.source]
        reuse = (torch.log(terms.fetch_i).square() * (1 - m.adds))[:, m.sink]
        found["final"] = (sigma * final).sum(dim=-1)
        found["reuse"] = (sigma * reuse).sum(dim=-1)
        found["grid"] = (sigma * _misalignment(terms)).sum(dim=-1)
        if not m.paper and path_of(m.target, "hw" if m.hw else "dosa") == "tile-buffer":
            space = sigma * _intermediates(terms) * m.target.element_bytes
            # One place per tensor, however many members read it.
            space = torch.cat([space, torch.zeros_like(space[:, :1])], dim=1)[:, m.out_edges].amax(dim=-1)
            found["buffer"] = _over(space.sum(dim=-1) / m.target.tile_buffer_bytes + 1e-9)
    return found


def _occupancy(terms: Terms) -> tuple[Tensor, Tensor, Tensor, float, float]:
    """Scratchpad space of the W and I tile, accumulator space of the O tile, both capacities."""
    m, p = terms.model, terms.point
    t = m.target
    l2, l1, cols, rows = terms.l2, terms.l1, terms.cols, terms.rows
    h, w = terms.boxes()
    w_tile = l2[G] * l2[K] * l2[C] * l2[R] * l2[S]
    i_tile = l2[G] * l2[N] * l2[C] * h * w
    o_tile = l1[G] * l1[N] * l1[K] * l1[P] * l1[Q]
    if not m.hw:
        words = o_tile / p.cols.prod(dim=-1)
        depth = t.accumulator_bytes // t.accumulator_bytes_per_word // t.side
        return w_tile * t.element_bytes, i_tile * t.element_bytes, words, t.scratchpad_bytes, depth

    def blocks(extent: Tensor, width: Tensor) -> Tensor:
        ratio = extent / width
        return exact(ceil(ratio), ratio) / extent

    k2 = blocks(l2[K], cols[K])
    if m.any_transposed:
        k2 = k2 + m.transposed * (blocks(l2[C], rows[C]) - k2)
    k1 = blocks(l1[K], cols[K]) * blocks(l1[G], cols[G])
    c2 = blocks(l2[C], rows[C]) * blocks(l2[G], cols[G])
    # A group of tiles is fetched in one run: its own loops over N, P, Q do not double-buffer.
    alone = 1 - terms.member if terms.fused and not m.paper else torch.ones_like(h)
    g3, once, within = terms.gate3.unbind(-1), terms.once3, (1 - terms.gate2).unbind(-1)
    kernel = once[G] * once[C] * once[R] * once[S]
    image = (1 - g3[N] * alone) * (1 - g3[P] * alone) * (1 - g3[Q] * alone)
    weight_loops, input_loops = kernel * once[K], kernel * image
    output_loops = once[G] * once[K] * image
    output_loops = output_loops * within[G] * within[N] * within[K] * within[P] * within[Q]
    return (
        w_tile * k2 * (2 - weight_loops),
        i_tile * c2 * (2 - input_loops),
        o_tile * k1 * (2 - output_loops),
        t.scratchpad_rows,
        t.accumulator_rows,
    )


def _carried(terms: Terms, weights: Tensor, inputs: Tensor) -> Tensor:
    """Scratchpad space that the rest of the group occupies while a member runs."""
    m, p = terms.model, terms.point
    if not terms.fused:
        return torch.zeros_like(weights)
    sigma = p.sigma
    assert sigma is not None
    once = terms.once3
    whole = once[G] * once[K] * once[C] * once[R] * once[S]
    held = weights + inputs if m.paper else weights * whole
    carried = m.companions.carried(sigma, held)
    if not m.paper and path_of(m.target, "hw" if m.hw else "dosa") == "spad":
        unit = 1 / m.target.side if m.hw else m.target.element_bytes
        # A fused operand is read where it is: its own tile takes no further space.
        carried = carried + m.live(sigma * _intermediates(terms) * unit, terms.member) - terms.into * inputs
    return carried


def _intermediates(terms: Terms) -> Tensor:
    """Elements of the region that one group tile needs of each fused tensor, [B, E]."""
    m = terms.model
    b = m.columns
    channels = (b[G] * b[K])[m.source]
    size = channels * terms.l2[N][:, m.sink]
    for axis in m.axes:
        box = axis.box(terms.l2[axis.outputs], axis.kernel)[:, m.sink]
        size = size * torch.minimum(box, axis.size[m.sink])
    return size


def _misalignment(terms: Terms) -> Tensor:
    """Producer tile against the consumer's input box along N, P, Q, in logs, [B, E]."""
    m = terms.model
    total = torch.log(terms.l2[N][:, m.source] / terms.l2[N][:, m.sink]).square()
    for axis in m.axes:
        box = axis.box(terms.l2[axis.outputs], axis.kernel)[:, m.sink]
        need = torch.minimum(box, axis.size[m.sink])
        total = total + torch.log(terms.l2[axis.outputs][:, m.source] / need).square()
    return total
