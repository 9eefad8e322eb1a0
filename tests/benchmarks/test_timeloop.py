"""The comparison commands on a few rows of the published tables (Timeloop's counts; DOSA's points, BSD)."""

import csv
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.agreement import kendall_tau

DATA = Path(__file__).parent / "data"


def figures(text):
    """The key=value pairs of the last line."""
    return {key: float(value) for key, value in (pair.split("=") for pair in text.splitlines()[-1].split())}


def test_counts_equal_timeloop(tmp_path, capsys):
    code = main(["timeloop", "--reference", str(DATA / "timeloop_counts.csv"), "--out", str(tmp_path)])
    found = figures(capsys.readouterr().out)
    assert code == 0
    assert found["exact"] == 1 and found["mare"] == 0 and found["failed"] == 0
    assert found["tau_latency"] == 1 and found["tau_energy"] >= 0.999
    assert (tmp_path / "timeloop.png").stat().st_size > 1000


def test_a_row_that_cannot_be_scored_fails_the_run(tmp_path, capsys):
    with (DATA / "timeloop_counts.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[:3]
    rows[1]["L3_temporal"] = "N=1 K=1 C=1 P=1 Q=1 R=1 S=1"
    damaged = tmp_path / "damaged.csv"
    with damaged.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    assert main(["timeloop", "--reference", str(damaged), "--out", str(tmp_path)]) == 1
    assert "damaged.csv:3: cannot be scored: factors of" in capsys.readouterr().err


def test_energy_and_cycles_of_dosa_points(tmp_path, capsys):
    assert main(["dosa", "--reference", str(DATA / "dosa_points.csv"), "--out", str(tmp_path)]) == 0
    found = figures(capsys.readouterr().out)
    assert found["energy_mape"] <= 0.1 and found["cycle_mape"] <= 0.01
    assert found["rows"] == 40


@pytest.mark.parametrize("name", ["timeloop", "dosa"])
def test_missing_file(name, tmp_path, capsys):
    assert main([name, "--reference", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err


def test_unknown_benchmark(capsys):
    assert main(["nonsense"]) == 2
    message = capsys.readouterr().err
    assert all(name in message for name in BENCHMARKS)


def test_kendall_tau_by_counting_pairs():
    pairs = [(1, 1), (2, 3), (3, 2), (3, 3), (5, 4), (4, 4)]
    concordant = discordant = tied_a = tied_b = 0
    for i, (a, b) in enumerate(pairs):
        for c, d in pairs[:i]:
            product = (a - c) * (b - d)
            concordant += product > 0
            discordant += product < 0
            tied_a += a == c and b != d
            tied_b += b == d and a != c
    strict = concordant + discordant
    expected = (concordant - discordant) / ((strict + tied_a) * (strict + tied_b)) ** 0.5
    assert kendall_tau(pairs) == pytest.approx(expected)
