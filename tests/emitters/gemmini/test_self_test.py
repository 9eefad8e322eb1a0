"""The self-test finds features that the hardware lacks, as hardware lacks them: silently."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import include_flags, link_flags
from tests.emitters.gemmini.compilers import STRICT, need, run_compiler, small_schedule
from tests.emitters.gemmini.gemmini_cases import held_case, layer_case

PROGRAM = """
#include "net.h"
#include <stdint.h>
#include <stdio.h>
uint64_t fadiff_rocc(uint32_t funct, uint64_t rs1, uint64_t rs2);
uint64_t issue(uint32_t funct, uint64_t rs1, uint64_t rs2);
uint64_t issue(uint32_t funct, uint64_t rs1, uint64_t rs2)
{
    HARDWARE;
    return fadiff_rocc(funct, rs1, rs2);
}
int main(void) { printf("%d", net_self_test()); return 0; }
"""
HARDWARE = {
    "no STORE_SPAD": "if (funct == 23) { return 0; }",
    "no operands in the accumulator": "if (funct == 4) { rs1 &= ~(UINT64_C(1) << 31); }",
    "no row packing": "if (funct == 0 && (rs1 & 3) == 1) { rs1 &= ~UINT64_C(0xff00); }",
}


def _schedule(wanted: str) -> Schedule:
    for seed in range(300):
        case = (layer_case if wanted == "row packing" else held_case)(random.Random(seed))
        if case is None:
            continue
        group = case.schedule.groups[0]
        found = {
            "scratchpad": group.in_scratchpad and not group.in_accumulator,
            "accumulator": group.in_accumulator and not group.in_scratchpad,
            "row packing": any(m.rows.S > 1 for m in case.schedule.mappings.values()),
        }
        if found[wanted]:
            return case.schedule
    raise AssertionError("no such case")


def _self_test(firmware: Path, schedule: Schedule, hardware: str) -> int:
    (firmware / "hardware.c").write_text(PROGRAM.replace("HARDWARE", hardware))
    flags = ("-std=gnu11", *STRICT, *include_flags(schedule.target, firmware))
    for source, defined in (("net_self_test.c", ["-Dfadiff_rocc=issue"]), ("hardware.c", [])):
        done = run_compiler(need("gcc"), *flags, *defined, "-c", source, folder=firmware)
        assert done.returncode == 0, done.stderr
    objects = ("net_self_test.o", "hardware.o", *link_flags())
    assert run_compiler(need("gcc"), *objects, "-o", "hardware", folder=firmware).returncode == 0
    ran = subprocess.run([firmware / "hardware"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


@pytest.mark.parametrize(
    ("uses", "lacks", "code"),
    [
        ("scratchpad", "no STORE_SPAD", 1),
        ("accumulator", "no operands in the accumulator", 2),
        ("row packing", "no row packing", 4),
    ],
)
def test_hardware_that_lacks_what_the_schedule_uses(tmp_path: Path, uses: str, lacks: str, code: int) -> None:
    schedule = _schedule(uses)
    firmware = emit(schedule, model_name="net", out_dir=tmp_path / "firmware")
    assert _self_test(firmware, schedule, "") == 0
    assert _self_test(firmware, schedule, HARDWARE[lacks]) & code == code
    others = [text for name, text in HARDWARE.items() if name != lacks]
    assert _self_test(firmware, schedule, " ".join(others)) & code == 0


def test_nothing_to_test(tmp_path: Path) -> None:
    schedule = small_schedule()
    firmware = emit(schedule, model_name="net", out_dir=tmp_path / "firmware")
    assert _self_test(firmware, schedule, " ".join(HARDWARE.values())) == 0
