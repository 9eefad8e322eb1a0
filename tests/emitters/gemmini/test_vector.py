"""Host operators by the vector unit: under QEMU, with vectors of two lengths, the bits of the C without."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fadiff.costmodel.target.core import Core
from fadiff.costmodel.target.target import Target, TargetError, load_target
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import write_params
from tests.emitters.gemmini.compilers import need, run_compiler, small_schedule
from tests.emitters.gemmini.test_runtime import RUNTIME

COMPILERS = (
    *(("clang", "--target=riscv64-linux-gnu"), ("riscv64-linux-gnu-gcc",)),
    *((f"clang-{version}", "--target=riscv64-linux-gnu") for version in range(22, 16, -1)),
    *((f"riscv64-linux-gnu-gcc-{version}",) for version in (16, 15, 14)),
)
CODE = """
#include <stdio.h>
#include "elementwise.h"
#include "pool.h"
#include "rows.h"
#include "row_factors.h"

enum { ROWS = 3, LENGTH = 75, SIZE = 5 * 5 * 75 };
static int8_t x[SIZE], z[SIZE], y[SIZE], table[256], mask[LENGTH];
static int32_t entries[256];
static float gamma_[LENGTH], beta_[LENGTH], factors[ROWS];
static const int32_t shape[] = {ROWS, LENGTH}, steps[] = {LENGTH, 1}, same[] = {0, 1};
static const loops_t two = {2, shape, {steps, steps}, 2}, three = {2, shape, {steps, steps, steps}, 3};
static const loops_t channels = {2, shape, {steps, same, same, steps}, 4};
static const rows_t rows = {ROWS, LENGTH, 1}, columns = {1, 25, LENGTH};
static const window_t window = {1, 5, 5, LENGTH, 3, 3, {3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}};

static void show(const char *name, int count)
{
    printf("%s", name);
    for (int i = 0; i < count; i++) {
        printf(" %d", y[i]);
    }
    printf("\\n");
}

#define SHOW(call, count) call; show(#call, count)

