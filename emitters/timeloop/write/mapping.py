"""A unit's loop nest as Timeloop mapping directives, native dialect."""

from __future__ import annotations

from collections.abc import Mapping

from fadiff.converter.ir.loops import DIMS, Dim
from fadiff.emitters.timeloop.nest import KEPT, LOOPS, OPERANDS, Factor, Loops, TimeloopNest
from fadiff.emitters.timeloop.write.problem import letters_of
from fadiff.emitters.timeloop.write.units import Unit

Yaml = dict[str, object]


def kept_at(unit: Unit) -> dict[str, tuple[str, ...]]:
    """Data spaces kept at each level, innermost level first; fused ones leave DRAM."""
    keep = {
        str(level): {name for name, operand in OPERANDS.items() if operand in kept}
        for level, kept in KEPT.items()
    }
    if unit.uses_tile_buffer:
        keep["TileBuffer"] = set()
    for name, level in (("Inputs", unit.inputs_in), ("Outputs", unit.outputs_in)):
        if level is not None:
            keep[level].add(name)
            if not (name == "Outputs" and unit.outputs_also_in_dram):
                keep["DRAM"].discard(name)
    order = [
        level for level in ("Registers", "Accumulator", "Scratchpad", "TileBuffer", "DRAM") if level in keep
    ]
    return {level: tuple(name for name in OPERANDS if name in keep[level]) for level in order}


def mapping(unit: Unit, nest: TimeloopNest) -> Yaml:
    """Root key `mapping`: a bypass directive per level, then the loops, innermost level first."""
    letters = letters_of(unit.dims)
    bypass: list[Yaml] = [
        {
            "target": level,
            "type": "bypass",
            "keep": list(kept),
            "bypass": [name for name in OPERANDS if name not in kept],
        }
        for level, kept in kept_at(unit).items()
    ]
    loops = [_directive(group, nest, letters) for group in LOOPS]
    if unit.uses_tile_buffer:
        # The loops that choose a scratchpad tile fetch from the tile buffer, so they stand below DRAM.
        outer = loops.pop()
        loops.append({**outer, "target": "TileBuffer"})
        once = factors_text(dict.fromkeys(DIMS, Factor(1, 1)), letters)
        loops.append({**outer, "factors": once})
    return {"mapping": bypass + loops}


def _directive(group: Loops, nest: TimeloopNest, letters: str) -> Yaml:
    directive: Yaml = {
        "target": group.level,
        "type": group.kind,
        "factors": factors_text(nest.factors[group], letters),
        "permutation": "".join(d for d in nest.orders[group] if d in letters),
    }
    if group.kind == "spatial":
        # Columns (below the scratchpad) lie along X, rows (below the accumulator) along Y.
        directive["split"] = len(letters) if group.level == "Scratchpad" else 0
    return directive


def factors_text(factors: Mapping[Dim, Factor], letters: str) -> str:
    """`N=1 K=4 P=13,4`: full trips, then those of the last iteration where they differ."""
    return " ".join(f"{d}={factors[d]}" for d in DIMS if d in letters)
