"""What the user sees while we work: progress on stderr, results on stdout."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
)
from rich.table import Column, Table
from rich.text import Text

from fadiff.converter.names import printable

PATIENCE = 2.0
"""Seconds before which nothing is said about how long a stage will take."""
Columns = Iterable[str | Column]
_COUNTED = re.compile(r"(?:layer )?(\d+) of (\d+)\b")


def duration(seconds: float) -> str:
    """As people say it: 45 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class _Terminal(RichConsole):
    """Shows names from files, whatever is in them: escapes instead of what would rule the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Text of a line or of a cell."""
        return super().render_str(printable(text, keep="\n"), **options)


class _Left(ProgressColumn):
    """How long a stage may go on; where nobody knows, how long it has been at work."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """In words."""
        return Text(task.fields["left"] or duration(task.elapsed or 0.0))


def _bar(console: RichConsole) -> Progress:
    """One line of any terminal's width: what is being done, how much of it, how long it may go on."""
    what = TextColumn(
        "{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
    )
    share = TaskProgressColumn("{task.percentage:>3.0f} %", markup=False)
    left = _Left(table_column=Column(no_wrap=True))
    bar = (BarColumn(console.width // 5),) if console.width > 50 else ()
    columns = (SpinnerColumn(), what, *bar, share, left)
    return Progress(*columns, console=console, transient=True, expand=True)


@dataclass
class Console:
    """Progress lines (a live bar on a terminal, plain lines elsewhere) and results.

    verbosity: -1 quiet (errors only), 0 one line per stage, 1 also what happens inside a stage.
    """

    verbosity: int = 0
    err: RichConsole = field(default_factory=lambda: _Terminal(stderr=True, highlight=False, soft_wrap=True))
    out: RichConsole = field(default_factory=lambda: _Terminal(highlight=False, soft_wrap=True))
    _live: Progress | None = None
    _last_plain: float = 0.0
    _began: float = 0.0
    _message: str = ""
    """What was said last in the stage."""
    _budget: float | None = None

    @contextmanager
    def stage(self, title: str, budget: float | None = None) -> Iterator[None]:
        """A step of the work; says how long it took when it ends well.

        With a `budget`, the seconds that it may take, progress says how many are left.
        """
        if self.verbosity < 0:
            yield
            return
        title = printable(title)
        self._began, self._budget, self._message = time.monotonic(), budget, title
        if self.err.is_terminal:
            with _bar(self.err) as self._live:
                self._live.add_task(title, total=None, left="")
                yield
            self._live = None
        else:
            self.err.print(f"{title} ...", markup=False)
            with self._pulse():
                yield
        self.err.print(f"{title}: {time.monotonic() - self._began:.1f} s", markup=False)

    @contextmanager
    def _pulse(self) -> Iterator[None]:
        """Say how long a stage has been at work while it says nothing: after 2, 4, 8... seconds."""
        ended = threading.Event()

        def beat() -> None:
            spoken, wait = self._message, PATIENCE
            heard = time.monotonic()
            while not ended.wait(PATIENCE):
                now = time.monotonic()
                if self._message != spoken:
                    spoken, heard, wait = self._message, now, PATIENCE
                elif now - heard >= wait:
                    self.err.print(f"  {spoken} ({duration(now - self._began)})", markup=False)
                    wait *= 2

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def update(self, message: str) -> None:
        """Progress inside a stage; off a terminal at most one line every two seconds (-v: all).

        `3 of 16 ...` and stages with a budget tell how much of it is done and how long it may go on.
        """
        if self.verbosity < 0:
            return
        share, left = self._progress(message)
        message = printable(message)
        if self._live is not None:
            total = None if share is None else 1.0
            self._live.update(
                self._live.task_ids[0], description=message, total=total, completed=share, left=left
            )
            return
        now = time.monotonic()
        self._message = ", ".join(
            filter(None, (message, "" if share is None else f"{100 * share:.0f} %", left))
        )
        if self.verbosity > 0 or now - self._last_plain >= 2.0:
            self._last_plain = now
            self.err.print(f"  {self._message}", markup=False)

    def _progress(self, message: str) -> tuple[float | None, str]:
        """The share of a stage that is done, and how long the rest may take, where that is known."""
        spent = time.monotonic() - self._began
        if self._budget is not None:
            left = self._budget - spent
            return min(spent / self._budget, 1.0), f"at most {duration(left)} left" if left > 0 else ""
        counted = _COUNTED.match(message)
        if counted is None:
            return None, ""
        done, work = int(counted[1]), int(counted[2])
        rest = f"about {duration(spent * (work - done) / done)} left" if 0 < done < work else ""
        return done / work if work else None, rest if spent >= PATIENCE else ""

    def note(self, message: str) -> None:
        """Something the user should know; shown unless quiet."""
        if self.verbosity >= 0:
            self.err.print(message, markup=False)

    def warn(self, message: str) -> None:
        """Something the user must not miss: shown even when quiet."""
        self.err.print(f"[yellow]warning:[/] {_escape(message)}")

    def result(self, text: str) -> None:
        """One line of the result on stdout."""
        self.out.print(text, markup=False)

    def table(self, columns: Columns, rows: Iterable[Sequence[str]], title: str | None = None) -> None:
        """A result table on stdout; as wide as it needs to be when stdout is not a terminal.

        On a narrow one text goes on in the next line; names and numbers are never cut.
        """
        table = Table(*columns, box=None, title=title)
        for row in rows:
            table.add_row(*row)
        if not self.out.is_terminal:
            self.out.width = max(self.out.width, 200)
        for column in table.columns:
            column.overflow = "fold"
            column.no_wrap = column.justify == "right"
        self.out.print(table)


def numbers(*headings: str) -> tuple[Column, ...]:
    """Columns of a table that hold numbers."""
    return tuple(Column(heading, justify="right") for heading in headings)


def _escape(message: str) -> str:
    from rich.markup import escape

    return escape(message)


def print_error(message: str) -> None:
    """The one line that ends a failed run."""
    print(f"error: {printable(message)}", file=sys.stderr)
