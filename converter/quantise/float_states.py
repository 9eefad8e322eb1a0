"""What is kept in float32: states first, where int8 loses a sequence by them, then what layers need.

A state in int8 stands still where a step changes it by less than half a unit, and its rounding comes back in
every step.  What leads from it to its next value is arithmetic on single elements, little work for the core.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from fadiff.converter.ir.recurrence import LOST_BY_STATES
from fadiff.converter.plan.floats import cell_of, float_states
from fadiff.converter.quantise.choose import Calibration, Choice
from fadiff.converter.quantise.mixed import GOOD_DB, Mixed, MixedSearch

_WORTH_DB = 1.0


@dataclass(frozen=True)
class Kept:
    """A program as it is planned and calibrated in the end; `mixed` is None where nobody asked for floats."""

    calibration: Calibration
    choice: Choice
    mixed: Mixed | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    undecided: MixedSearch | None = None
    """What can tell what floats would gain, where nobody asked for them."""


def decide(
    search: MixedSearch, least_db: float | None, without: Collection[str], progress: Callable[[str], None]
) -> Kept:
    """Keep in float what every output needs for `least_db`; None: only what is named, with advice on states.

    Args:
        search: of the program as it is calibrated with what is named.
        least_db: of the worst output, on held-out samples.
        without: rewrites that calibration leaves out.
        progress: told what is going on.

    Raises:
        ModelError: `least_db` is given, and there are no samples to judge by.
    """
    plain = Kept(search.calibration, search.choice)
    if least_db is None:
        named = search.worth(search.named) if search.named else None
        better = _with_states(search, without, progress)
        notes = () if better is None else (_advice(search, better),)
        undecided = search.on_array() if search.is_judged and better is None else None
        return replace(plain, mixed=named, notes=notes, undecided=undecided)
    search = _with_states(search, without, progress) or search
    on_array = search.on_array()
    kept, warning = on_array.until(least_db, progress)
    if warning:  # (weights of 32 bits may be what it takes)
        kept, warning = search.until(least_db, progress)
    else:
        search = on_array
    mixed, warnings = search.worth(kept), (warning,) if warning else ()
    if kept == search.named:
        return Kept(search.calibration, search.choice, mixed, warnings=warnings)
    planned = search.planned(kept)
    return Kept(planned, planned.choose(without, progress), mixed, warnings=warnings)


def _with_states(
    search: MixedSearch, without: Collection[str], progress: Callable[[str], None]
) -> MixedSearch | None:
    """The same, calibrated anew with all states in float that can be; None where int8 is good, or nothing is
    gained."""
    c = search.calibration
    cells = search.named.union(*(cell_of(c.program, c.steps, state) for state in c.program.states))
    if not search.is_judged or cells == search.named:
        return None
    before = search.score(search.named)
    if before >= GOOD_DB:
        return None
    progress("trying states in float")
    planned = search.planned(cells)
    found = replace(search, calibration=planned, choice=planned.choose(without, progress), before_db=before)
    return found if found.score(cells) >= before + _WORTH_DB else None


def _advice(search: MixedSearch, better: MixedSearch) -> str:
    program = search.calibration.program
    before = float_states(program, search.calibration.steps)
    kept = [s.input for s in float_states(program, better.calibration.steps) if s not in before]
    gain = f"{better.before_db:.1f} -> {better.score(better.named):.1f} dB on held-out samples"
    return f"{LOST_BY_STATES} (in float32: {gain}): --keep-float {','.join(kept)}"
