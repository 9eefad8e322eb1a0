"""Whatever a text file holds, reading it ends soon, and with one kind of error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fadiff.costmodel.schedule.serialize import ScheduleFileError, read_document
from fadiff.costmodel.target.params_header import read_params_header, target_from_header
from fadiff.costmodel.target.target import TargetError, load_target
from fadiff.costmodel.target.text_file import FormatError, load_json, load_yaml, read_text

HEADER = (Path(__file__).parent / "headers" / "int8_16x16.h").read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 2001-99-99\n", "month"),
        (f"a: {'9' * 5000}\n", "digits"),
        (f"a: {'[' * 5000}\n", "maximum nesting depth"),
        ('a: "\\ud800"\n', "invalid Unicode character"),
        ("a: [\n", ":2: not YAML"),
        ("a: !!python/object:os.system x\n", ":1: not YAML"),
    ],
)
def test_yaml_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=says) as caught:
        load_yaml(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
    with pytest.raises(TargetError):
        load_target(path)


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 100_000, '["\\ud800"]', "{", '{"a": 1}}', "\ud800"])
def test_json_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(text, errors="surrogatepass")
    with pytest.raises(FormatError, match=r"not (JSON|a text file)"):
        load_json(path)
    with pytest.raises(ScheduleFileError):
        read_document(path)


def test_what_escapes_say_is_kept(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('["\\u00e4 \\ud83d\\ude00"]')
    assert load_json(tmp_path / "t.json") == ["ä 😀"]


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_text(Path("/dev/zero"))
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(TargetError, match="not a regular file"):
        load_target(tmp_path / "pipe.yaml")
    with (tmp_path / "large.h").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(TargetError, match="too many"):
        read_params_header(tmp_path / "large.h")
    table = "name: t\nside: 16\nscratchpad_bytes: 65536\naccumulator_bytes: 16384\nepa: {table: /dev/zero}\n"
    (tmp_path / "t.yaml").write_text(table)
    with pytest.raises(TargetError, match="epa: /dev/zero: cannot read the table: not a regular file"):
        load_target(tmp_path / "t.yaml")


@pytest.mark.parametrize(
    "bomb",
    [
        "".join(f"#define A{i} (A{i + 1}+A{i + 1})\n" for i in range(40)) + "#define A40 1\n",
        "typedef" + " " * 6000 + "x y z\n",
        "/*" * 300_000,
        "#define Q" + " " * 200_000 + "x\n",
        "#define Q (" + " " * 200_000 + "x\n",
        "#define LONG " + "1+" * 3000 + "1\n",
        "#define DEEP " + "(" * 3000 + "1" + ")" * 3000 + "\n",
        "#define SHIFT 1<<63<<63<<63<<63\n",
        "#define POWER " + "9999999999999999999*" * 500 + "1\n",
        "".join(f"#define B{i} B{i + 1}\n" for i in range(5000)),
        "#define ME ME\n",
    ],
)
def test_headers_that_explode(tmp_path: Path, bomb: str) -> None:
    """The header before the bomb still says what it said; exponential or quadratic reading would not end."""
    path = tmp_path / "gemmini_params.h"
    path.write_text(HEADER + bomb)
    expected = target_from_header(Path(__file__).parent / "headers" / "int8_16x16.h")
    assert target_from_header(path) == expected


def test_doubled_macros_are_worked_out(tmp_path: Path) -> None:
    path = tmp_path / "h.h"
    path.write_text("".join(f"#define A{i} (A{i + 1}+A{i + 1})\n" for i in range(40)) + "#define A40 1\n")
    assert read_params_header(path).integers["A0"] == 2**40


def test_typedefs_of_several_words_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "h.h"
    path.write_text(
        "#ifdef X\ntypedef unsigned  long\n  int wide_t; static int f(void) { return 1; }\n"
        "typedef int8_t e;\n"
        "typedef struct { int a; } s;\n"
    )
    assert read_params_header(path).types == {"wide_t": "unsigned long int", "e": "int8_t"}
