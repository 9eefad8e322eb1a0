"""The self-test finds features that the hardware lacks, as hardware lacks them: silently."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import include_flags, link_flags
from tests.emitters.gemmini.compilers import STRICT, need, run_compiler, small_schedule
from tests.emitters.gemmini.gemmini_cases import layer_case

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
NO_ROW_PACKING = "if (funct == 0 && (rs1 & 3) == 1) { rs1 &= ~UINT64_C(0xff00); }"


def _packing() -> Schedule:
    for seed in range(300):
        case = layer_case(random.Random(seed))
        if case is not None and any(m.rows.S > 1 for m in case.schedule.mappings.values()):
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


def test_what_the_hardware_lacks_is_found(tmp_path: Path) -> None:
    schedule = _packing()
    firmware = emit(schedule, model_name="net", out_dir=tmp_path / "firmware")
    assert _self_test(firmware, schedule, "") == 0
    assert _self_test(firmware, schedule, NO_ROW_PACKING) == 4


def test_nothing_to_test(tmp_path: Path) -> None:
    schedule = small_schedule()
    firmware = emit(schedule, model_name="net", out_dir=tmp_path / "firmware")
    assert _self_test(firmware, schedule, NO_ROW_PACKING) == 0
