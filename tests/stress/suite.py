"""The suite that every session runs: tests of some milliseconds that hold shares, whole devices, several of them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing import a_machine

if TYPE_CHECKING:
    from pytest_gpucoexist.testing import MachineBuilder

__all__ = ["MACHINE", "memory_mib", "write_suite"]

MACHINE = "machine.tar.gz"
MIB = 2**20

_PER_FILE = 50

_HEAD = """import time

import pytest

CASES = [
{cases}]


@pytest.mark.parametrize(("seconds", "child"), CASES)
def test_it({fixture}, leave, seconds, child):
    leave(child, 0.4)
    time.sleep(seconds)
"""

_KINDS = (
    # mark, share in MiB, weight
    ("gpu", None, 3),
    ("cuda", None, 3),
    ("rocm", None, 2),
    ("cuda(count=2)", None, 1),
    ("cross_vendor", None, 1),
    ('gpu(memory="2 GiB")', 2048, 4),
    ('gpu(memory="5 GiB")', 5120, 4),
    ('cuda(memory="9 GiB")', 9216, 4),
    ('rocm(memory="7 GiB")', 7168, 3),
    ('cuda(memory="12 GiB", count=2)', 12288, 2),
    ('cross_vendor(memory="3 GiB")', 3072, 2),
    ('gpu(memory="4 GiB", exclusive=True)', None, 2),
)


def _machine() -> MachineBuilder:
    return a_machine("stress").with_gpu("rtx4090").with_gpu("rtx3090").with_gpu("rx7900xtx")


def memory_mib() -> dict[str, int]:
    """Return what each device of the machine has, by its PCI address."""
    gpus = discover(_machine().host(), ask=("amd", "nvidia")).gpus
    return {gpu.pci_address or gpu.id: (gpu.memory_total_bytes or 0) // MIB for gpu in gpus}


def write_suite(folder: Path, count: int, seed: int) -> list[str]:
    """Write `count` tests and the machine. Returns the ids of the tests; the same seed gives the same tests."""
    _machine().write_archive(str(folder / MACHINE))
    shutil.copy(Path(__file__).with_name("holder.py"), folder / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    draw = random.Random(seed)
    nodeids = []
    for number in range(-(-count // _PER_FILE)):
        wide = number % 3 == 2  # a device for the whole module
        lines = [_case(draw, index, wide=wide) for index in range(min(_PER_FILE, count - number * _PER_FILE))]
        name = f"test_{number:02}.py"
        text = _HEAD.format(cases="".join(lines), fixture="module_held" if wide else "held")
        (folder / name).write_text(text, encoding="utf-8")
        nodeids += [f"{name}::test_it[{index:03}]" for index in range(len(lines))]
    return nodeids


def _case(draw: random.Random, index: int, *, wide: bool) -> str:
    mark, share, _ = ("gpu", None, 1) if wide else draw.choices(_KINDS, [weight for *_, weight in _KINDS])[0]
    seconds = draw.choice((0.002, 0.005, 0.01, 0.02, 0.02, 0.1)) / (5 if wide else 1)
    child = draw.choices(("", "fork", "exec"), (20, 1, 1))[0]
    marks = f"pytest.mark.{mark}" + (f", pytest.mark.share({share})" if share else "")
    return f'    pytest.param({seconds}, "{child}", id="{index:03}", marks=[{marks}]),\n'
