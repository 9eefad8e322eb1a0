"""The search benchmarks run, print figures a script can read, and fail when a cell fails."""

import csv

import pytest

from benchmarks import ablation, cells, descent, figure4, table1
from benchmarks.__main__ import main
from benchmarks.bounds import fusion_bound
from benchmarks.cells import seconds_to
from benchmarks.networks import TABLE1, network
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.gradient.descent import Effort, descend
from fadiff.optimizer.gradient.joint import gradient
from fadiff.optimizer.layer.space import Rules
from tests.optimizer.graphs import separable


def figures(line):
    return dict(part.split("=") for part in line.split())


def test_table1(tmp_path, capsys):
    arguments = ["--models", "resnet18", "--targets", "gemmini-large", "--out", str(tmp_path)]
    assert table1.main([*arguments, "--methods", "exact,layerwise,gemmini-auto"]) == 0
    last = figures(capsys.readouterr().out.strip().splitlines()[-1])
    assert last["model"] == "resnet18" and last["target"] == "gemmini-large"
    (row,) = csv.DictReader((tmp_path / "table1.csv").read_text().splitlines())
    assert float(row["exact"]) <= float(row["layerwise"]) <= float(row["gemmini-auto"])


def test_unknown_model_fails_the_table(tmp_path, capsys):
    assert main(["table1", "--models", "nothing", "--methods", "layerwise", "--out", str(tmp_path)]) == 2
    assert "nothing" in capsys.readouterr().err


def test_ablation_of_an_unknown_target(capsys):
    assert main(["ablation", "--target", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["resnet18", "mobilenetv1", "gpt3-256"])
def test_bound_is_below_every_schedule(model):
    assert model in TABLE1
    graph, target = network(model), load_target("gemmini-large")
    found = optimize(graph, target, profile="dosa", method="layerwise", row_packing=False)
    assert fusion_bound(graph, target) < found.cost.edp_uj_cycles


def test_seconds_to():
    assert seconds_to([(1.0, 9.0), (2.0, 5.04), (3.0, 5.0)], 1.01) == 2.0


def test_a_cell_keeps_what_it_has_and_names_what_failed(tmp_path, monkeypatch):
    def broken(problem):
        raise ScheduleError("nothing fits")

    settings = cells.Settings(budget=0.2, seeds=1)
    cells.run_cell("resnet18", "gemmini-large", settings, ["layerwise"], [], tmp_path)
    monkeypatch.setattr("fadiff.optimizer.gradient.dosa.dosa", broken)
    cell = cells.run_cell("resnet18", "gemmini-large", settings, ["gemmini-auto", "dosa"], [], tmp_path)
    assert set(cell.runs) == {"layerwise", "gemmini-auto"}
    assert cell.errors == {"dosa": "nothing fits"}
    assert cells.Cell.load(cell.path(tmp_path)) == cell
    assert cell.figures()["mapping"] != cell.figures()["mapping"]
    assert "nothing fits" in cells.show(cell)


def test_figure4(tmp_path, capsys):
    arguments = ["--methods", "layerwise,gemmini-auto", "--seeds", "1", "--out", str(tmp_path)]
    assert figure4.main(arguments) == 0
    last = figures(capsys.readouterr().out.strip().splitlines()[-1])
    assert float(last["layerwise"]) == 1 < float(last["gemmini-auto"])
    assert (tmp_path / "figure4.png").stat().st_size > 1000
    assert {row["method"] for row in csv.DictReader((tmp_path / "figure4.csv").read_text().splitlines())} == {
        "layerwise",
        "gemmini-auto",
    }


def test_ablation_takes_freedoms_away(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ablation, "network", lambda name: separable())
    assert ablation.main(["--out", str(tmp_path)]) == 0
    rows = {name: float(value) for name, value in figures(capsys.readouterr().out.splitlines()[-1]).items()}
    assert rows["full"] == 1
    assert min(rows.values()) == 1 < rows["no_fusion"]


def test_losses_of_descent_multiply_to_its_distance_from_the_final_schedule():
    """A descent of no step at all: its first restarts fuse nothing or what happens to be drawn."""
    graph, rules = separable(blocks=1), Rules(load_target("gemmini-large"), "dosa")
    problem = Problem(graph, rules, residency=False)
    partition = descend(problem, Effort(restarts=4, steps=0)).best.argmin
    least = problem.cost(problem.schedule(gradient(problem).partition)).edp_uj_cycles
    losses = descent.losses_of(problem, partition, least, 0.0)
    ratio = problem.cost(problem.schedule(partition)).edp_uj_cycles / least
    assert losses.ratio == pytest.approx(ratio) and ratio > 1.001
    assert min(losses.unfused, losses.members, losses.tile, losses.fusion) > 1 - 1e-9


def test_descent_of_an_unknown_model(capsys):
    assert main(["descent", "--models", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err
