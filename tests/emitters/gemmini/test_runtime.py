"""The C that every firmware brings: each header on its own, and numbers against numpy."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

import fadiff.emitters.gemmini
from fadiff.costmodel.target.target import load_target
from fadiff.emulator.build import INCLUDE, write_params
from tests.emitters.gemmini.compilers import STRICT, need, run_compiler

RUNTIME = Path(fadiff.emitters.gemmini.__file__).parent / "runtime"
HEADERS = sorted(path.name for path in RUNTIME.glob("*.h"))


def compile_unit(target: str, code: str, folder: Path, *flags: str) -> Path:
    (folder / "unit.c").write_text(code)
    params = write_params(load_target(target), folder)
    command = [
        *("-std=gnu11", "-O2"),
        *flags,
        *STRICT,
        "-isystem",
        params,
        "-isystem",
        INCLUDE,
        "-I",
        RUNTIME,
        "unit.c",
        "-o",
        "unit.so",
    ]
    done = run_compiler(need("gcc"), *command, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "unit.so"


@pytest.mark.parametrize("target", ["gemmini-default", "gemmini-fp32"])
@pytest.mark.parametrize("header", HEADERS)
def test_a_header_compiles_alone(header: str, target: str, tmp_path: Path) -> None:
    """Without warnings, though nothing of it is used."""
    compile_unit(
        target, f'#include "{header}"\nint unit(void);\nint unit(void) {{ return 0; }}\n', tmp_path, "-c"
    )


def test_elements_round_to_even_and_saturate(tmp_path: Path) -> None:
    code = '#include "elements.h"\nvoid unit(const float *x, elem_t *y, int count);\n'
    code += "void unit(const float *x, elem_t *y, int count)\n"
    code += "{\n    for (int i = 0; i < count; i++) {\n        y[i] = to_elem(x[i]);\n    }\n}\n"
    library = ctypes.CDLL(str(compile_unit("gemmini-default", code, tmp_path, "-shared", "-fPIC")))
    ties = np.arange(-140, 140, 0.5, np.float32)
    x = np.concatenate(
        [ties, np.nextafter(ties, np.float32(np.inf)), np.float32([1e30, -1e30, np.inf, -np.inf])]
    )
    y = np.empty(len(x), np.int8)
    library.unit(x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), len(x))
    np.testing.assert_array_equal(y, np.clip(np.rint(x), -128, 127).astype(np.int8))


def test_words_set_and_copy_what_bytes_would(tmp_path: Path) -> None:
    """Every alignment of both sides, lengths around a word, and nothing beside them."""
    folder = tmp_path / "words"
    folder.mkdir()
    names = ("-Dmemset=set_words", "-Dmemcpy=copy_words")
    source = (RUNTIME / "words.c").read_text()
    library = ctypes.CDLL(
        str(compile_unit("gemmini-default", source, folder, "-shared", "-fPIC", "-fno-builtin", *names))
    )
    pointer = ctypes.c_void_p
    library.set_words.argtypes = [pointer, ctypes.c_int, ctypes.c_size_t]
    library.copy_words.argtypes = [pointer, pointer, ctypes.c_size_t]
    source_bytes = np.arange(1, 65, dtype=np.uint8)
    for to in range(8):
        for nbytes in (*range(18), 40):
            target = np.zeros(64, np.uint8)
            library.set_words(target.ctypes.data + to, -3, nbytes)
            expected = np.zeros(64, np.uint8)
            expected[to : to + nbytes] = 253
            np.testing.assert_array_equal(target, expected)
            for start in range(8):
                library.copy_words(target.ctypes.data + to, source_bytes.ctypes.data + start, nbytes)
                expected[to : to + nbytes] = source_bytes[start : start + nbytes]
                np.testing.assert_array_equal(target, expected)
