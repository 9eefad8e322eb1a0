"""What is shipped: declared as it is imported, and complete where nobody has a checkout."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fadiff.folder import OutputFolder
from tests.fadiff.installed import ROOT, Installed, built, editable, installed
from tests.fadiff.models import small_network
from tests.fadiff.test_readme import blocks

PRODUCT = ("fadiff", "converter", "costmodel", "optimizer", "emitters", "emulator", "samples")
FOR_OTHERS = {"torch": {"onnxscript"}}
"""Packages by extra that we do not import, but that what we import needs for what we ask of it."""
DEVELOPMENT = {"dev", "docs"}
PAGES = ("quickstart", "from-a-quantised-file", "from-pytorch", "your-gemmini-params")
"""In the order of reading: later pages use files of earlier ones."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`pip install fadiff`, with mypy."""
    return installed(tmp_path_factory.mktemp("plain"), wheel, others=("mypy", "numpy"))


@pytest.fixture(scope="module")
def with_samples(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`pip install 'fadiff[samples]'`."""
    return installed(tmp_path_factory.mktemp("samples"), wheel, "samples")


@cache
def imported() -> frozenset[str]:
    """Distributions that modules of the product import anywhere in a file, by canonical name."""
    names = set()
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {name.name for name in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.add(node.module)
    tops = {name.split(".")[0] for name in names} - {*sys.stdlib_module_names, "fadiff"}
    homes = packages_distributions()
    return frozenset(canonicalize_name(homes.get(top, [top])[0]) for top in tops)


def declared() -> dict[str, set[str]]:
    """Distributions by extra; "" has those that everybody gets."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: {canonicalize_name(Requirement(text).name) for text in texts} - {"fadiff"}
        for extra, texts in lists.items()
    }


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    asked = {extra: names for extra, names in declared().items() if extra not in DEVELOPMENT}
    ours = set().union(*asked.values())
    assert imported() - ours == set()
    unused = {extra: names - imported() for extra, names in asked.items()}
    assert {extra: names for extra, names in unused.items() if names} == FOR_OTHERS


@pytest.mark.slow
def test_the_pages_that_a_newcomer_follows_run_on_the_wheel(with_samples: Installed, tmp_path: Path) -> None:
    """`sh` and `python` blocks as they stand, in order, in a folder without the checkout; then the README."""
    where = "import fadiff, fadiff.converter; print(fadiff.__file__, fadiff.converter.__file__)"
    files = with_samples.run(where, tmp_path, "python").split()
    assert all(Path(file).is_relative_to(with_samples.folder) for file in files)
    said = {page: with_samples.follow(ROOT / "docs" / f"{page}.md", tmp_path) for page in PAGES}
    figure = re.compile(r"^  (float|fadiff int8) +(\S+) %", re.MULTILINE)
    right = dict(figure.findall(said["quickstart"]))
    promised = dict(figure.findall((ROOT / "docs" / "quickstart.md").read_text()))
    assert right.keys() == promised.keys() == {"float", "fadiff int8"}
    assert all(abs(float(right[name]) - float(promised[name])) < 1.0 for name in right)
    assert float(right["fadiff int8"]) >= float(right["float"]) - 0.5 > 95
    assert "all outputs agree" in said["quickstart"] and said["quickstart"].count("bit-exact") == 1
    for folder in ("digits", "digits-qdq", "net"):
        assert OutputFolder(tmp_path / "build" / folder).document.totals.clock_cycles
    with_samples.run("cp digits.onnx model.onnx; cp digits.calibration.npz images.npz", tmp_path)
    (example,) = blocks(ROOT / "README.md", "python")  # its commands are the quickstart's
    assert with_samples.run(example, tmp_path, "python").split()[-1] == "True"
    assert "bit-exact" in with_samples.run("fadiff inspect model.onnx; fadiff verify build/model", tmp_path)


def test_an_editable_install_is_a_path(tmp_path: Path) -> None:
    """As type checkers want it: they know nothing of import hooks."""
    assert (Path(editable(tmp_path)) / "fadiff" / "py.typed").is_file()


def test_the_plain_package_compiles_without_torch(plain: Installed, tmp_path: Path) -> None:
    """Also where folders beside the user's script have the names of ours in a checkout."""
    small_network(tmp_path / "net.onnx")
    for name in ("optimizer", "samples", "converter", "emitters"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not this one')\n")
    assert "False" in plain.run(
        "import importlib.util as u; print(u.find_spec('torch') is not None)", tmp_path, "python"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import fadiff\n"
        "result = fadiff.compile('net.onnx', 'out', verify=True)\n"
        "assert result.verification is not None\n"
        "print(result.verification.bit_exact, len(result.layers), '<svg' in result._repr_html_())\n"
    )
    assert plain.run("python script.py", tmp_path).split() == ["True", "5", "True"]
    assert "bit-exact" in plain.run("fadiff verify out; make -C out/firmware check", tmp_path)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_mypy_sees_our_types_from_a_users_script(plain: Installed, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import fadiff\n"
        "result = fadiff.compile('net.onnx', 'out')\n"
        "reveal_type(result.document.totals.dram_bytes)\n"
        "fadiff.compile('net.onnx', 'out', verify='yes')\n"
    )
    ended = subprocess.run(
        [plain.programs / "python", "-m", "mypy", "--strict", script.name],
        cwd=tmp_path,
        env=plain.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'Revealed type is "int"' in ended.stdout.replace("builtins.", ""), ended.stdout
    assert 'has incompatible type "str"; expected "bool"' in ended.stdout
    assert "Found 1 error in 1 file" in ended.stdout


def test_a_checkout_without_links_says_so(tmp_path: Path) -> None:
    """A zip unpacked on Windows has small files where the links are."""
    package = tmp_path / "fadiff"
    package.mkdir()
    (package / "__init__.py").write_text((ROOT / "fadiff" / "__init__.py").read_text())
    (package / "converter").write_text("../converter")
    command = [sys.executable, "-c", "import fadiff; fadiff.compile"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "symbolic links" in ended.stderr.splitlines()[-1]
