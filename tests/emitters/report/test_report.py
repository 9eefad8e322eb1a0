from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from fadiff.costmodel.schedule.document import HistoryPoint, ScheduleDocument, SearchRecord
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.measurement import LayerMeasurement, Measurement
from fadiff.costmodel.schedule.schedule import FusionGroup
from fadiff.costmodel.schedule.serialize import Bound, schedule_from_document, to_document
from fadiff.costmodel.target.target import load_target
from fadiff.emitters.layers_csv import layers_csv
from fadiff.emitters.memory_map import LayerPlace, MemoryMap, Region, SymbolRecord, Symbols, TensorPlace
from fadiff.emitters.report import render
from fadiff.emitters.report.fusion import columns
from fadiff.emitters.report.memory import Block, arena_blocks, lifetimes, memory_picture, tile_buffer_blocks
from fadiff.emitters.report.nest import functions, nest_boxes
from fadiff.emitters.report.svg import Scale
from fadiff.emitters.report.text import edp, picojoules, si
from fadiff.emitters.report.view import group_rows, resident_rows
from fadiff.emitters.report.waterfall import dram_steps
from fadiff.optimizer import optimize
from fadiff.samples.graphs import graph_of
from tests.costmodel.schedules import alone, residual
from tests.emitters.gemmini.test_side_by_side import fork, schedule_of

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Text and addresses of a page; fails on tags that do not close in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.count: dict[str, int] = {}
        self.feed(source)
        self.close()
        assert self.open == [], f"unclosed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.count[tag] = self.count.get(tag, 0) + 1
        self.addresses += [value for name, value in attributes if name in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> out of order"

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def document() -> ScheduleDocument:
    schedule = optimize(
        graph_of("resnet18", image_size=64), load_target("gemmini-large"), method="exact"
    ).schedule
    cost = evaluate(schedule)
    history = tuple(
        HistoryPoint(seconds=s, step=s, edp_uj_cycles=cost.edp_uj_cycles * f)
        for s, f in ((1, 3.0), (2, 1.5), (4, 1.0))
    )
    search = SearchRecord(method="gradient", seed=7, seconds=4.0, steps=4, history=history)
    bound = Bound(cost.edp_uj_cycles / 1.25, "proven")
    return to_document(schedule, cost, generator="fadiff test", bound=bound, search=search)


def verification(document: ScheduleDocument, wrong: str | None = None) -> dict:
    layers = []
    for layer in document.layers:
        predicted = sum(move.read + move.write for move in layer.cost.traffic.dram.values())
        bad = layer.name == wrong
        layers.append(
            {
                "name": layer.name,
                "agrees": not bad,
                "bit_exact": not bad,
                "max_lsb_diff": 3 if bad else 0,
                "max_relative_error": 0.1 if bad else 0.0,
                "dram_bytes": {"measured": predicted + bad, "predicted": predicted},
            }
        )
    total = sum(layer["dram_bytes"]["measured"] for layer in layers)
    return {
        "agrees": wrong is None,
        "bit_exact": wrong is None,
        "tolerance": 0.0,
        "traffic_exact": wrong is None,
        "top1_agreement": 1.0,
        "sqnr_db": 38.25,
        "error": None,
        "measured": {"dram_bytes": total, "instructions": 1234567},
        "predicted": {"dram_bytes": document.totals.dram_bytes},
        "layers": layers,
    }


def test_one_well_formed_page_that_loads_nothing(document):
    source = render(document, verification(document))
    page = Page(source)
    assert all(
        address.startswith(("#", "data:text/csv", "data:application/json")) for address in page.addresses
    )
    assert page.count["script"] == 1, "ours: sorting and filtering"
    identifiers = set(re.findall(r' id="([^"]+)"', source))
    assert {address[1:] for address in page.addresses if address.startswith("#")} <= identifiers
    urls = set(re.findall(r"https?://[^\s\"'<)]+", source))
    assert urls <= {"http://www.w3.org/2000/svg"}, "only the SVG namespace, which is a name and not fetched"
    assert "@import" not in source and "url(" not in source


def test_the_headline_figures_are_those_of_the_schedule(document):
    text = Page(render(document, verification(document))).text
    assert edp(document.totals.edp_uj_cycles) in text
    assert "25.0 %" in text and "proven" in text
    assert f"{document.totals.dram_bytes:,}" in text
    assert f"{len(document.layers)} of {len(document.layers)}" in text
    assert "38.2 dB" in text
    for layer in document.layers:
        assert layer.name in text


def test_the_layer_table_ends_with_its_sums_and_names_what_limits(document):
    source = render(document)
    sums = re.findall(r"<tfoot>.*?</tfoot>", source, re.DOTALL)[0]
    cycles = sum(layer.cost.clock_cycles for layer in document.layers)
    energy = sum(layer.cost.energy_pj for layer in document.layers)
    moved = sum(m.read + m.write for layer in document.layers for m in layer.cost.traffic.dram.values())
    for shown in (si(cycles), picojoules(energy), si(moved, "B")):
        assert f">{shown}<" in sums
    chips = re.findall(r'class="chip \w+">([^<]+)<', source)
    assert chips and {*chips} <= {"array", "DMA", "core", "waiting"}
    # What takes no time of its own (a pool in the store path) has no limit.
    assert len(chips) == sum((layer.cost.clock_cycles or 0) > 0 for layer in document.layers)


def test_layers_are_listed_hottest_first(document):
    table = render(document).split('id="layer-table"')[1].split("</tbody>")[0]
    cycles = [int(shown) for shown in re.findall(r'<tr>.*?\n<td class="r" data-v="(\d+)">', table)]
    assert len(cycles) == len(document.layers) and cycles == sorted(cycles, reverse=True)


def test_the_table_can_be_taken_away_as_csv(document):
    (address,) = (a for a in Page(render(document)).addresses if a.startswith("data:text/csv"))
    assert unquote(address.partition(",")[2]) == layers_csv(document)


def test_one_latency_of_parts_that_add_up_to_it(document):
    section = Page(render(document)).text.split(" Where the time goes ")[1].split("Cycles of the emitted")[0]
    shares = [float(share) for share in re.findall(r"([\d.]+) %", section)]
    assert len(shares) >= 4 and sum(shares) == pytest.approx(100, abs=0.3)
    assert f"{document.totals.clock_cycles:,.0f}" in section


def test_measured_cycles_stand_beside_the_predicted_ones(document):
    cycles = document.totals.clock_cycles
    layers = tuple(
        LayerMeasurement(name=layer.name, calls=1, measured=10, predicted=layer.cost.clock_cycles)
        for layer in document.layers
    )
    warm = round(2 * cycles)
    measured = Measurement(source="sim", unit="cycles", cold=9, warm=warm, predicted=cycles, layers=layers)
    text = Page(render(document, measured=measured)).text
    assert f"{warm:,}" in text and "-50.0 %" in text
    assert "Latency, measured" in text and "Latency, predicted" in text


def test_bytes_fall_from_step_to_step(document):
    most = 3 * document.totals.dram_bytes
    search = document.search.model_copy(
        update={"automatic_dram_bytes": most, "unfused_dram_bytes": most // 2}
    )
    known = document.model_copy(update={"search": search})
    steps = dram_steps(known, schedule_from_document(document))
    assert [step.label for step in steps] == ["gemmini.h", "unfused", "fused", "resident"]
    assert (steps[0].nbytes, steps[3].nbytes) == (si(most, "B"), si(document.totals.dram_bytes, "B"))
    assert steps[1].change == "-50.0 %"
    without = steps[2].width * most / 100 - document.totals.dram_bytes
    stays = sum(int(row[1].replace(",", "")) for row in resident_rows(document))
    assert stays and without >= 2 * stays, "each tensor that stays is at least a store and a load less"


def test_without_verification_it_says_so(document):
    text = Page(render(document)).text
    assert "not yet" in text and "fadiff verify" in text
    assert "bit-exact" not in text.lower()


def test_a_difference_is_shown_as_one(document):
    name = document.layers[5].name
    source = render(document, verification(document, wrong=name))
    text = Page(source).text
    assert "differs" in text and f"{len(document.layers) - 1} of {len(document.layers)}" in text
    assert 'class="tile bad"' in source


def test_estimates_are_called_estimates(document):
    text = Page(render(document)).text
    assert "Modelled" in text and "not the RTL" in text


def test_names_from_the_model_cannot_inject_markup(document):
    content = document.model_dump(mode="json")
    content["model"]["name"] = "<script>alert(1)</script>"
    old = content["layers"][0]["name"]
    evil = '"><img src=x onerror=alert(1)>'
    content["layers"][0]["name"] = evil
    for edge in content["fusion"]["edges"]:
        for end in ("producer", "consumer"):
            edge[end] = evil if edge[end] == old else edge[end]
    content["fusion"]["groups"] = [
        [evil if name == old else name for name in group] for group in content["fusion"]["groups"]
    ]
    for run in content["fusion"]["execution"]:
        run["resident_weights"] = [evil if name == old else name for name in run["resident_weights"]]
    page = Page(render(ScheduleDocument.model_validate(content)))
    assert page.count["script"] == 1 and "img" not in page.count
    assert "<script>alert(1)</script>" in page.text


def test_fused_edges_and_groups_are_drawn(document):
    source = render(document)
    fused_groups = [group for group in document.fusion.groups if len(group) > 1]
    on_chip = [edge for edge in document.fusion.edges if edge.path != "dram"]
    assert fused_groups, "the test wants a network with fusion"
    assert source.count('class="frame"') == len(fused_groups)
    assert source.count('class="edge fused"') == len(on_chip)
    assert source.count('class="edge"') == len(document.fusion.edges) - len(on_chip)
    drawn = [name for column in columns(document) for group in column.groups for name in group]
    assert drawn == [name for group in document.fusion.groups for name in group]


def in_arena(offset: int, nbytes: int) -> TensorPlace:
    return TensorPlace(shape=(nbytes,), dtype="int8", symbol="arena", offset=offset, bytes=nbytes)


def memory_of(
    tensors: dict[str, TensorPlace], arena: int = 0, layers: Sequence[LayerPlace] = ()
) -> MemoryMap:
    sizes = {"arena": arena, "weights": 7, "tile_buffer": 0}
    symbols = Symbols(**{name: SymbolRecord(name=name, bytes=size) for name, size in sizes.items()})
    return MemoryMap(
        version=1, model="m", symbols=symbols, inputs=(), outputs=(), tensors=tensors, layers=tuple(layers)
    )


def test_the_memory_map_places_every_live_tensor(document):
    live = lifetimes(document)
    tensors = {name: in_arena(1024 * i, 1024) for i, name in enumerate(sorted(live))}
    source = render(document, None, memory_of(tensors, 1024 * len(live)))
    assert source.count('class="block shade') == len(live)
    assert f"{1024 * len(live):,} bytes" in Page(source).text


def test_blocks_of_the_memory_map_are_named_where_there_is_room(document):
    live = lifetimes(document)
    long = max(live, key=lambda name: (live[name][1] - live[name][0], -len(name)))
    short = min(live, key=lambda name: live[name][1] - live[name][0])
    blocks = arena_blocks(document, memory_of({long: in_arena(0, 5000), short: in_arena(5000, 50)}))
    picture = memory_picture("arena", blocks, 5050, len(document.layers))
    assert picture is not None and re.findall(r'class="label">([^<]+)<', picture) == [long]


def test_a_tensor_that_stays_in_the_tile_buffer_is_one_block():
    region = Region(tensor="a", role="I", memory="tile-buffer", symbol="tile_buffer", offset=64, bytes=32)
    regions = [region, region.model_copy(update={"symbol": "arena"}), region]
    layers = [
        LayerPlace(name=f"layer{i}", kind="add", outputs=("a",), group=i, regions=(used,))
        for i, used in enumerate(regions)
    ]
    assert tile_buffer_blocks(memory_of({}, layers=layers)) == [Block("a", 0, 2, 64, 32)]
    assert memory_picture("tile buffer", [], 10, 3) is None


def test_loop_nests_are_boxes_beside_their_c(document):
    layer = next(layer for layer in document.layers if layer.mapping)
    trips = [trips for box in nest_boxes(layer.mapping) for _, trips in box.loops]
    temporal = layer.mapping.temporal.values()
    assert math.prod(trips) == math.prod(n for level in temporal for n in level.values())
    body = "static void f(void)\n{\n    tiled_conv(1 < 2);\n}"
    source = f"/* {layer.name}: conv K1\n * more\n */\n{body}\n\nint g(void)\n"
    assert functions(source) == {layer.name: body}
    assert "tiled_conv(1 &lt; 2);" in render(document, source=source)


def test_lifetimes_run_from_writer_to_last_reader(document):
    live = lifetimes(document)
    order = {layer.name: index for index, layer in enumerate(document.layers)}
    for edge in document.fusion.edges:
        first, last = live[edge.tensor]
        assert first <= order[edge.producer] and order[edge.consumer] <= last
    assert live[document.model.outputs[0]][1] == len(document.layers) - 1


def test_equal_input_gives_equal_bytes(document):
    assert render(document, verification(document)) == render(document, verification(document))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (edp(1.8634e10), "1.863e10"),
        (si(12_345_678), "12.3 M"),
        (si(1000, "B"), "1.00 kB"),
        (si(512), "512"),
        (picojoules(5.296e9), "5.30 mJ"),
    ],
)
def test_numbers_as_people_read_them(text, expected):
    assert text == expected


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0.5, 3.0), (1e9, 2.1e10), (3.0, 3.0), (7.0, 7.2)])
def test_scales_are_monotone_and_ticks_lie_inside(low, high, log):
    scale = Scale(low, high, 10, 110, log)
    points = [scale(low + (high - low) * i / 7) for i in range(8)]
    assert points == sorted(points) and all(10 <= p <= 110 for p in points)
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in scale.ticks())
    assert 1 <= len(scale.ticks()) <= 11


