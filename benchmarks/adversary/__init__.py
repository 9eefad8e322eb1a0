"""Tries to break the certificate: what is below a bound called proven, by means that the search does not use.

Seven attacks take turns until the time is up, each case from a seed of its own:
    fronts      mappings of layers with few channels, priced by `costmodel`, against the enumerated front
    cuts        every partition of crossing graphs, with tensors on chip, against the dynamic program
    residents   every set of resident weights of a group against what its solver finds
    schedules   random walks over legal schedules, both profiles, against the bound
    heads       such walks over schedules of attention, whose group tiles may have some of the heads
    channels    such walks where group tiles may have some of the channels
    chains      such walks over schedules of seven to nine layers of few channels in a row

Exit code 1 if one breaks a bound; the seed is printed (`--attack NAME --first SEED --cases 1` repeats it).
Mappings and tiles are at extents that the canonical space has; some are at others, which may be better and
break nothing: they show what the space leaves out.
Last line: `key=value`, per attack its cases, what they compared, the least of it over the bound, and what is
least outside of the canonical space.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np

from benchmarks.adversary.attacks import Attempt, Rng, cuts, fronts, residents
from benchmarks.adversary.walk import chains, channels, heads, schedules
from benchmarks.command import command

ATTACKS: dict[str, Callable[[Rng], Attempt]] = {
    "fronts": fronts,
    "cuts": cuts,
    "residents": residents,
    "schedules": schedules,
    "heads": heads,
    "channels": channels,
    "chains": chains,
}


def attempts(names: Iterable[str], first: int) -> Iterable[tuple[str, int, Attempt]]:
    """The attacks in turn, one seed after the other, without end."""
    seed = first
    while True:
        for name in names:
            yield name, seed, ATTACKS[name](np.random.default_rng(seed))
        seed += 1


def main(arguments: list[str]) -> int:
    """Attack for a while."""
    parser = command("adversary", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--attack", choices=tuple(ATTACKS), help="this one only (default: all in turn)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--cases", type=int, help="most cases in all")
    options = parser.parse_args(arguments)
    names = [options.attack] if options.attack else list(ATTACKS)
    cases, tried = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    lowest, outside, broken = dict.fromkeys(names, np.inf), dict.fromkeys(names, np.inf), 0
    until = time.monotonic() + options.seconds
    for name, seed, attempt in attempts(names, options.first):
        cases[name] += 1
        tried[name] += attempt.tried
        lowest[name] = min(lowest[name], attempt.lowest)
        outside[name] = min(outside[name], attempt.outside)
        if attempt.breaks:
            broken += 1
            print(f"BROKEN {name} seed {seed}: {attempt.lowest:.6f} of the bound; {attempt.case}", flush=True)
        if time.monotonic() > until or sum(cases.values()) == options.cases:
            break
    figures = [
        f"{name}_cases={cases[name]} {name}_tried={tried[name]} {name}_lowest={lowest[name]:.6f} "
        f"{name}_outside={outside[name]:.6f}"
        for name in names
    ]
    print(f"broken={broken} " + " ".join(figures))
    return int(broken > 0)
