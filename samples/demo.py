"""`make demo`: ResNet-18 from a PyTorch export to verified Gemmini C, one shell command at a time.

Exits with the code of the first command that fails.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

EDP_TARGET = 1.9e10
"""ResNet-18 on gemmini-large with DOSA's constants, uJ x cycles: what the project promises to reach."""


def run(*command: str | Path) -> None:
    """Show a command, run it, and stop the demo if it fails."""
    words = [str(word) for word in command]
    print(f"\n$ {shlex.join(words)}", flush=True)
    program = [sys.executable, "-m", "fadiff"] if words[0] == "fadiff" else [sys.executable]
    code = subprocess.run([*program, *words[1:]], check=False).returncode
    if code:
        sys.exit(code)


def main(folder: Path) -> None:
    """Build everything under `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    model, verified, comparable = folder / "resnet18.onnx", folder / "resnet18", folder / "resnet18-dosa"
    if not model.exists():
        run("python", "-m", "samples", "resnet18", "-o", model)
    common = ("--target", "gemmini-large", "--force")
    run("fadiff", "compile", model, *common, "--out", verified, "--verify")
    run("fadiff", "compile", model, *common, "--out", comparable, "--profile", "dosa", "-q")
    edp = json.loads((comparable / "schedule.json").read_text())["totals"]["edp_uj_cycles"]
    verdict = "reached" if edp <= EDP_TARGET else "MISSED"
    print(f"\nEDP with DOSA's constants (--profile dosa): {edp:.4e} uJ x cycles")
    print(f"Target: at most {EDP_TARGET:.1e}: {verdict}")
    print(f"Open {verified / 'report.html'} in a browser.")
    if edp > EDP_TARGET:
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
