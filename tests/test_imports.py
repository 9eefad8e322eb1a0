"""Modules and rooms import one way: no circle, not even of imports inside functions or for types only."""

import ast
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("benchmarks", "converter", "costmodel", "emitters", "emulator", "fadiff", "optimizer", "samples")
FLOW = ("converter", "costmodel", "optimizer", "emitters", "emulator", "fadiff", "benchmarks")
"""No package imports one that stands behind it here."""
TORCH = (
    "optimizer.gradient.",
    "optimizer.codesign.",
    "costmodel.relaxed.",
    "costmodel.target.epa",
    "samples.",
    "benchmarks.",
)
"""Who may import torch; `epa` does so only where a target brings a table to fit."""

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
}


def imported(path: Path) -> set[str]:
    """Names of the modules that a file imports, those of `from package import module` included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{name.name}" for name in node.names}
            names |= (parts & FILES.keys()) or {node.module}
    return names


@pytest.fixture(scope="module")
def imports() -> nx.DiGraph:
    return nx.DiGraph([(module, name) for module, path in FILES.items() for name in imported(path)])


def room(module: str) -> str:
    """The sub-package a module is in; a module beside the sub-packages is a room of its own."""
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else module


def circles(graph: nx.DiGraph) -> list[list[str]]:
    return [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]


def test_no_module_imports_itself_in_a_circle(imports):
    assert imports.has_edge("costmodel.schedule.schedule", "costmodel.schedule.legality")
    assert circles(imports.subgraph(FILES)) == []


def test_no_room_imports_itself_in_a_circle(imports):
    ours = imports.subgraph(FILES)
    rooms = nx.DiGraph([(room(a), room(b)) for a, b in ours.edges if room(a) != room(b)])
    assert rooms.has_edge("optimizer.cut", "optimizer.group")
    assert circles(rooms) == []


def test_packages_import_one_way(imports):
    order = {package: place for place, package in enumerate(FLOW)}
    back = [
        (a, b)
        for a, b in imports.subgraph(FILES).edges
        if order.get(a.split(".")[0], len(FLOW)) < order.get(b.split(".")[0], -1)
    ]
    assert back == []


def test_torch_is_imported_only_where_gradients_are(imports):
    users = {a for a, b in imports.edges if b.split(".")[0] == "torch"}
    assert users
    assert [user for user in users if not user.startswith(TORCH)] == []


def test_only_descent_knows_the_relaxed_model(imports):
    """So that methods without gradients do not load torch."""
    users = {a for a, b in imports.edges if b.startswith("costmodel.relaxed")}
    allowed = ("optimizer.gradient.", "optimizer.codesign.", "costmodel.relaxed", "benchmarks.")
    assert [user for user in users if not user.startswith(allowed)] == []
