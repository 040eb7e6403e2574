"""The numbers of a run, with a description of the machine: no host name, address or serial number of anybody."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

import pytest_gpucoexist

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["Numbers", "write_numbers"]


class Numbers:
    """Values by test, in the order in which they were measured. Only builtins."""

    def __init__(self, machine: Machine, source: str | None) -> None:
        """`source` is the file that the machine was read from; None: it was discovered here."""
        self.machine = {**_describe(machine), "discovered": source is None}
        self.tests: dict[str, dict[str, Any]] = {}
        self._current: str | None = None

    def begin(self, test: str) -> None:
        """What is added from now on is of this test."""
        self._current = test

    def end(self) -> None:
        """The test is over."""
        self._current = None

    def add(self, **values: Any) -> None:
        """Keep values of the running test."""
        assert self._current is not None
        self.tests.setdefault(self._current, {}).update(values)


def write_numbers(numbers: Numbers, stem: str) -> tuple[str, str]:
    """Write `stem`.json and `stem`.md, and return their paths."""
    document = {"machine": numbers.machine, "tests": numbers.tests}
    with open(f"{stem}.json", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1, ensure_ascii=False)
        file.write("\n")
    with open(f"{stem}.md", "w", encoding="utf-8") as file:
        file.write(_markdown(numbers))
    return f"{stem}.json", f"{stem}.md"


def _describe(machine: Machine) -> dict[str, Any]:
    return {
        "gpus": [_gpu(gpu) for gpu in machine.gpus if gpu.is_compute and gpu.granted],
        "numa_nodes": len(machine.numa_nodes),
        "drivers": {each.name: each.version for each in machine.drivers},
        "simulated": machine.simulated,
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
        "python": platform.python_version(),
        "pytest": pytest.__version__,
        "package": pytest_gpucoexist.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "id": gpu.id,
        "name": gpu.name,
        "arch": gpu.arch,
        "driver": gpu.driver,
        "driver_version": gpu.driver_version,
        "memory_bytes": gpu.memory_total_bytes,
        "numa_node": gpu.numa_node,
        "link_gtps": gpu.link.max_speed_gtps,
        "link_width": gpu.link.max_width,
        "link_gtps_idle": gpu.link.current_speed_gtps,
        "link_width_idle": gpu.link.current_width,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = re.search(r"^(?:model name|Hardware|CPU part)\s*:\s*(.+)$", file.read(), re.MULTILINE)
    except OSError as error:
        return f"not known: {error}"
    return found[1] if found else platform.machine()


def _markdown(numbers: Numbers) -> str:
    machine = numbers.machine
    real = machine["discovered"] and not machine["simulated"]
    lines = ["# Measured on real devices" if real else "# Measured on stand-ins: no device of this machine", ""]
    lines += [f"{key}: {value}  " for key, value in machine.items() if key != "gpus"]
    lines += ["", *_table(machine["gpus"])]
    for test, values in numbers.tests.items():
        lines += ["", f"## {test}", ""]
        plain = {name: value for name, value in values.items() if not _is_table(value)}
        lines += [f"{name}: {value}  " for name, value in plain.items()]
        for name in values.keys() - plain.keys():
            lines += ["", f"{name}:", "", *_table(values[name])]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return lines + [f"| {' | '.join(_cell(row.get(name)) for name in columns)} |" for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")
