"""What the README and the docs promise: links lead somewhere, commands parse, the C in it compiles."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest

from benchmarks import readme
from fadiff.cli import cli, main
from fadiff.converter.check.storage import to_storage
from fadiff.converter.ir.graph import Tensor
from tests.fadiff.models import small_network

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What links may point at: headings, as Python-Markdown and GitHub name them where both agree."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower())) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)", page.read_text()):
        if not link.startswith(("http://", "https://")):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_the_site_is_built_without_a_warning(tmp_path):
    """Every page is in its navigation, and every link leads to a page or a heading."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "fadiff.api.sweep.sweep" in (tmp_path / "site" / "api.html").read_text(), "made from docstrings"
    page = (tmp_path / "site" / "quickstart.html").read_text()
    assert "<li><code>cycles</code>" in page, "a list that follows its sentence without a blank line"


def commands() -> list[list[str]]:
    """Every `fadiff ...` line in the code blocks of all pages, continuation lines joined."""
    found = []
    for page in PAGES:
        for block in (block for language in ("", "sh", "console") for block in blocks(page, language)):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("fadiff "):
                    found.append(shlex.split(re.sub(r"\[([^\]]*)\]", r"\1", line), comments=True)[1:])
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_in_the_docs_have_the_options_they_use(command):
    group: click.Command = cli
    while isinstance(group, click.Group):
        name = command.pop(0)
        assert name in group.commands, name
        group = group.commands[name]
    known = {option for parameter in group.params for option in parameter.opts + parameter.secondary_opts}
    assert {word for word in command if word.startswith("-")} <= known


def test_figures_of_the_readme_are_those_of_the_gallery_and_of_rtl():
    """`python -m benchmarks gallery` writes the report, its picture and the figures from one run."""
    text = PAGES[0].read_text()
    assert readme.current(text) == text, "run `python -m benchmarks readme`"
    report = (ROOT / "docs" / "gallery" / "resnet18.html").read_text()
    hw = json.loads(readme.FIGURES.read_text())["hw"]
    assert f"{hw['edp']:.3e}".replace("e+", "e") in report and f"<b>{100 * hw['gap']:.1f} %</b>" in report


@pytest.mark.parametrize("standard", ["c99", "c11"])
def test_the_firmware_example_compiles(tmp_path, standard):
    compiler = shutil.which("cc")
    assert compiler is not None
    out = tmp_path / "out"
    model = small_network(tmp_path / "model.onnx")
    arguments = ["compile", str(model), "--out", str(out), "--method", "layerwise", "-q"]
    assert main(arguments) == 0
    (example,) = blocks(ROOT / "README.md", "c")
    source = tmp_path / "example.c"
    source.write_text(example)
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{out / 'firmware'}"]
    ended = subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_python_example_names_what_exists():
    import fadiff
    from fadiff.emulator import VerifyReport

    (example,) = blocks(ROOT / "README.md", "python")
    for name in re.findall(r"fadiff\.(\w+)", example):
        assert name in fadiff.__all__
    assert "result.verification.bit_exact" in example and hasattr(VerifyReport, "bit_exact")


def test_the_quantisation_example_is_what_calibration_did(tmp_path):
    (block,) = (b for b in blocks(ROOT / "docs" / "firmware-interface.md", "c") if "quantise(float" in b)
    function = block[: block.index("\n}\n") + 3]
    (tmp_path / "main.c").write_text(
        "#include <math.h>\n#include <stdint.h>\n#include <stdio.h>\n#define MODEL_INPUT0_SCALE 0.03125f\n"
        f"{function}"
        "int main(void)\n{\n    float x;\n"
        "    while (fread(&x, sizeof x, 1, stdin) == 1) {\n        putchar(quantise(x));\n    }\n"
        "    return 0;\n}\n"
    )
    compiler = shutil.which("cc")
    assert compiler is not None
    command = [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "main.c", "-o", "quantise", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    values = np.arange(-320, 320, dtype=np.float32) / 64  # every half step, and beyond both ends
    ran = subprocess.run([tmp_path / "quantise"], input=values.tobytes(), capture_output=True, check=True)
    stored = to_storage(Tensor("x", values.shape, "int8", scale=0.03125), values)
    np.testing.assert_array_equal(np.frombuffer(ran.stdout, np.int8), stored)
