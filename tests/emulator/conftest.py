"""The machine that most tests of single instructions run on."""

from __future__ import annotations

import pytest

from tests.emulator.isa import Device, target


@pytest.fixture
def device() -> Device:
    machine = Device(target(), check_regions=False)
    machine.config_ex()
    machine.config_ld(4)
    machine.config_ld(16, state=2)
    machine.config_st(4)
    return machine
