from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

HEADERS = Path(__file__).parents[1] / "costmodel" / "headers"


def test_list_names_the_presets(fadiff):
    ended = fadiff("targets", "list", "--json")
    assert ended.code == 0
    sizes = {
        t["name"]: (t["side"], t["scratchpad_bytes"], t["accumulator_bytes"]) for t in json.loads(ended.out)
    }
    assert sizes["gemmini-large"] == (32, 512 * 1024, 64 * 1024)
    assert sizes["gemmini-small"] == (16, 8 * 1024, 8 * 1024)
    assert sizes["gemmini-default"] == (16, 256 * 1024, 64 * 1024)


def test_list_as_a_table(fadiff):
    ended = fadiff("targets", "list")
    assert ended.code == 0
    assert "gemmini-small" in ended.out and "32 x 32" in ended.out


def test_what_show_prints_is_a_target_file(fadiff, tmp_path):
    shown = fadiff("targets", "show", "gemmini-large")
    copy = tmp_path / "copy.yaml"
    copy.write_text(shown.out)
    checked = fadiff("targets", "check", copy)
    assert (shown.code, checked.code) == (0, 0)
    assert "32 x 32" in checked.out


def test_import_then_check_against_the_header(fadiff, tmp_path):
    mine = tmp_path / "mine.yaml"
    imported = fadiff("targets", "import", HEADERS / "int8_16x16.h", "-o", mine, "--name", "mine")
    assert imported.code == 0
    assert "bandwidth.dram_bytes" in imported.err, "must say what the header cannot"
    assert yaml.safe_load(mine.read_text())["scratchpad_bytes"] == 262144
    assert fadiff("targets", "check", mine, "--params", HEADERS / "int8_16x16.h").code == 0

    content = yaml.safe_load(mine.read_text())
    content["accumulator_bytes"] //= 2
    mine.write_text(yaml.safe_dump(content))
    differs = fadiff("targets", "check", mine, "--params", HEADERS / "int8_16x16.h")
    assert differs.code == 1
    assert "accumulator_bytes is 32768" in differs.out


def test_a_header_without_a_macro_that_the_target_counts_on(fadiff, tmp_path):
    """That of gemmini-rocc-tests says nothing of full-width reads, which the default hardware has."""
    header = tmp_path / "gemmini_params.h"
    text = (HEADERS / "int8_16x16.h").read_text()
    header.write_text(text.replace("#define ACC_READ_FULL_WIDTH\n", ""))
    checked = fadiff("targets", "check", "gemmini-default", "--params", header)
    assert checked.code == 1
    assert "has_full_width_read is True, but" in checked.out
    assert "set has_full_width_read: false" in checked.out and "#define ACC_READ_FULL_WIDTH" in checked.out


@pytest.mark.parametrize("name", ["gemmini-large", "gemmini-small", "gemmini-fp32"])
def test_an_exported_header_is_that_of_the_target(fadiff, tmp_path, name):
    header = tmp_path / "gemmini_params.h"
    assert fadiff("targets", "export", name, "-o", header).code == 0
    assert fadiff("targets", "check", name, "--params", header).code == 0
    again = fadiff("targets", "export", name, "-o", header)
    assert again.code == 2 and "--force" in again.err
    assert fadiff("targets", "export", name).out == header.read_text()


def test_import_does_not_overwrite(fadiff, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("precious")
    ended = fadiff("targets", "import", HEADERS / "int8_16x16.h", "-o", mine)
    assert ended.code == 2 and "--force" in ended.err
    assert mine.read_text() == "precious"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name: x\nside: 12\nscratchpad_bytes: 1024\naccumulator_bytes: 1024\n", "power of two"),
        ("name: x\nside: 16\nscratchpad_bytes: 1024\naccumulator_bytes: 60\n", "less than one row"),
        ("name: x\nside: 16\nscratchpad_bytes: 1024\n", "accumulator_bytes"),
        (
            "name: x\nsied: 16\nscratchpad_bytes: 1024\naccumulator_bytes: 1024\n",
            "sied: unknown field: did you mean side?",
        ),
        ("name: x\nside: 4\naccumulator_bytes: 1024\n", "scratchpad_bytes: is missing"),
        (
            "name: x\nside: four\nscratchpad_bytes: 1024\naccumulator_bytes: 1024\n",
            "side: should be a valid integer, not 'four'",
        ),
        (
            "name: x\nside: 4\nscratchpad_bytes: 1000\naccumulator_bytes: 1024\n",
            "scratchpad_bytes=1000: 4 banks of whole rows take a multiple of 16",
        ),
        (
            "name: x\nside: 4\nscratchpad_bytes: 1024\naccumulator_bytes: 1024\nelement_bytes: 2\n",
            "element_type int8 needs element_bytes 1",
        ),
        (
            "name: x\nside: 4\nscratchpad_bytes: 1024\naccumulator_bytes: 64\nenergy: {mac: -1, xyz: 2}\n",
            "energy.mac: should be greater than or equal to 0, not -1; energy.xyz: unknown field: choose "
            "from mac, register_byte,",
        ),
        (
            "name: x\nside: 4\nscratchpad_bytes: 1024\naccumulator_bytes: 64\n"
            "core: {host: {sofmax: 2, lookup: 0}}\n",
            "core.host.lookup: should be greater than 0, not 0; core.host.sofmax: unknown field: "
            "did you mean softmax?",
        ),
        ("name: [x\n", "wrong.yaml:2: not YAML: did not find expected"),
        ("- 1\n", "should be a mapping"),
    ],
)
def test_a_wrong_target_file_is_one_line(fadiff, tmp_path, content, says):
    file = tmp_path / "wrong.yaml"
    file.write_text(content)
    ended = fadiff("targets", "check", file)
    assert ended.code == 2
    assert says in ended.err and str(file) in ended.err
    assert ended.err.count("\n") == 1, ended.err


def test_an_unknown_preset_lists_the_known_ones(fadiff):
    ended = fadiff("targets", "show", "gemini")
    assert ended.code == 2
    assert "gemmini-default" in ended.err
