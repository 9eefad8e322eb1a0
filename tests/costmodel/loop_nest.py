"""An interpreter of the loop nest in docs/execution-contract.md: walks every loop, counts every fetch.

Slow and literal on purpose: the cost model's closed forms are checked against it.
"""

from __future__ import annotations

from itertools import product

from fadiff.converter.ir.loops import DIMS, RELEVANT


def cut(interval, size):
    a, b = interval
    return [(x, min(x + size, b)) for x in range(a, b, size)]


class Walk:
    """Counts of one run of the nest over one region; add up runs for a fusion group."""

    def __init__(self, shape, mapping, side):
        self.shape, self.mapping, self.side = shape, mapping, side
        self.counts = dict.fromkeys(
            ("W dram", "I dram", "bias", "O final", "O spill", "O refill", "W array", "I array", "updates"), 0
        )
        self.cycles = 0

    def run(self, region, largest):
        """`region` and `largest` (for the place of fetches): interval and extent per dimension."""
        m = self.mapping
        trips = {}
        for outer, inner, level in (
            (largest, m.tile_l2.as_dict(), "L3"),
            (m.tile_l2.as_dict(), m.tile_l1.as_dict(), "L2"),
            (m.tile_l1.as_dict(), m.tile_l0.as_dict(), "L1"),
        ):
            for d in DIMS:
                trips[level, d] = -(-outer[d] // inner[d])
        self.loops = [
            (level, d, getattr(m, f"tile_{inner}")[d], trips[level, d])
            for level, inner in (("L3", "l2"), ("L2", "l1"), ("L1", "l0"))
            for d in m.order(level)
        ]
        self.places = {
            "W dram": self.place("W", ("L3",)),
            "I dram": self.place("I", ("L3",)),
            "O": self.place("O", ("L3", "L2")),
            "W array": self.place("W", ("L3", "L2", "L1")),
        }
        self.visited = set()
        self.descend(0, dict(region))

    def place(self, operand, levels):
        """Index just inside the innermost relevant loop with several trips; 0: before the nest."""
        found = 0
        for index, (level, d, _, trips) in enumerate(self.loops):
            if level in levels and d in RELEVANT[operand] and trips > 1:
                found = index + 1
        return found

    def descend(self, index, at):
        for what, place in self.places.items():
            if place == index:
                self.fetch(what, at)
        if index == len(self.loops):
            self.array_block(at)
            return
        _, d, size, _ = self.loops[index]
        for piece in cut(at[d], size):
            self.descend(index + 1, {**at, d: piece})

    def fetch(self, what, at):
        c, n = self.counts, {d: b - a for d, (a, b) in at.items()}
        if what.startswith("W"):
            c[what] += self.weights(at)
        elif what == "I dram":
            rows = self.rows(self.shape.height, at["P"], at["R"])
            c[what] += n["G"] * n["N"] * n["C"] * rows * self.rows(self.shape.width, at["Q"], at["S"])
        else:
            # A visit of one accumulator tile: all its loops lie outside already.
            pixels = n["N"] * n["P"] * n["Q"]
            elements = n["G"] * n["K"] * pixels
            key = tuple(at[d] for d in ("G", "N", "K", "P", "Q"))
            if key in self.visited:
                c["O spill"] += elements
                c["O refill"] += elements
            else:
                c["O final"] += elements
                c["bias"] += n["G"] * n["K"] * -(-pixels // self.side)
            self.visited.add(key)

    def weights(self, at):
        n = {d: b - a for d, (a, b) in at.items()}
        if not self.shape.is_depthwise:
            return n["G"] * n["K"] * n["C"] * n["R"] * n["S"]
        m = self.mapping
        squares = 0
        for l2 in cut(at["G"], m.tile_l2.G):
            for l1 in cut(l2, m.tile_l1.G):
                squares += sum((b - a) ** 2 for a, b in cut(l1, m.tile_l0.G))
        return squares * n["R"] * n["S"]

    @staticmethod
    def rows(window, outputs, taps):
        touched = {
            p * window.stride + r * window.dilation - window.pad
            for p in range(*outputs)
            for r in range(*taps)
        }
        if window.kernel > 1:
            touched = set(range(min(touched), max(touched) + 1))
        return len([x for x in touched if 0 <= x < window.size])

    def array_block(self, at):
        n = {d: b - a for d, (a, b) in at.items()}
        macs = 1
        for extent in n.values():
            macs *= extent
        pixels = n["N"] * n["P"] * n["Q"]
        self.cycles += pixels
        self.counts["I array"] += macs // n["K"]
        self.counts["updates"] += n["G"] * n["K"] * pixels


def walk(shape, mapping, region, side):
    """Run the interpreter over all regions (one run per group tile)."""
    result = Walk(shape, mapping, side)
    largest = {d: shape.dims[d] for d in DIMS}
    for d, axis in zip("GKNPQ", region, strict=True):
        largest[d] = max(b - a for a, b in axis)
    for g, k, n, p, q in product(*region):
        bounds = {d: (0, shape.dims[d]) for d in DIMS} | {"G": g, "K": k, "N": n, "P": p, "Q": q}
        result.run(bounds, largest)
    return result
