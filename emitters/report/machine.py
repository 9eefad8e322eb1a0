"""report.html of `fadiff map`: what limits layers, bytes of every memory, what is fused, all loop nests."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from fadiff.costmodel.nests.machine import Memory
from fadiff.emitters.report.charts import Dot, roofs
from fadiff.emitters.report.render import page
from fadiff.emitters.report.svg import element
from fadiff.optimizer.nests.network import MappedLayer, MappedNetwork


def machine_report(network: MappedNetwork, model: str) -> str:
    """One page that needs no network."""
    machine, best = network.machine, network.best
    outermost = machine.memories[0]
    memory_bytes = outermost.word_bits / 8
    bandwidth = memory_bytes * min(
        outermost.shared_bandwidth, outermost.read_bandwidth + outermost.write_bandwidth
    )
    dots = [
        Dot(
            number,
            mapped.layer.name,
            mapped.layer.macs,
            mapped.traffic(machine)[outermost.name],
            mapped.cycles,
            "",
            "mac",
        )
        for number, mapped in enumerate(best.layers)
    ]
    picture = roofs(dots, machine.multipliers, bandwidth) if bandwidth < float("inf") else None
    fused: list[dict[str, Any]] = [
        {"fused": ", ".join(layers), "rows of a tile": tile.P, "bytes saved": round(network.saved(layers))}
        for layers, tile in best.groups.items()
    ]
    others = [{"no loop nest, not counted": name} for name in network.others]
    nests = Markup("").join(_nest(network, number, mapped) for number, mapped in enumerate(best.layers))
    parts = [part for part in (picture, _layers(network), fused, nests, others) if part]
    return page(f"{model} on {machine.name}: EDP {best.edp:.4g} uJ x cycles", *parts)


def _layers(network: MappedNetwork) -> list[dict[str, Any]]:
    return [
        {
            "number": number,
            "layer": mapped.layer.name,
            "dims": str(mapped.run.workload.dims),
            "runs": mapped.run.times,
            "cycles": mapped.cycles,
            "uJ": mapped.energy * 1e-6,
            "multipliers busy": mapped.run.times
            * mapped.run.workload.dims.product
            / (mapped.cycles * network.machine.multipliers),
            **{f"{name} bytes": round(n) for name, n in mapped.traffic(network.machine).items()},
        }
        for number, mapped in enumerate(network.best.layers)
    ]


def _nest(network: MappedNetwork, number: int, mapped: MappedLayer) -> Markup:
    """Boxes in boxes, outermost level first: its loops, and what a memory keeps."""
    active, mapping = mapped.run.workload.active, mapped.found.mapping
    memories = list(network.machine.memories)
    picture = element("div", Markup("<b>multiplier</b>"), class_="box array")
    for place, level in reversed(list(enumerate(network.machine.levels))):
        factors = mapping.factors[0, place]
        if isinstance(level, Memory):
            memory = memories.index(level)
            order = [int(at) for at in mapping.orders[0, memory][::-1]]
            about = f" keeps {' '.join(sorted(mapping.keeps[memory])) or 'nothing'}"
        else:
            order, about = list(range(len(active))), f" along {level.axis}"
        loops = [element("code", f"{active[at].lower()}×{factors[at]}") for at in order if factors[at] > 1]
        words = Markup(" ").join([element("b", level.name), element("span", about), *loops])
        kind = "box l3" if place == 0 else "box l2" if isinstance(level, Memory) else "box l0"
        picture = element("div", words, picture, class_=kind)
    name = f"{number} {mapped.layer.name}: {mapped.run.workload.dims}" + (
        f", {mapped.run.times} runs" if mapped.run.times > 1 else ""
    )
    return element("details", element("summary", name), element("div", picture, class_="nest"))
