"""Modules and rooms import one way: no circle, not even of imports inside functions or for types only."""

import ast
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
FLOW = ("converter", "costmodel", "optimizer", "emitters", "emulator", "fadiff", "benchmarks")
"""No package imports one that stands behind it here."""
LINKED = ("converter", "costmodel", "emitters", "emulator", "optimizer", "samples")
"""Packages that are parts of `fadiff` by a link in its folder."""
TORCH = (
    "fadiff.optimizer.gradient.",
    "fadiff.optimizer.codesign.",
    "fadiff.costmodel.relaxed.",
    "fadiff.costmodel.target.epa",
    "fadiff.model_file",
    "fadiff.samples.",
    "benchmarks.",
)
"""Who may import torch; `epa` for tensors of the relaxed model, `model_file` where a module is given."""

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for root, packages in ((ROOT, ("fadiff", "benchmarks")), (ROOT / "fadiff", LINKED))
    for package in packages
    for path in (root / package).rglob("*.py")
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
    depth = 2 + (package(module) in LINKED)
    return ".".join(parts[:depth]) if len(parts) > depth else module


def package(module: str) -> str:
    """Of `LINKED`, else the top-level one."""
    first, *rest = module.split(".")
    return rest[0] if first == "fadiff" and rest and rest[0] in LINKED else first


def circles(graph: nx.DiGraph) -> list[list[str]]:
    return [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]


def test_no_module_imports_itself_in_a_circle(imports):
    assert imports.has_edge("fadiff.costmodel.schedule.schedule", "fadiff.costmodel.schedule.legality")
    assert circles(imports.subgraph(FILES)) == []


def test_no_room_imports_itself_in_a_circle(imports):
    ours = imports.subgraph(FILES)
    rooms = nx.DiGraph([(room(a), room(b)) for a, b in ours.edges if room(a) != room(b)])
    assert rooms.has_edge("fadiff.optimizer.cut", "fadiff.optimizer.group")
    assert circles(rooms) == []


def test_packages_import_one_way(imports):
    order = {package: place for place, package in enumerate(FLOW)}
    back = [
        (a, b)
        for a, b in imports.subgraph(FILES).edges
        if order.get(package(a), len(FLOW)) < order.get(package(b), -1) and b != "fadiff"
    ]
    assert back == []


def test_torch_is_imported_only_where_gradients_are(imports):
    users = {a for a, b in imports.edges if b.split(".")[0] == "torch"}
    assert users
    assert [user for user in users if not user.startswith(TORCH)] == []


def test_only_descent_knows_the_relaxed_model(imports):
    """So that methods without gradients do not load torch."""
    users = {a for a, b in imports.edges if b.startswith("fadiff.costmodel.relaxed")}
    allowed = (
        "fadiff.optimizer.gradient.",
        "fadiff.optimizer.codesign.",
        "fadiff.costmodel.relaxed",
        "benchmarks.",
    )
    assert [user for user in users if not user.startswith(allowed)] == []
