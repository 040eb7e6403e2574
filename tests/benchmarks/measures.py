"""What is measured, each a function that returns rows of the table."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.running import ROOT, Row, Sessions, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.host import Host
    from tests.fakes.machine import FakeMachine

__all__ = ["collection", "discovery", "hanging", "hanging_nvml", "imports", "partitions", "startup"]

RECORDINGS = ROOT.parent / "shared" / "machines"

UNMARKED = "import pytest\n@pytest.mark.parametrize('n', range({per}))\ndef test_it(n):\n    pass\n"
MARKED = "import pytest\n@pytest.mark.cuda\n@pytest.mark.parametrize('n', range({per}))\ndef test_it(n):\n    pass\n"
ONE = "def test_it():\n    pass\n"


@contextlib.contextmanager
def _sessions() -> Iterator[tuple[Sessions, Path]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tests = folder / "tests"
        tests.mkdir()
        yield Sessions(folder), tests


def _share(without: int, loaded: int) -> float:
    return 100 * (loaded / without - 1)


def startup(*, quick: bool) -> list[Row]:
    """Measure an empty session and one with a test: the plugin's own time, and its share of all instructions."""
    runs = 7 if quick else 20
    rows = []
    with _sessions() as (sessions, tests):
        times, parts = sessions.accounted(tests, runs)
        # The target is for a quiet machine; a quick run gives a busy or slower one twice that, and counts instructions.
        allowed_ms = 20 if quick else 10
        rows.append(times.row(f"start-up, own time in process, {runs} starts", allowed_ms, quick=quick))
        for name, milliseconds in sorted(parts.items(), key=lambda part: -part[1]):
            rows.append(Row(measure=f"  of it {name}", median=f"CPU {milliseconds:.2f} ms"))
        without, loaded = sessions.pair(tests)
        rows.append(
            Row(
                measure=f"empty session, instructions ({without / 1e6:.0f} M without)",
                median=f"{_share(without, loaded):+.2f} %",
                target="+3 %",
                met=_share(without, loaded) <= 3,
            )
        )
        if not quick:
            absent = sessions.instructions(tests, loaded=False, installed=False)
            rows.append(
                Row(
                    measure="  installed and not loaded: pytest reads each plugin's list of files",
                    median=f"{_share(absent, without):+.2f} %",
                )
            )
            (tests / "test_one.py").write_text(ONE)
            times, _ = sessions.accounted(tests, runs)
            rows.append(times.row(f"session of one test without a GPU, own time, {runs} starts", 10, quick=quick))
            without, loaded = sessions.pair(tests)
            rows.append(
                Row(
                    measure=f"session of one test without a GPU, instructions ({without / 1e6:.0f} M without)",
                    median=f"{_share(without, loaded):+.2f} %",
                )
            )
    return rows


def imports(*, quick: bool) -> list[Row]:
    """List the modules that an empty session loads because of the plugin, with their own time."""
    del quick
    with _sessions() as (sessions, tests):
        found = sessions.imports(tests)
    foreign = [name for name in found if name.split(".")[0] != "pytest_gpucoexist"]
    return [
        *(
            Row(measure=f"import {name}", median="by importlib" if own is None else f"{own:.2f} ms")
            for name, own in found.items()
        ),
        Row(
            measure="modules of others that an empty session loads",
            median=", ".join(foreign) or "none",
            target="none",
            met=not foreign,
        ),
    ]


def collection(*, quick: bool) -> list[Row]:
    """Measure `--collect-only` of many tests, unmarked and marked, against the same session without the plugin.

    A quick run has too few tests for the share of the whole session to say anything: it judges what each further test
    costs, beyond the first hundred.
    """
    files, per = (2, 500) if quick else (40, 500)
    options = ("--collect-only", "-qq", "-W", "ignore")
    rows = []
    for name, text, target in (("unmarked", UNMARKED, 1.5), ("marked cuda", MARKED, 5.0)):
        with _sessions() as (sessions, tests):
            (tests / "test_first.py").write_text(text.format(per=100))
            first = sessions.pair(tests, *options)
            (tests / "test_first.py").unlink()
            for number in range(files):
                (tests / f"test_{number}.py").write_text(text.format(per=per))
            whole = sessions.pair(tests, *options)
        share = _share(*whole)
        further = _share(whole[0] - first[0], whole[1] - first[1])
        rows.append(
            Row(
                measure=f"collect {files * per:,} {name} tests, instructions ({whole[0] / 1e6:,.0f} M without)",
                median=f"{share:+.2f} %",
                spread=f"{further:+.2f} % each further test",
                target=f"+{target} %{' each further test' if quick else ''}",
                met=(further if quick else share) <= target,
            )
        )
    return rows


