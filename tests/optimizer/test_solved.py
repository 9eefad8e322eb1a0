"""Solved layers on disk change nothing but time: prices may differ, what decides may not, files may break."""

import multiprocessing
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.count.traffic import Placement
from fadiff.costmodel.mapping.shape import LayerShape, whole
from fadiff.costmodel.mapping.tiling import Window
from fadiff.costmodel.target.target import Bandwidth, Energy, Target
from fadiff.optimizer.layer.enumerate import enumerate_space
from fadiff.optimizer.layer.fronts import FrontCache
from fadiff.optimizer.layer.solved import SolvedLayers, cache_file, key_of
from fadiff.optimizer.layer.space import LayerSpace, Rules
from fadiff.optimizer.layer.undominated import undominated


def target(**changes):
    return Target(name="t", side=4, scratchpad_bytes=1024, accumulator_bytes=512).model_copy(update=changes)


def shape_of_case(dims, depthwise=False):
    windows = [
        Window(r, 1, 1, r // 2, out + r - 1 - 2 * (r // 2)) for out, r in ((dims.P, dims.R), (dims.Q, dims.S))
    ]
    return LayerShape(dims, *windows, is_depthwise=depthwise, has_bias=True)


SHAPES = (
    shape_of_case(Dims(K=12, C=2, P=7, Q=6, R=3, S=3)),
    shape_of_case(Dims(K=20, C=36, P=30)),
    shape_of_case(Dims(G=10, P=8, Q=6, R=3, S=3), depthwise=True),
)
PLACES = (
    Placement(),
    Placement(input_is_fused=True),
    Placement(output_is_fused=True, output_to_dram=False),
    Placement(input_is_fused=True, weights_are_resident=True),
)


def spaces(hardware, *profiles):
    for profile in profiles or ("dosa",):
        rules = Rules(hardware, profile)
        for shape in SHAPES:
            for place in PLACES:
                yield LayerSpace(shape, whole(shape.dims), rules, place)


def same(front, other):
    return np.allclose(front.energy, other.energy, rtol=1e-12) and np.allclose(
        front.latency, other.latency, rtol=1e-12
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A file with all layers solved for `target()`."""
    path = tmp_path_factory.mktemp("kept") / "layers"
    with SolvedLayers(path) as solved:
        for space in spaces(target(), "dosa", "hw"):
            FrontCache(solved).front(space)
    return path


def test_layers_solved_at_other_prices_have_the_same_fronts(kept):
    rng = np.random.default_rng(0)
    for _ in range(3):
        prices = dict(
            zip(
                ("mac", "scratchpad_byte", "dram_byte", "accumulator_word"),
                10 ** rng.uniform(-2, 2, 4),
                strict=True,
            )
        )
        widths = dict(zip(("dram_bytes", "scratchpad_bytes"), 2 ** rng.uniform(-1, 6, 2), strict=True))
        other = target(energy=Energy(**prices), bandwidth=Bandwidth(**widths), tile_buffer_bytes=4096)
        with SolvedLayers(kept) as solved:
            for space in spaces(other):
                assert same(FrontCache(solved).front(space), FrontCache().front(space))
        assert solved.found == solved.asked > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"side": 8},
        {"scratchpad_bytes": 2048},
        {"scratchpad_banks": 2},
        {"accumulator_bytes": 256},
        {"element_bytes": 4, "element_type": "float32"},
        {"max_bytes": 16},
        {"has_max_pool": False},
        {"has_row_packing": False},
        {"has_full_width_read": False},
        {"ex_read_from_acc": False},
        {"use_tl_ext_mem": True},
        {"tile_buffer_bytes": 1024},
        {"energy": Energy(dram_byte=3.0)},
        {"bandwidth": Bandwidth(dram_bytes=2.0)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_whatever_changes_the_front_is_told_apart(tmp_path, kept, changes):
    with SolvedLayers(shutil.copy(kept, tmp_path / "layers")) as solved:
        for space in spaces(target(**changes), "dosa", "hw"):
            assert same(FrontCache(solved).front(space), FrontCache().front(space))


def test_under_the_clock_prices_tell_layers_apart(tmp_path):
    changes = {}, {"bandwidth": Bandwidth(dram_bytes=2.0)}
    first, other = (next(spaces(target(**change), "hw")) for change in changes)
    with SolvedLayers(tmp_path / "layers") as solved:
        for space in (first, other, first):
            assert same(FrontCache(solved).front(space), FrontCache().front(space))
    assert solved.found == 1


def test_no_field_of_a_target_is_forgotten():
    """A new one has to be named above, so that somebody thinks of whether it decides mappings."""
    priced = {"epa", "core", "engines", "last_level_cache_bytes"}
    priced |= {"accumulator_bytes_per_word", "element_type"}
    tested = {
        "energy",
        "bandwidth",
        "name",
        "side",
        "scratchpad_bytes",
        "scratchpad_banks",
        "accumulator_bytes",
    }
    tested |= {"element_bytes", "max_bytes", "has_max_pool", "has_row_packing", "has_full_width_read"}
    tested |= {"ex_read_from_acc", "use_tl_ext_mem", "tile_buffer_bytes"}
    assert set(Target.model_fields) == priced | tested


def test_regions_room_and_rules_tell_layers_apart():
    first = next(spaces(target()))
    others = [
        replace(first, reserved=1),
        replace(first, lanes=2),
        replace(first, region=first.region._replace(P=((0, 4), (3, 9)))),
        replace(first, rules=replace(first.rules, tiling="divisor")),
        replace(first, rules=replace(first.rules, row_packing=False)),
        replace(first, rules=replace(first.rules, profile="hw")),
    ]
    assert len({key_of(space) for space in (first, *others)}) == 7


def test_of_random_rows_the_undominated_are_left():
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 6, (400, 4)).astype(float)
    kept = undominated(rows)
    for i, row in enumerate(rows):
        smaller = (rows <= row).all(axis=1) & (rows < row).any(axis=1)
        equals = np.flatnonzero((rows == row).all(axis=1))
        assert (i in kept) == (not smaller.any() and i == equals[0])


def test_damaged_entries_are_not_used(tmp_path, kept):
    path, some = shutil.copy(kept, tmp_path / "layers"), list(spaces(target()))
    with closing(sqlite3.connect(path)) as file, file:
        for key, content in file.execute("SELECT key, content FROM layers").fetchall():
            damaged = bytes([*content[:20], content[20] ^ 1, *content[21:]])
            file.execute("UPDATE layers SET content = ? WHERE key = ?", (damaged, key))
    with SolvedLayers(path) as solved:
        assert same(FrontCache(solved).front(some[0]), FrontCache().front(some[0]))
        assert (solved.asked, solved.found) == (1, 0)
    with SolvedLayers(path) as solved:  # written again
        FrontCache(solved).front(some[0])
        assert solved.found == 1


@pytest.mark.parametrize(
    "content", [b"no database at all" * 99, b"SQLite format 3\0" + bytes(range(256)) * 9]
)
def test_a_file_that_is_no_database_is_made_anew(tmp_path, content):
    path = tmp_path / "layers"
    path.write_bytes(content)
    for found in (0, 1):
        with SolvedLayers(path) as solved:
            FrontCache(solved).front(next(spaces(target())))
        assert solved.found == found


def test_without_a_place_to_write_layers_are_just_solved(tmp_path):
    (tmp_path / "file").write_text("")
    with SolvedLayers(tmp_path / "file" / "layers") as solved:
        assert len(FrontCache(solved).front(next(spaces(target()))))
        assert not solved.keeps


def _fill(path, seed):
    points = enumerate_space(next(spaces(target())))
    for size in range(seed, seed + 40):
        with SolvedLayers(path) as solved:
            solved.add(replace(points.select(np.array([0])), space=replace(points.space, reserved=size)))


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    path, context = tmp_path / "layers", multiprocessing.get_context("spawn")
    processes = [context.Process(target=_fill, args=(path, seed)) for seed in (0, 20)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    first = next(spaces(target()))
    with SolvedLayers(path) as solved:
        assert all(solved.find(replace(first, reserved=size)) for size in range(60))
        assert not solved.find(replace(first, reserved=60))


def test_the_file_stays_small_and_the_oldest_go_first(tmp_path):
    path = tmp_path / "layers"
    points = enumerate_space(next(spaces(target()))).select(np.arange(5))
    for size in range(120):
        with SolvedLayers(path, most_bytes=30_000) as solved:
            solved.add(replace(points, space=replace(points.space, reserved=size)))
    assert path.stat().st_size < 40_000
    with SolvedLayers(path) as solved:
        assert solved.find(replace(points.space, reserved=119)) is not None
        assert solved.find(replace(points.space, reserved=0)) is None


def test_the_default_file_is_in_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("FADIFF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_file() == tmp_path / "fadiff" / "solved-layers.sqlite"
    monkeypatch.setenv("FADIFF_CACHE", str(tmp_path / "elsewhere"))
    assert cache_file() == tmp_path / "elsewhere" / "solved-layers.sqlite"
