"""`--json` has the keys that docs/user-guide.md lists, so that nobody renames one unawares."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fadiff.cli import main
from fadiff.costmodel.schedule.serialize import write_document
from fadiff.emitters.timeloop import emit
from fadiff.solved import describe
from tests.emitters.timeloop.test_compare import KNOWN, program
from tests.emitters.timeloop.test_emit import hand_schedule
from tests.fadiff.models import small_network

GUIDE = (Path(__file__).parents[2] / "docs" / "user-guide.md").read_text()
FAST = ("--target", "gemmini-small", "--method", "layerwise")


def documented() -> dict[str, set[str]]:
    """'evaluate layers[]' -> keys, from the table of the guide."""
    table = GUIDE.split("## --json\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z -]+)`([^|]*)\| (.*) \|$", table, re.MULTILINE)
    return {
        f"{command}{part.rstrip()}": set(re.findall(r"`([a-z0-9_]+)`", re.sub(r"\(.*?\)", "", keys)))
        for command, part, keys in rows
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A compiled model beside what `timeloop run` and `sweep` need."""
    at = tmp_path_factory.mktemp("json")
    small_network(at / "small.onnx")
    assert main(["compile", str(at / "small.onnx"), *FAST, "--out", str(at / "out"), "--verify", "-q"]) == 0
    schedule = hand_schedule()
    emit(schedule, at / "hand" / "timeloop")
    write_document(describe(schedule), at / "hand" / "schedule.json")
    program(at / "timeloop-model", f'cp {KNOWN} "$out/timeloop-model.stats.txt"')
    (at / "space.yaml").write_text("base: gemmini-small\nvary: {side: [8]}\nsearch: {method: layerwise}\n")
    return at


COMMANDS = {
    "inspect": "inspect {at}/small.onnx",
    "inspect --cuts": "inspect {at}/small.onnx --cuts --inputs r1 --outputs scores",
    "compile": "compile {at}/small.onnx --target gemmini-small --method layerwise --out {at}/again --force "
    "--keep-float classifier",
    "verify": "verify {at}/out",
    "evaluate": "evaluate {at}/out/schedule.json",
    "compare": "compare {at}/small.onnx --target gemmini-small --methods layerwise",
    "codesign": "codesign {at}/small.onnx --space {at}/space.yaml --area 9 --method sweep",
    "sweep": "sweep {at}/space.yaml {at}/small.onnx",
    "targets list": "targets list",
    "timeloop run": "timeloop run {at}/hand --timeloop-model {at}/timeloop-model",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_keys_are_those_of_the_guide(fadiff, folder, command):
    ended = fadiff(*COMMANDS[command].format(at=folder).split(), "--json", "-q")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    top, part = (found[0], f"{command} []") if isinstance(found, list) else (found, command)
    known = documented()
    assert set(top) - {"side"} == known[part] - {"side"}
    for name in (row.removeprefix(f"{command} ") for row in known if row.startswith(f"{command} ")):
        if name != "[]" and not name.startswith("--"):
            part = top[name.removesuffix("[]")]
            assert set(part[0] if isinstance(part, list) else part) >= known[f"{command} {name}"]
