"""Make the reports of docs/gallery.md, the picture of the first one, and the figures of README.md, again.

    python -m benchmarks gallery            # minutes; into docs/

Exports the sample networks, compiles and verifies them, and copies their reports; the picture needs chromium.
Figures come from the same runs, so that picture and text agree.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks import readme, screenshots
from benchmarks.command import command
from fadiff.pipeline import CompileResult, compile
from fadiff.samples.catalog import SAMPLES
from fadiff.samples.export import export

DOCS = Path(__file__).parents[1] / "docs"


class Shown(NamedTuple):
    """One network of the gallery."""

    sample: str
    options: dict[str, int]
    target: str
    time_budget: float | None = None


GALLERY = (
    Shown("resnet18", {"image_size": 224}, "gemmini-large"),
    Shown("mobilenetv2", {"image_size": 224}, "gemmini-default", 30),
    Shown("bert-block", {"seq": 128}, "gemmini-default", 30),
)


def main(arguments: list[str]) -> int:
    """Write DOCS/gallery/NAME.html and DOCS/images/report.png."""
    parser = command("gallery", __doc__)
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        for shown in GALLERY:
            model = Path(scratch) / f"{shown.sample}.onnx"
            export(SAMPLES[shown.sample], model, options=shown.options)
            folder = model.with_suffix("")
            made = compile(model, folder, target=shown.target, time_budget=shown.time_budget, verify=True)
            if shown is GALLERY[0]:
                readme.FIGURES.write_text(
                    json.dumps(_figures(made, model), indent=2) + "\n", encoding="utf-8"
                )
            page = options.docs / "gallery" / f"{shown.sample}.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(made.out / "report.html", page)
            print(page)
        first = options.docs / "gallery" / f"{GALLERY[0].sample}.html"
        picture = [str(first), "--widths", "1280", "--height", "900", "--schemes", "light", "--no-pdf"]
        code = screenshots.main([*picture, "--out", scratch])
        (options.docs / "images").mkdir(exist_ok=True)
        shutil.copy(Path(scratch) / f"{first.stem}-1280-light.png", options.docs / "images" / "report.png")
    return code or readme.main([])


def _figures(made: CompileResult, model: Path) -> dict[str, object]:
    """EDPs of the first network: of the schedule in its report, and with DOSA's constants."""
    totals = made.document.totals
    hw = {"edp": totals.edp_uj_cycles, "gap": totals.gap, "bound": totals.bound_kind}
    dosa = {
        what: compile(
            model, made.out.parent / "dosa", target=GALLERY[0].target, search=search, force=True
        ).document.totals.edp_uj_cycles
        for what, search in readme.SEARCHES.items()
    }
    return {"hw": hw, "dosa": dosa}
