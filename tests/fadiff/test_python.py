"""The commands as Python functions: what they take, and that they do what the command line does."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fadiff as package
from fadiff.batches import samples_of
from fadiff.keywords import ModelKeywords, RulesKeywords, SearchKeywords
from fadiff.pipeline import CompileResult, ModelOptions
from fadiff.search import SearchOptions
from tests.fadiff.models import design_space, small_network

SPACE = "base: gemmini-small\nvary: {side: [8, 16]}\nsearch: {method: layerwise}\n"
IMAGES = np.random.default_rng(0).standard_normal((6, 1, 8, 12, 12)).astype(np.float32)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_network(tmp_path_factory.mktemp("model") / "net.onnx")


@pytest.fixture(scope="module")
def compiled(net: Path, tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    out = tmp_path_factory.mktemp("compiled") / "out"
    return package.compile(str(net), str(out), calibration=list(IMAGES), method="exact", verify=True)


def test_keywords_are_the_fields_of_the_options() -> None:
    """So that a type checker knows every one of them, and its type."""
    for keywords, options in (
        (ModelKeywords.__annotations__, ModelOptions),
        (RulesKeywords.__annotations__ | SearchKeywords.__annotations__, SearchOptions),
    ):
        known = {field.name: field.type for field in dataclasses.fields(options)}
        assert {name: kind.__forward_arg__ for name, kind in keywords.items()} == known


def test_a_module_and_a_loader(tmp_path: Path) -> None:
    """As in training: batches with labels; the file that is exported is no one's business."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1600, 10)).train()
    loader = DataLoader(TensorDataset(torch.tensor(IMAGES[:, 0]), torch.zeros(6)), batch_size=3)
    result = package.compile(
        net, tmp_path / "out", example_inputs=torch.tensor(IMAGES[0]), calibration=loader, method="layerwise"
    )
    assert net.training
    assert not any("no calibration data" in note for note in result.document.conversion.notes)
    assert [layer["op"] for layer in result.layers] == ["conv", "gemm"]
    with pytest.raises(package.InputError, match="give example_inputs"):
        package.compile(net, tmp_path / "other")


def test_a_model_in_memory_and_a_generator(net: Path, compiled: CompileResult, tmp_path: Path) -> None:
    def batches() -> Iterator[np.ndarray]:
        yield IMAGES[:2, 0]
        yield IMAGES[2:, 0]

    model = onnx.load(net)
    result = package.compile(model, tmp_path / "out", calibration=batches(), method="exact")
    same = compiled.document.tensors
    assert [t.scale for t in result.document.tensors] == [t.scale for t in same]
    used = batches()
    list(used)
    with pytest.raises(package.InputError, match="no batch in it"):
        package.compile(model, tmp_path / "other", calibration=used)


@pytest.mark.parametrize(
    ("batches", "count"),
    [
        ([{"image": IMAGES[0], "label": np.zeros(1)}] * 3, 3),
        ({"image": IMAGES[:, 0]}, 6),
        (IMAGES[:4, 0], 4),
        (IMAGES[:4], 4),
        ([(IMAGES[:3, 0], np.zeros(3)), (IMAGES[3:, 0], np.zeros(3))], 6),
    ],
)
def test_batches_become_samples(net: Path, batches: object, count: int) -> None:
    samples = samples_of(batches, net, (), {})  # type: ignore[arg-type]
    assert [sample["image"].shape for sample in samples] == [(1, 8, 12, 12)] * count
    np.testing.assert_array_equal(samples[-1]["image"], IMAGES[0 if count == 3 else count - 1])


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (
            IMAGES[0, 0].transpose(1, 2, 0),
            r"shape \(12, 12, 8\) in a calibration sample, expected \(1, 8, 12, 12\)",
        ),
        (np.where(IMAGES[0] > 2, np.nan, IMAGES[0]), "holds NaN"),
        (IMAGES[0].astype(complex), "complex128"),
        ("cat.png", "shape \\(\\)"),
    ],
    ids=["layout", "nan", "complex", "text"],
)
def test_batches_are_checked_as_files_are(net: Path, tmp_path: Path, sample: object, said: str) -> None:
    """What no .npz may hold, a list may not either: NaN was calibrated with, text a traceback."""
    with pytest.raises(package.ModelError, match=said):
        package.compile(net, tmp_path / "out", calibration=[sample] * 3)


