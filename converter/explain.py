"""What became of the nodes of a model, for `fadiff inspect --explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from converter.graph import Graph
from converter.plan import Step
from converter.program import Program


def explain(program: Program, steps: Sequence[Step], graph: Graph) -> tuple[str, ...]:
    """One line per kind of folding: which nodes vanished, and into what."""
    present = {name for layer in graph.layers for name in layer.onnx_nodes}
    fused: Counter[tuple[str, str]] = Counter()
    views: Counter[str] = Counter()
    tables: Counter[int] = Counter()
    for step in steps:
        if step.kind == "lookup":
            if step.head.name in present:
                tables[len(step.nodes)] += 1
            else:
                views[" + ".join(node.op for node in step.nodes) + " by a constant"] += 1
        elif step.head.name not in present:
            views[step.head.op] += 1
        else:
            fused.update((node.op, step.head.op) for node in step.nodes if node is not step.head)
    copies = sum(layer.op == "copy" for layer in graph.layers)
    lines = [f"epilogue: {count} {op} folded into {into}" for (op, into), count in sorted(fused.items())]
    lines += [f"access: {count} {op} became strides or a scale" for op, count in sorted(views.items())]
    lines += [
        f"table: {count} chains of {length} nodes became lookups" for length, count in sorted(tables.items())
    ]
    lines.append(f"copies: {copies} remain; {len(program.nodes)} nodes are {len(graph.layers)} layers")
    return tuple(lines)