int main(void)
{
    uint32_t number = 1;
    for (int i = 0; i < SIZE; i++) {
        number = number * 1664525u + 1013904223u;
        x[i] = (int8_t)(number >> 24);
        z[i] = (int8_t)(number >> 16);
        table[i % 256] = (int8_t)(number >> 8);
        mask[i % LENGTH] = i % LENGTH > 60;
        gamma_[i % LENGTH] = (float)(number >> 20) / 100.0f;
        beta_[i % LENGTH] = (float)z[i] / 3.0f;
    }
    for (int i = 0; i < 256; i++) {
        entries[i] = (int32_t)(16777216u >> (255 - i) / 9);
    }
    const int count = ROWS * LENGTH;
    SHOW(lookup(&two, x, table, y), count);
    SHOW(binary_mul(&three, x, z, y, 1.0f, 1.0f, 0.013f, false), count);
    SHOW(binary_mul(&three, x, z, y, 1.0f, 1.0f, 0.5f, true), count);
    SHOW(binary_add(&three, x, z, y, 0.7f, 0.3f, 1.3f, false), count);
    SHOW(binary_sub(&three, x, z, y, 0.7f, 0.3f, 1.3f, true), count);
    SHOW(scale_shift(&channels, x, gamma_, beta_, y, false), count);
    SHOW(softmax(&rows, x, entries, NULL, 1, y, 127.0f), count);
    SHOW(softmax(&rows, x, entries, mask, 1, y, 127.0f), count);
    SHOW(log_softmax(&rows, x, entries, gamma_, LENGTH, 0.7f, 0.0625f, y), count);
    SHOW(layer_norm(&rows, x, gamma_, beta_, y, false, 1e-5, 1e-3, 1e-2), count);
    SHOW(rms_norm(&rows, x, gamma_, beta_, y, false, 1e-5, 1e-3, 1e-2), count);
    SHOW(exponentials(&rows, x, entries, mask, 1, y, factors, 1.0f), count);
    SHOW(reduce_sum(&columns, x, y, 0.07f), LENGTH);
    SHOW(reduce_max(&rows, x, y, 0.9f), ROWS);
    SHOW(max_pool(&window, x, y), 9 * LENGTH);
    SHOW(average_pool(&window, x, y, true, 1.2f), 9 * LENGTH);
    printf("%a %a\\n", (double)factors[0], (double)factors[2]);
    return 0;
}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Without vectors for this machine, and with them for RISC-V."""
    folder = tmp_path_factory.mktemp("vector")
    (folder / "unit.c").write_text(CODE)
    options = ("-std=gnu11", "-O1", "-ffp-contract=off", "-DFADIFF_VECTOR")
    params = write_params(load_target("gemmini-default"), folder)
    source = ("-isystem", params, "-I", RUNTIME, "unit.c", "-lm", "-o")
    done = run_compiler(need("gcc"), *options, *source, "scalar", folder=folder)
    assert done.returncode == 0, done.stderr
    for compiler in COMPILERS:
        if shutil.which(compiler[0]):
            command = (*compiler, *options, "-march=rv64gcv", "-static", *source, "vector")
            done = run_compiler(*command, folder=folder)
            if done.returncode == 0:
                return folder / "scalar", folder / "vector"
    pytest.skip("no compiler with vector intrinsics for riscv64-linux-gnu (clang 17, GCC 14 or newer)")


@pytest.mark.parametrize("length", [128, 256])
def test_vectors_give_the_same_bits(programs: tuple[Path, Path], length: int) -> None:
    scalar, vector = programs
    cpu = f"rv64,v=true,vlen={length},elen=64,vext_spec=v1.0"
    ran = subprocess.run(
        [need("qemu-riscv64"), "-cpu", cpu, vector], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    expected = subprocess.run([scalar], capture_output=True, text=True, check=True).stdout
    assert ran.stdout.splitlines() == expected.splitlines()


def test_a_compiler_without_vectors_is_told(tmp_path: Path) -> None:
    (tmp_path / "unit.c").write_text('#include "vector.h"\n')
    params = write_params(load_target("gemmini-default"), tmp_path)
    command = (need("riscv64-linux-gnu-gcc"), "-march=rv64gc", "-DFADIFF_VECTOR", "-isystem", params)
    done = run_compiler(*command, "-I", RUNTIME, "-c", "unit.c", folder=tmp_path)
    assert done.returncode != 0
    assert "core.vector" in done.stderr


def _with_vectors(preset: str) -> Target:
    return load_target(preset).changed("with-vectors", {"core.vector": 128})


def test_the_target_decides(tmp_path: Path) -> None:
    for target, expected in (
        (load_target("gemmini-default"), False),
        (_with_vectors("gemmini-default"), True),
    ):
        folder = emit(small_schedule(target), model_name="small", out_dir=tmp_path / target.name)
        assert ("#define FADIFF_VECTOR" in (folder / "small.c").read_text()) is expected
        makefile = (folder / "Makefile").read_text()
        assert ("rv64gcv " in makefile, "v=true" in makefile) == (expected, expected)


def test_a_float_target_has_none(tmp_path: Path) -> None:
    path = tmp_path / "float.yaml"
    path.write_text(
        "name: float\nside: 4\nelement_type: float32\nelement_bytes: 4\nscratchpad_bytes: 262144\n"
        "accumulator_bytes: 65536\ncore: {vector: 128}\n"
    )
    with pytest.raises(TargetError, match=r"core\.vector is for element_type int8"):
        load_target(path)


def test_prices_by_operations() -> None:
    """A table by hand: 8 bits loaded, 8 changed, 8 stored, one element gathered; a division stays."""
    assert Core(vector=128).host_cycles("lookup", 100) == pytest.approx(100 * (24 / 128 + 1))
    assert Core(vector=128).host_cycles("division", 1) == Core().host_cycles("division", 1)