def test_images_without_their_batch_and_batches_without_end(net: Path) -> None:
    program = package.compile(net, net.parent / "nobatch", calibration=list(IMAGES[:, 0]), method="layerwise")
    assert program.document.conversion.accuracy.inputs == "calibration"
    with pytest.raises(package.InputError, match="more than 16,384 samples"):
        samples_of(({"image": IMAGES[0]} for _ in itertools.count()), net, (), {})


def test_a_result_shows_itself(compiled: CompileResult) -> None:
    said = repr(compiled)
    assert "\n" not in said and "net on gemmini-default: 5 layers" in said and "verified" in said
    cycles = compiled.document.totals.clock_cycles
    assert f"{cycles:,.0f} cycles" in said
    card = compiled._repr_html_()
    assert card.count("<svg") == 1 and "Timeline of groups" in card
    assert not re.search(r"(?:src|href)=", card), "needs no network"
    assert set(re.findall(r"var\(--(\w+)\)", card)) <= set(re.findall(r"--(\w+):", card))
    records = compiled.layers
    assert sum(record["cycles"] for record in records) == pytest.approx(cycles, abs=len(records))
    assert [record["layer"] for record in records] == [layer.name for layer in compiled.document.layers]


def test_functions_are_the_commands(fadiff, net: Path, compiled: CompileResult, tmp_path: Path) -> None:
    def said(*arguments: object) -> object:
        ended = fadiff(*arguments, "--json", "-q")
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    found = package.inspect(net)
    inspected = said("inspect", net)
    assert inspected["layers"] == json.loads(json.dumps(found.layers)) and found.totals["array_layers"] == 3
    report = package.verify(str(compiled.out))
    assert report.bit_exact
    cost = package.evaluate(str(compiled.out / "schedule.json"), target="gemmini-default")
    assert cost.energy_pj == said("evaluate", compiled.out / "schedule.json")["energy_pj"]
    np.savez(tmp_path / "data.npz", image=IMAGES, labels=np.zeros(6, int))
    table = package.accuracy(net, tmp_path / "data.npz", calibration=IMAGES)
    assert table.metric == "top1" and table.rows[0]["contender"] == "float"
    space = design_space(
        tmp_path, "base: gemmini-small\nvary: {side: [8, 16]}\nsearch: {method: layerwise}\n"
    )
    assert package.sweep(space, [net]).rows == said("sweep", space, net)
    compared = package.compare(net, ["layerwise", "gemmini-auto"], target="gemmini-default")
    assert {row["method"] for row in compared.rows} == {"layerwise", "gemmini-auto"}
    best = package.codesign([net], space, 50.0, method="sweep")
    assert best.tried == 2 and best.best in best.pareto


def test_unknown_keywords_are_type_errors(net: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="did you mean calibration"):
        package.compile(net, tmp_path / "out", calibraton=IMAGES)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no keyword 'method'"):
        package.inspect(net, method="exact")  # type: ignore[call-arg]


def test_plots_of_a_sweep_and_a_comparison(fadiff, net: Path, tmp_path: Path) -> None:
    space = design_space(
        tmp_path, "base: gemmini-small\nvary: {side: [8, 16]}\nsearch: {method: layerwise}\n"
    )
    page, curves = tmp_path / "front.html", tmp_path / "curves.html"
    assert fadiff("sweep", space, net, "--plot", page, "-q").code == 0
    text = page.read_text()
    assert text.count("<circle") == 2 and text.count("<tr>") == 3 and "area_mm2" in text
    assert fadiff("compare", net, "--methods", "layerwise", "--plot", curves, "-q").code == 0
    assert "<title>layerwise</title>" in curves.read_text() and "layerwise</td>" in curves.read_text()
    ended = fadiff("sweep", space, net, "--plot", tmp_path / "x.pdf")
    assert ended.code == 2 and "ends in .svg or .html" in ended.err
