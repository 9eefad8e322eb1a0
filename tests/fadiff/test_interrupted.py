"""Ctrl-C and SIGTERM while the output folder is being written: a line, a code, and nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.fadiff.models import small_network


@pytest.fixture(autouse=True)
def listens_to_ctrl_c():
    """What runs in the background of a script starts with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "code", "says"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_nothing_half_written_is_left(fadiff, tmp_path, monkeypatch, number, code, says):
    from emitters import gemmini

    before = signal.getsignal(number)

    def emit(*_: object, out_dir, **__: object) -> None:
        out_dir.mkdir()
        (out_dir / "half.c").write_text("int main(void) {")
        os.kill(os.getpid(), number)
        time.sleep(10)

    monkeypatch.setattr(gemmini, "emit", emit)
    model = small_network(tmp_path / "net.onnx")
    ended = fadiff(
        "compile", model, "--out", tmp_path / "deep" / "out", "--method", "layerwise", "-q", "--force"
    )
    assert ended.code == code and ended.err.splitlines()[-1] == f"error: {says}"
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
    assert signal.getsignal(number) == before


def test_ctrl_c_while_the_command_line_is_loaded():
    """Anything that it imports may be interrupted."""
    script = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "fadiff.commands.compile":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from fadiff.__main__ import run
sys.exit(run())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "error: interrupted\n")
