"""Ctrl-C and SIGTERM while the output folder is being written: a line, a code, and nothing left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fadiff.models import small_network
from tests.fadiff.sessions import running_in_session, wait_until


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
    from fadiff.emitters import gemmini

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


def test_kill_9_while_verifying_leaves_no_worker_and_the_next_start_no_folder(fadiff, tmp_path, model):
    """In the middle of firmware that never ends."""
    out, scratch = tmp_path / "out", tmp_path / "tmp"
    scratch.mkdir()
    assert fadiff("compile", model, "--out", out, "--method", "layerwise", "-q").code == 0
    source = out / "firmware" / "small.c"
    good = source.read_text()
    waits = f'fclose(fopen("{tmp_path}/begun", "w")); for (volatile int on = 1; on;) {{}}'
    hangs = "#include <stdio.h>\n" + re.sub(r"(int small_run\(.*\)\n\{)", rf"\1 {waits}", good)
    assert waits in hangs
    source.write_text(hangs)
    command = [sys.executable, "-m", "fadiff", "verify", str(out), "-q"]
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(Path(__file__).parents[2])}
    verifying = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        wait_until((tmp_path / "begun").exists)
    finally:
        verifying.kill()
    assert verifying.wait() == -signal.SIGKILL
    wait_until(lambda: not running_in_session(verifying.pid))
    (left,) = scratch.iterdir()
    assert left.is_dir()
    source.write_text(good)
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    assert not any(scratch.iterdir())


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
