"""The fate of each node of a model, for `fadiff inspect --explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.program import Program
from fadiff.converter.plan.plan import Step
from fadiff.converter.rewrites import (
    ABSORB_MOVEMENT,
    FOLD_CHAINS,
    FOLD_EPILOGUES,
    FOLD_INPUTS,
    FOLD_NORMS,
)


def explain(program: Program, steps: Sequence[Step], graph: Graph) -> tuple[str, ...]:
    """One line per kind of folding: which nodes vanished, and into what."""
    present = {name for layer in graph.layers for name in layer.onnx_nodes}
    fused: Counter[tuple[str, str]] = Counter()
    views: Counter[str] = Counter()
    tables: Counter[int] = Counter()
    scales: Counter[str] = Counter()
    norms: Counter[int] = Counter()
    inputs: Counter[str] = Counter()
    for step in steps:
        if step.kind in ("input", "output"):
            inputs[" + ".join(node.op for node in step.nodes)] += 1
        elif step.kind == "lookup":
            if step.head.name in present:
                tables[len(step.nodes)] += 1
            else:
                scales[" + ".join(node.op for node in step.nodes) + " by a constant"] += 1
        elif step.norm is not None:
            norms[len(step.nodes)] += 1
        elif step.head.name not in present:
            views[step.head.op] += 1
        else:
            fused.update((node.op, step.head.op) for node in step.nodes if node is not step.head)
    copies = sum(layer.op == "copy" for layer in graph.layers)
    return (
        *_counted(FOLD_EPILOGUES, "{0[0]} folded into {0[1]}", fused),
        *_counted(ABSORB_MOVEMENT, "{} became strides", views),
        *_counted(FOLD_CHAINS, "chains of {} nodes became tables", tables),
        *_counted(FOLD_CHAINS, "{} became a scale", scales),
        *_counted(FOLD_INPUTS, "{} became what integers of an input or output mean", inputs),
        *_counted(FOLD_NORMS, "normalisations of {} nodes became layers", norms),
        f"copies: {copies} remain; {len(program.nodes)} nodes are {len(graph.layers)} layers",
    )


def _counted(rewrite: str, text: str, counts: Counter[Any]) -> Iterator[str]:
    """How often a rewrite did something, and to what."""
    return (f"{rewrite}: {count} {text.format(key)}" for key, count in sorted(counts.items()))
