"""The trials of the levels `transfer` and `full`, and what their gates say: nothing arrived wrong, no gate blocks."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("numpy", reason="needs numpy")

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.model.trials import Trials
    from tests.hardware.measured import Numbers

pytestmark = pytest.mark.hardware

LEVEL: Any = os.environ.get("GPUCOEXIST_HARDWARE_LEVEL") or "full"
BUDGET_S = float(os.environ.get("GPUCOEXIST_HARDWARE_BUDGET") or 60)
TOLERANCE = 1.02  # the clock of the device's events


def test_of_one_device(each_gpu: Gpu, gpu_machine: Machine, numbers: Numbers) -> None:
    trials = _tried([each_gpu], gpu_machine)
    verdicts = _judged(trials, [each_gpu], gpu_machine)
    numbers.add(device=each_gpu.id, **_rows(trials), verdicts=verdicts)
    _all_right(trials, verdicts, {"roundtrip"})


def test_across_vendors(gpu_pair: tuple[Gpu, Gpu], gpu_machine: Machine, numbers: Numbers) -> None:
    trials = _tried(list(gpu_pair), gpu_machine)
    verdicts = _judged(trials, gpu_pair, gpu_machine)
    numbers.add(devices=[gpu.id for gpu in gpu_pair], **_rows(trials), verdicts=verdicts)
    _all_right(trials, verdicts, {"roundtrip", "staged"})
    assert {"xfer.roundtrip", "xfer.staged.cross"} <= {each["gate"] for each in verdicts if each["status"] == "PASS"}


def _tried(gpus: Sequence[Gpu], machine: Machine) -> Trials:
    from pytest_gpucoexist.host import local_host
    from pytest_gpucoexist.processes.opening import OpenedProcess, open_process
    from pytest_gpucoexist.trials.run import try_devices

    host = local_host()

    def opener(some: Sequence[Gpu]) -> OpenedProcess:
        return open_process(some, machine, some[0].vendor, host=host)

    return try_devices(
        gpus, host=host, opener=opener, level=LEVEL, budget_s=BUDGET_S, simulated=machine.simulated, progress=print
    )


def _judged(trials: Trials, gpus: Sequence[Gpu], machine: Machine) -> list[dict[str, Any]]:
    """Let the gates of transfers judge; rates that they warn of are written down, and fail nothing."""
    from pytest_gpucoexist.gates.catalogue import all_gates
    from pytest_gpucoexist.gates.runner import judge
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.host import local_host

    subject = Subject(host=local_host(), machine=replace(machine, gpus=tuple(gpus)), level=trials.level, trials=trials)
    judgement = judge(subject, gates=[each for each in all_gates() if each.level in {"transfer", "full"}])
    return [
        {
            "gate": each.id,
            "status": each.status,
            "blocks": each.blocks,
            "devices": ", ".join(each.devices),
            "reason": each.reason,
        }
        for each in judgement.verdicts
    ]


def _all_right(trials: Trials, verdicts: list[dict[str, Any]], kinds: set[str]) -> None:
    assert [each for each in verdicts if each["blocks"] or each["status"] == "ERROR"] == []
    assert [wrong.sentence for each in trials.integrity for wrong in each.wrong] == []
    assert kinds <= {each.kind for each in trials.integrity}
    assert [each.reason for each in trials.untried if each.status == "ERROR"] == []
    assert trials.facts["host_canary"]["changed"] == []
    for sample in trials.samples:
        assert sample.bytes_per_s
        assert sample.allowed_bytes_per_s is None or sample.bytes_per_s <= TOLERANCE * sample.allowed_bytes_per_s, (
            f"{sample.kind} {sample.source} -> {sample.target}: faster than the link"
        )


def _rows(trials: Trials) -> dict[str, Any]:
    integrity = [
        {"kind": each.kind, "source": each.source, "target": each.target, "route": each.route,
         "sizes": ", ".join(map(str, each.sizes)), "wrong": "; ".join(wrong.kind for wrong in each.wrong)}
        for each in trials.integrity
    ]  # fmt: skip
    samples = [
        {"kind": each.kind, "source": each.source, "target": each.target, "size_bytes": each.size_bytes,
         "gbps": (each.bytes_per_s or 0) / 1e9, "variation": each.variation, "clock": each.clock,
         "link_gbps": None if each.allowed_bytes_per_s is None else each.allowed_bytes_per_s / 1e9}
        for each in trials.samples
    ]  # fmt: skip
    untried = [{"kind": each.kind, "status": each.status, "reason": each.reason} for each in trials.untried]
    return {"duration_s": trials.duration_s, "integrity": integrity, "samples": samples, "untried": untried}
