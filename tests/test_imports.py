"""Modules import one way: no circle, not even of imports inside functions or for types only."""

import ast
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parent.parent
PACKAGES = ("benchmarks", "converter", "costmodel", "emitters", "emulator", "fadiff", "optimizer", "samples")


def test_no_module_imports_itself_in_a_circle():
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    imports = nx.DiGraph()
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in files:
                for name in node.names:
                    part = f"{node.module}.{name.name}"
                    imports.add_edge(module, part if part in files else node.module)
    assert imports.has_edge("costmodel.schedule.schedule", "costmodel.schedule.legality")
    assert [sorted(circle) for circle in nx.strongly_connected_components(imports) if len(circle) > 1] == []