def test_tensors_that_stay_on_chip_are_listed_and_drawn_as_such() -> None:
    schedule = alone(residual(), ("A", "S"))
    document = to_document(schedule, evaluate(schedule), generator="test")
    rows = resident_rows(document)
    # A waits while x, weights of 256 and 2304 and B, written and read, pass; S while B, y and weights do.
    assert rows == [
        ("A", "1,024", "0", "1, 2", "3", si(1024 + 256 + 2304 + 1024 + 1024, "B")),
        ("S", "1,024", "2", "3", "2", si(1024 + 256 + 1024, "B")),
    ]
    source = render(document)
    assert "2 whole tensors stay on chip" in Page(source).text
    assert "A: a to b, stays on chip" in source and "B: b to sum, through DRAM" in source
    none = alone(residual(), ())
    plain = render(to_document(none, evaluate(none), generator="test"))
    assert "on chip from the group" not in Page(plain).text


def test_layers_side_by_side_are_no_fused_group() -> None:
    together = schedule_of(fork(), FusionGroup(("l0", "l1")), P=2)
    document = to_document(together, evaluate(together), generator="test")
    assert document.fused == (False, False)
    [row] = group_rows(document)
    assert row[:3] == ("1", "0, 1", "whole, side by side")
    assert "2 layers side by side" in render(document)
