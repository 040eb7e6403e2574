"""Every recorded machine that was healthy: trees, and reports of other programs that truths were written for."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucoexist.testing.demo import demo_host
from tests.truth.test_truth import MACHINES, TREES, TRUTHS, name_of, opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.host.base import Host

__all__ = ["HEALTHY", "RECORDED", "TABLE"]

TABLE = Path(__file__).with_name("expected.txt")


def _paths() -> dict[str, Path]:
    found = {name_of(path): path for path in TREES}
    for truth in TRUTHS:
        recording = MACHINES / json.loads(truth.read_text(encoding="utf-8"))["recording"]
        if recording not in found.values():
            found[name_of(truth)] = recording
    return found


RECORDED: dict[str, Callable[[], Host]] = {name: partial(opened, path) for name, path in _paths().items()}
"""By name. None of the recordings is of a machine that somebody called broken: their sources show programs at work."""

HEALTHY: dict[str, Callable[[], Host]] = {"demo": demo_host, **RECORDED}
"""Recordings show a part of a machine each, and little can be decided on them; the demo shows a whole one."""
