"""Hostile cases that begin with what `fadiff compile` wrote: schedules, Timeloop files, results, logs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import yaml

from benchmarks.hostile.cases import Arguments, Make
from benchmarks.hostile.mutate import Rng, mutated_data, mutated_text, pick
from fadiff.costmodel.schedule.document import ScheduleDocument

_OPTIONS = {"method": "layerwise", "seed": 3, "dim": ["batch=1"], "target": "gemmini-small", "json": True}


def profile(document: ScheduleDocument) -> str:
    """The console of a program that measures itself, as `fadiff measure` reads it."""
    runs = [
        f"fadiff-run {name} {count}" for name, count in (("cold", 9000), ("warm", 8000), ("layers", 9500))
    ]
    layers = [f"fadiff-layer {number} 1 1000" for number in range(len(document.layers))]
    header = f"fadiff-profile 1 {document.model.name} {document.model.sha256}"
    return "\n".join((header, *runs, *layers, "fadiff-profile end\n"))


def folder_cases(made: Path, model: onnx.ModelProto, log: str) -> Mapping[str, Make]:
    """Kinds of cases, from an output folder of fadiff, the model it was made of and its program's console."""
    schedule = json.loads((made / "schedule.json").read_text(encoding="utf-8"))
    layers = yaml.safe_load((made / "timeloop" / "index.yaml").read_text(encoding="utf-8"))["layers"]

    def changed(rng: Rng, path: Path, content: Any) -> str:
        """The content as JSON or YAML, by the path's suffix, with other fields, or other text."""
        content = mutated_data(rng, content)
        text = json.dumps(content, indent=1) if path.suffix == ".json" else yaml.safe_dump(content)
        return mutated_text(rng, text) if rng.random() < 0.2 else text

    def rewrite(rng: Rng, path: Path) -> Path:
        """Change a JSON or YAML file, in place."""
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        path.write_text(changed(rng, path, content), encoding="utf-8")
        return path

    def hostile_schedule(rng: Rng, folder: Path) -> Arguments:
        """A schedule.json with other fields, or other text."""
        path = folder / "schedule.json"
        path.write_text(changed(rng, path, schedule), encoding="utf-8")
        return ["evaluate", str(path), "-q"]

    def hostile_timeloop(rng: Rng, folder: Path) -> Arguments:
        """A changed mapping that is brought back, or a changed index of what Timeloop is to run."""
        out = folder / "out"
        shutil.copytree(made, out)
        if rng.random() < 0.25:
            rewrite(rng, out / "timeloop" / "index.yaml")
            return ["timeloop", "run", str(out), "--timeloop-model", "cat", "-q"]
        layer = pick(rng, layers)
        path = rewrite(rng, out / "timeloop" / layer["mapping"])
        files = ["timeloop", "import", str(made / "schedule.json"), f"{layer['layer']}={path}"]
        return [*files, "-o", str(folder / "mine.json"), "-q"]

    def hostile_folder(rng: Rng, folder: Path) -> Arguments:
        """An output folder, one of whose results has other fields, or other text."""
        out = folder / "out"
        shutil.copytree(made, out)
        names = ("schedule.json", "measured.json", "verify/result.json", "firmware/memory_map.json")
        rewrite(rng, out / str(pick(rng, names)))
        return ["report", str(out), "-q"]

    def hostile_log(rng: Rng, folder: Path) -> Arguments:
        """The console with other words and lines."""
        out, path, text = folder / "out", folder / "console.log", log
        shutil.copytree(made, out)
        for _ in range(int(rng.integers(1, 5))):
            text = mutated_text(rng, text)
        path.write_text(text, encoding="utf-8", errors="replace")
        return ["measure", str(out), "--log", str(path), "-q"]

    def hostile_options(rng: Rng, folder: Path) -> Arguments:
        """A file of options with other names and values."""
        path = folder / "options.yaml"
        path.write_text(changed(rng, path, _OPTIONS), encoding="utf-8")
        onnx.save(model, folder / "model.onnx")
        return [
            "compile",
            str(folder / "model.onnx"),
            "--config",
            str(path),
            "--out",
            str(folder / "out"),
            "-q",
        ]

    return {
        "schedule": hostile_schedule,
        "timeloop": hostile_timeloop,
        "folder": hostile_folder,
        "log": hostile_log,
        "options": hostile_options,
    }
