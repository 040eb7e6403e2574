"""What is measured, each a function that returns rows of the table."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.running import ROOT, WITHOUT, Row, accounted_ms, instructions, spread

if TYPE_CHECKING:
    from collections.abc import Callable

UNMARKED = "import pytest\n@pytest.mark.parametrize('n', range({per}))\ndef test_it(n):\n    pass\n"
MARKED = "import pytest\n@pytest.mark.cuda\n@pytest.mark.parametrize('n', range({per}))\ndef test_it(n):\n    pass\n"


def startup(quick: bool) -> list[Row]:
    """Measure an empty session: the plugin's own time, and its share of all instructions."""
    runs = 5 if quick else 20
    with tempfile.TemporaryDirectory() as folder:
        times = accounted_ms(Path(folder), runs)
        without, loaded = (instructions(Path(folder), *extra) for extra in (WITHOUT, ()))
    middle, around = spread(times)
    share = 100 * (loaded / without - 1)
    return [
        Row(
            measure=f"start-up, own time in process, {runs} starts",
            median=f"{middle} ms",
            spread=f"{around} ms",
            target="10 ms",
            met=statistics.median(times) <= 10,
        ),
        Row(
            measure=f"empty session, instructions ({without / 1e6:.0f} M without)",
            median=f"{share:+.2f} %",
            spread="repeats to 1e-8",
            target="+3 %",
            met=share <= 3,
        ),
    ]


def collection(quick: bool) -> list[Row]:
    """Measure `--collect-only` of many tests, unmarked and marked, against the same session without the plugin."""
    files, per = (10, 200) if quick else (40, 500)
    rows = []
    for name, text, target in (("unmarked", UNMARKED, 1.5), ("marked cuda", MARKED, 5.0)):
        with tempfile.TemporaryDirectory() as folder:
            for number in range(files):
                (Path(folder) / f"test_{number}.py").write_text(text.format(per=per))
            without, loaded = (
                instructions(Path(folder), "--collect-only", "-qq", "-W", "ignore", *extra) for extra in (WITHOUT, ())
            )
            empty = Path(folder) / "empty"
            empty.mkdir()
            start = instructions(empty, "--collect-only", "-qq") - instructions(
                empty, "--collect-only", "-qq", *WITHOUT
            )
        share = 100 * (loaded / without - 1)
        alone = 100 * ((loaded - without - start) / without)
        rows.append(
            Row(
                measure=f"collection of {files * per:,} {name} tests, instructions ({without / 1e6:,.0f} M without)",
                median=f"{share:+.2f} %",
                spread=f"{alone:+.2f} % without start-up",
                target=f"+{target} %",
                met=None if quick else share <= target,
            )
        )
    return rows


def discovery(quick: bool) -> list[Row]:
    """Measure PCI discovery on the largest recorded machine, the archive already open."""
    from pytest_gpucoexist.host import open_recording
    from pytest_gpucoexist.probes import discover

    folder = ROOT.parent / "shared" / "machines"
    recordings = sorted(folder.glob("**/*.tar.*"), key=lambda path: path.stat().st_size)
    if not recordings:
        return [Row(measure="discovery", median="no recordings beside this checkout", spread="", target="", met=False)]
    rows = []
    for path in (folder / "vm-2node-switch.tar.gz", folder / "hwloc/linux/40intel64-4n10c+pci-conflicts.tar.xz"):
        host = open_recording(str(path))
        times = _milliseconds(lambda host=host: discover(host), 10 if quick else 50)  # type: ignore[misc]
        cold = _milliseconds(lambda path=path: discover(open_recording(str(path))), 3)  # type: ignore[misc]
        middle, around = spread(times)
        rows.append(
            Row(
                measure=f"discovery from files, {path.name.split('.')[0]} (opening the archive too: {spread(cold)[0]} ms)",
                median=f"{middle} ms",
                spread=f"{around} ms",
                target="20 ms",
                met=statistics.median(times) <= 20,
            )
        )
    return rows


def _milliseconds(call: Callable[[], object], runs: int) -> list[float]:
    call()
    found = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        found.append(1000 * (time.perf_counter() - started))
    return found
