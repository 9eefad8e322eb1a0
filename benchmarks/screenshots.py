"""The report as people see it: pictures by headless Chromium, at four widths, light and dark, and on paper.

    python -m benchmarks screenshots build/resnet18/report.html --out benchmark-results

Writes PAGE-WIDTH-SCHEME.png of every page, width and scheme, PAGE.pdf as it is printed, and says how far each
page is wider than its window.  Needs `chromium` (or --chromium PATH).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

from benchmarks.command import add_out, command
from fadiff.errors import InputError

WIDTHS = (360, 800, 1280, 1920)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
    ),
)
"""Root has no sandbox; nothing is loaded from the network."""
MEASURE = """<script>addEventListener("load", () => {
const page = document.querySelector("iframe").contentDocument.documentElement;
document.title = `${page.scrollWidth} ${page.scrollHeight}`; });</script>"""
NARROWEST = 500
"""Pixels: Chromium's windows are no narrower, so that narrower pages are shown in a frame."""
TALLEST = 16000
TIMEOUT = 240


def main(arguments: list[str]) -> int:
    """Take the pictures; 1 if a page is wider than its window."""
    parser = command("screenshots", __doc__)
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE.html")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--height", type=int, help="of the picture (default: the whole page)")
    parser.add_argument("--schemes", nargs="+", choices=("light", "dark"), default=("light", "dark"))
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--no-pdf", action="store_true", help="leave the printed pages out")
    add_out(parser)
    options = parser.parse_args(arguments)
    program = shutil.which(options.chromium)
    if program is None:
        raise InputError(f"{options.chromium}: no such program: install chromium, or give --chromium PATH")
    options.out.mkdir(parents=True, exist_ok=True)
    too_wide = 0
    for page in options.pages:
        name = page.parent.name if page.stem == "report" else page.stem
        for width in options.widths:
            wide, tall = _size(program, page, width)
            too_wide += wide > width
            print(f"{name} at {width}: {wide} x {tall}{' TOO WIDE' if wide > width else ''}")
            for scheme in options.schemes:
                picture = options.out / f"{name}-{width}-{scheme}.png"
                height = options.height or min(tall, TALLEST)
                _picture(program, page, width, height, picture, scheme)
        if not options.no_pdf:
            pdf = (options.out / f"{name}.pdf").resolve()
            _run(program, page, 1280, 900, "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
    print(f"too_wide={too_wide}")
    return 1 if too_wide else 0


def _size(program: str, page: Path, width: int) -> tuple[int, int]:
    """Width and height of the page's content in a window of this width."""
    with _framed(page, width, 900) as (copy, window):
        said = _run(program, copy, window, 900, "--dump-dom")
    found = re.search(r"<title>(\d+) (\d+)</title>", said)
    if found is None:
        raise InputError(f"{page}: {program} did not show it")
    return int(found[1]), int(found[2])


@contextmanager
def _framed(page: Path, width: int, height: int) -> Iterator[tuple[Path, int]]:
    """A page that measures this one in a frame of this width, and a window wide enough for Chromium."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        inner = escape(page.read_text(encoding="utf-8"))
        style = f"border:0;display:block;width:{width}px;height:{height}px"
        frame = f'<body style="margin:0"><iframe style="{style}" srcdoc="{inner}"></iframe>{MEASURE}</body>'
        copy.write_text(f"<!doctype html><meta charset=utf-8>{frame}", encoding="utf-8")
        yield copy, max(width, NARROWEST)


def _picture(program: str, page: Path, width: int, height: int, picture: Path, scheme: str) -> None:
    with _framed(page, width, height) as (copy, window):
        _run(program, copy, window, height, f"--screenshot={picture.resolve()}", scheme=scheme)


def _run(program: str, page: Path, width: int, height: int, *action: str, scheme: str = "light") -> str:
    with tempfile.TemporaryDirectory() as profile:
        preferred = f"--blink-settings=preferredColorScheme={('dark', 'light').index(scheme)}"
        window = [
            f"--window-size={width},{height}",
            f"--user-data-dir={profile}",
            "--virtual-time-budget=2000",
        ]
        ended = subprocess.run(
            [program, *FLAGS, *window, preferred, *action, page.resolve().as_uri()],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    return ended.stdout