def discovery(*, quick: bool) -> list[Row]:
    """Measure discovery from files alone on the largest recorded machines: by PCI functions, and by GPUs."""
    from pytest_gpucoexist.host import open_recording
    from pytest_gpucoexist.probes import discover

    rows = []
    for what, relative in LARGEST.items():
        path = RECORDINGS / relative
        if not path.exists():
            rows.append(Row(measure=f"discovery: {relative} is not beside this checkout", median="", met=False))
            continue
        host = open_recording(str(path))
        machine = discover(host)
        times = timed(lambda host=host: discover(host), 20 if quick else 50)  # type: ignore[misc]
        label = f"discovery, {what}: {path.name.split('.')[0]}, {len(machine.gpus)} GPUs"
        rows.append(times.row(label, 20, quick=quick))
    return rows


LARGEST = {
    "most PCI functions (137)": "hwloc/linux/32em64t-2n8c+dax+nvme+mic+dimms.tar.xz",
    "most GPUs on PCI": "vm-2node-switch.tar.gz",
}


def partitions(*, quick: bool) -> list[Row]:
    """Show, without a target, what 63 partitions in KFD's topology cost: 4,000 files, nothing of PCI."""
    from pytest_gpucoexist.host import open_recording
    from pytest_gpucoexist.probes import discover

    path = RECORDINGS / "kfd" / "topo-mi300-cpx.tar.xz"
    if not path.exists():
        return []
    host = open_recording(str(path))
    times = timed(lambda: discover(host), 3 if quick else 20)
    return [replace(times.row("KFD topology of 63 partitions (4,000 files)", 0, quick=quick), target="", met=None)]


@contextlib.contextmanager
def hanging_nvml() -> Iterator[tuple[Host, Host, FakeMachine]]:
    """Give a machine by its files alone, the same with an NVML to ask that hangs for 60 s, and that fake NVML."""
    from pytest_gpucoexist.testing import a_machine
    from tests.fakes.build import nvml_library
    from tests.fakes.machine import FakeMachine
    from tests.vendor.hosts import asking_here

    files = a_machine().with_gpu("rtx4090").host()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fake = FakeMachine(folder, {"LD_LIBRARY_PATH": str(nvml_library(folder))})
        fake.fault("nvidia.nvmlInitWithFlags", "hang 60")
        before = dict(os.environ)
        os.environ.update(fake.environ)
        try:
            yield files, asking_here(files), fake
        finally:
            os.environ.clear()
            os.environ.update(before)


def hanging(*, quick: bool) -> list[Row]:
    """Measure discovery while NVML hangs for 60 s: it costs its deadline, and the facts of PCI are there."""
    from pytest_gpucoexist.probes import discover

    # A quick run shares its machine with whatever else CI does: it only tells a deadline kept from one that was not.
    deadline_s, allowed_s = 2.0, 3.0 if quick else 0.2
    with hanging_nvml() as (files, host, fake):
        started = time.perf_counter()
        machine = discover(host, ask=["nvidia"], deadline_s=deadline_s)
        seconds = time.perf_counter() - started
        called = fake.log.read_text().split() if fake.log.exists() else []
    (gpu,) = machine.gpus
    there = (
        gpu.pci_address == discover(files).gpus[0].pci_address and gpu.facts["memory_total_bytes"].status == "broken"
    )
    hung = "nvmlInitWithFlags" in " ".join(called)
    return [
        Row(
            measure=f"NVML hangs for 60 s, deadline {deadline_s:g} s; PCI facts {'there' if there else 'MISSING'}",
            median=f"{seconds:.2f} s",
            target=f"{deadline_s + allowed_s:g} s",
            met=there and hung and seconds <= deadline_s + allowed_s,
        )
    ]
