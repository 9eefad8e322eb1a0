"""Joins the plans of several entries in one memory: equal weights once, states by name, common buffers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fadiff.converter.ir.graph import Graph, Tensor
from fadiff.converter.ir.stored import release
from fadiff.costmodel.group.allocation import align
from fadiff.emitters.gemmini.memory import Memory, Place
from fadiff.emitters.gemmini.plan import FirmwarePlan
from fadiff.emitters.gemmini.weights import WeightBlob


@dataclass(frozen=True)
class Linked:
    """Plans whose places are in common memory, and that memory."""

    plans: tuple[FirmwarePlan, ...]
    weights: WeightBlob
    arena_bytes: int
    tile_buffer_bytes: int
    state_bytes: int
    states: tuple[tuple[Tensor, int], ...]
    """Every state as the program that sees most of it reads it, and where."""


def link(owner: str, plans: Sequence[FirmwarePlan]) -> Linked:
    """Give the plans one weight blob, arena, tile buffer and state.

    Weights of equal bytes are one, whatever they are called.  A state is known by the ONNX name of its input;
    plans that see its first rows only find them at the beginning of it.  Arena and tile buffer begin at one
    place for all: one program runs at a time.
    """
    blob = WeightBlob()
    digests = [{name: _digest(content) for name, content in p.memory.weights.items()} for p in plans]
    for plan, known in zip(plans, digests, strict=True):
        for name, content in plan.memory.weights.items():
            blob.add(known[name], content)
    slots, nbytes = _slots(plans)
    linked = tuple(
        replace(plan, owner=owner, memory=_moved(plan, blob, known, slots, nbytes))
        for plan, known in zip(plans, digests, strict=True)
    )
    found: dict[str, tuple[Tensor, int]] = {}
    for plan in plans:
        for name, tensor in _states(plan.schedule.graph).items():
            if name not in found or tensor.nbytes > found[name][0].nbytes:
                found[name] = tensor, slots[name][0]
    return Linked(
        linked,
        blob,
        max(plan.memory.arena.nbytes for plan in plans),
        max(plan.memory.tile_buffer_bytes for plan in plans),
        nbytes,
        tuple(found.values()),
    )


def _digest(content: np.ndarray) -> str:
    """What tells bytes from others."""
    data = np.ascontiguousarray(content, content.dtype.newbyteorder("<"))
    digest = hashlib.sha256(data.reshape(-1).view(np.uint8).data).hexdigest()
    release(content)
    return digest


def _states(graph: Graph) -> dict[str, Tensor]:
    """Inputs that are states, by ONNX name."""
    tensors = (graph.tensors[state.input] for state in graph.states)
    return {tensor.onnx_name or tensor.name: tensor for tensor in tensors}


def _slots(plans: Sequence[FirmwarePlan]) -> tuple[dict[str, tuple[int, int]], int]:
    """Of every state where it is, and where a program puts the next one that cannot be written there; their
    bytes."""
    apart: dict[str, bool] = {}
    sizes: dict[str, int] = {}
    for plan in plans:
        places = plan.memory.tensors
        for state, (name, tensor) in zip(
            plan.schedule.graph.states, _states(plan.schedule.graph).items(), strict=True
        ):
            apart[name] = apart.get(name, False) or places[state.output] != places[state.input]
            sizes[name] = max(sizes.get(name, 0), align(tensor.nbytes))
    slots, end = {}, 0
    for name, size in sizes.items():
        slots[name] = (end, end + size * apart[name])
        end += size * (1 + apart[name])
    return slots, end


def _moved(
    plan: FirmwarePlan,
    blob: WeightBlob,
    digests: MappingABC[str, str],
    slots: MappingABC[str, tuple[int, int]],
    state_bytes: int,
) -> Memory:
    """The places of a plan in common memory."""
    graph, memory = plan.schedule.graph, plan.memory
    offsets = {name: blob.offsets[digest] for name, digest in digests.items()}
    places = dict(memory.tensors)
    places |= {name: replace(places[name], offset=offset) for name, offset in offsets.items()}
    for state, name in zip(graph.states, _states(graph), strict=True):
        here, next_one = slots[name]
        in_place = memory.tensors[state.output] == memory.tensors[state.input]
        places[state.input] = _at(places[state.input], here)
        places[state.output] = _at(places[state.output], here if in_place else next_one)
    view = WeightBlob(offsets, dict(memory.weights.sizes), nbytes=blob.nbytes)
    return replace(memory, tensors=places, weights=view, state_bytes=state_bytes)


def _at(place: Place, offset: int) -> Place:
    return replace(place, offset=offset)
