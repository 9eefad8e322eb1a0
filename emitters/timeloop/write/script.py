"""Ready-to-run scripts that go with the files."""

from __future__ import annotations

import shlex

from fadiff.emitters.timeloop.index import Index

_NATIVE = """\
#!/bin/sh
# Runs timeloop-model on every layer; results go to OUT (default ./out), one folder per layer.
# usage: [TIMELOOP_MODEL=/path/to/timeloop-model] ./run_timeloop.sh [OUT]
set -eu
cd "$(dirname "$0")"
model=${{TIMELOOP_MODEL:-timeloop-model}}
out=${{1:-out}}
command -v "$model" >/dev/null || {{ echo "$model: not found; set TIMELOOP_MODEL" >&2; exit 2; }}
failed=0

# The exit status of timeloop-model says little (it is 0 after some errors): the stats file decides.
run() {{ # name arch problem mapping
  mkdir -p "$out/$1"
  rm -f "$out/$1/timeloop-model.stats.txt"
  "$model" "$2" "$3" "$4" -o "$out/$1" >"$out/$1/log.txt" 2>&1 || true
  if [ -s "$out/$1/timeloop-model.stats.txt" ]; then
    printf '%s: %s\\n' "$1" "$(grep '^Utilization = ' "$out/$1/log.txt" | tail -n 1)"
  else
    printf '%s: failed, see %s\\n' "$1" "$out/$1/log.txt" >&2
    failed=1
  fi
}}

{runs}
exit $failed
"""

_FRONTEND = '''\
#!/usr/bin/env python3
"""Runs every layer through Timeloop's Python front end (pytimeloop or timeloopfe), results in ./out."""

from pathlib import Path

try:
    import pytimeloop.timeloopfe.v4 as tl
except ImportError:
    import timeloopfe.v4 as tl

HERE = Path(__file__).parent
RUNS = [
{runs}
]

for name, *files in RUNS:
    specification = tl.Specification.from_yaml_files(*(str(HERE / file) for file in files))
    out = HERE / "out" / name
    out.mkdir(parents=True, exist_ok=True)
    # The parser reads the areas Accelergy would have written, and divides by them; we know none.
    areas = "ART: {{version: 0.4, tables: [{{name: system.MACC, area: 1.0}}]}}"
    (out / "timeloop-model.ART.yaml").write_text(areas)
    result = tl.call_model(specification, output_dir=str(out), log_to=str(out / "log.txt"))
    print(f"{{name}}: {{result.cycles}} cycles, {{result.energy * 1e6:.3f}} uJ")
'''


def native_script(index: Index) -> tuple[str, str]:
    """File name and text of the shell script for the native dialect."""
    runs = [shlex.join(["run", *files]) for files in _files(index)]
    return "run_timeloop.sh", _NATIVE.format(runs="\n".join(runs))


def frontend_script(index: Index) -> tuple[str, str]:
    """File name and text of the Python script for the front-end dialect."""
    runs = [f"    {files!r}," for files in _files(index)]
    return "run_timeloop.py", _FRONTEND.format(runs="\n".join(runs))


def _files(index: Index) -> list[tuple[str, str, str, str]]:
    """(name, arch, problem, mapping) of every layer that has a mapping."""
    return [
        (entry.problem.removesuffix(".problem.yaml"), entry.arch, entry.problem, entry.mapping)
        for entry in index.layers
        if entry.mapping is not None
    ]
