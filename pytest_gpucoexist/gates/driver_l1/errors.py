"""What NVML says of single boards: lost, to be reset, corrupted, and what the driver itself wants done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.boards import Board, boards, judge_boards, whole
from pytest_gpucoexist.gates.driver_l1.answers import driven
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.vendors import address_of, devices, vendor_reply
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.host.base import HelperReply
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["silent"]

# nvml.h, nvmlReturn_t.
_FATAL = {
    14: ("its infoROM is corrupted", "Reset the GPU; if it comes back, replace the board"),
    15: (
        "the GPU is lost: it has fallen off the bus",
        "Look for Xid 79 in the kernel log, reboot, check power and slot",
    ),
    16: ("the GPU has to be reset", "Reset it when nothing uses it (nvidia-smi --gpu-reset), or reboot"),
}
_WORDS = {"infoROM": 14, "GPU is lost": 15, "requires restart": 16, "requires reset": 16}

# nvml.h, nvmlDeviceGpuRecoveryAction_t.
_RECOVERY = {
    1: "reset the GPU",
    2: "reboot the machine",
    3: "end all work between this GPU and its peers",
    4: "end all work between this GPU and its peers, then reset it",
    5: "recover the IMEX domain",
    6: "reset the GPU's PCIe bus",
    7: "reboot the machine",
}


@gate(
    "drv.nv.nvml_errors",
    group="driver",
    title="NVML can ask each GPU",
    reads="NVML: the handle of each GPU, and its memory; the codes of what fails",
    criterion="no GPU is lost, waits for a reset, or has a corrupted infoROM",
    why="Such a GPU takes work and never finishes it.",
    action="Reset the GPU, or reboot; replace the board when it comes back",
    source="facebookresearch/gcm gcm/health_checks/checks/check_nvidia_smi.py",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
    blocking=True,
)
def nvml_errors(subject: Subject) -> Iterator[Finding]:
    """Judge boards that NVML lists by their cells, and those that it cannot ask by their fault."""
    reply = vendor_reply(subject, "nvidia")
    said = dict(silent(subject, reply))
    for each in boards(subject, "nvidia"):
        if isinstance(each, Board):
            yield _answering(each)
        elif not set(each.devices) & {key for keys in said.values() for key in keys}:
            yield each
    for index, keys in said.items():
        fault = devices(reply)[index].get("fault")
        on = [gpu for gpu in subject.gpus("nvidia") if gpu.key in keys]
        yield _faulty(fault if isinstance(fault, dict) else {}, index, on)
    if not subject.gpus("nvidia"):
        yield skipped("no NVIDIA GPU here")


def silent(subject: Subject, reply: HelperReply) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Give the index of each device that NVML counts and cannot ask, with the keys of the devices that it must be.

    NVML counts in the order of the bus, so as many functions of its driver as it cannot ask are those it leaves out.
    Where the numbers differ, each of the missing ones is suspected.
    """
    known = {address_of(device) for device in devices(reply)}
    faulty = [at for at, device in enumerate(devices(reply)) if isinstance(device.get("fault"), dict)]
    missing: dict[str, list[str]] = {}
    for gpu in driven(subject, "nvidia"):
        if gpu.pci_address is not None and gpu.pci_address not in known:
            missing.setdefault(gpu.pci_address, []).append(gpu.key)
    keys = list(missing.values())
    for place, index in enumerate(faulty):
        yield index, tuple(keys[place] if len(keys) == len(faulty) else [key for each in keys for key in each])


def _faulty(fault: Mapping[str, Any], index: int, on: list[Gpu]) -> Finding:
    detail = str(fault.get("detail"))
    evidence = Evidence(source=f"NVML: handle of device {index}", found=detail, expected="a handle")
    told = fault.get("code")
    by_words = next((number for words, number in _WORDS.items() if words in detail), None)
    code = told if isinstance(told, int) and told in _FATAL else by_words
    if code is None:
        return warned(f"NVML counts it and cannot ask it: {detail}", evidence, on=on)
    words, action = _FATAL[code]
    if not on:
        # Blocking without a device would take out the others, which answer.
        return failed(f"device {index} of NVML: {words}", evidence, action=action, blocking=False)
    return failed(words, evidence, on=on, action=action)


def _answering(board: Board) -> Finding:
    """Judge a board by its memory and infoROM; other values fail for other reasons, by themselves."""
    memory = board.cells.get("memory")
    if isinstance(memory, dict) and "value" in memory:
        evidence = board.evidence("memory", "an answer", "an answer")
        return passed("NVML can ask it", evidence, on=board.on)
    cell: Mapping[str, Any] = memory if isinstance(memory, dict) else {}
    detail = str(cell.get("detail"))
    evidence = board.evidence("memory", detail, "an answer")
    code = cell.get("code")
    if isinstance(code, int) and code in _FATAL:
        words, action = _FATAL[code]
        return failed(words, evidence, on=board.on, action=action)
    if cell.get("status") == "unsupported":
        return passed("NVML can ask it; it has no memory of its own", evidence, on=board.on)
    if cell.get("status") == "broken":
        return warned(f"NVML cannot ask its memory: {detail}", evidence, on=board.on)
    return unknown(f"its memory could not be asked: {detail}", evidence, on=board.on)


@gate(
    "drv.nv.recovery_action",
    group="driver",
    title="The driver wants no recovery",
    reads="NVML: the recovery action that the driver recommends",
    criterion="none",
    why="The driver knows that the GPU cannot go on: what runs on it fails or hangs.",
    action="Do what the driver recommends",
    source="NVIDIA/DCGM nvvs/src/Software.cpp; nvml.h nvmlDeviceGpuRecoveryAction_t",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
    blocking=True,
)
def recovery_action(subject: Subject) -> Iterator[Finding]:
    """Say what the driver recommends, in words."""

    def judge(board: Board) -> Finding:
        number = whole(board.health("recovery_action"), "the recovery action")
        evidence = board.evidence("recovery action", number, "0 (none)")
        if number == 0:
            return passed("the driver wants no recovery", evidence, on=board.on)
        if number not in _RECOVERY:
            return unknown(f"the driver recommends action {number}, which is not known here", evidence, on=board.on)
        words = _RECOVERY[number]
        return failed(f"the driver wants a recovery: {words}", evidence, on=board.on, action=words.capitalize())

    yield from judge_boards(subject, "nvidia", judge)


@gate(
    "drv.nv.inforom",
    group="driver",
    title="The infoROM is valid",
    reads="NVML: nvmlDeviceValidateInforom",
    criterion="valid, or a board without one",
    why="The board's own record of its errors and settings is damaged: retired memory may come back into use.",
    action="Replace the board",
    source="NVIDIA/DCGM nvvs/src/Software.cpp checkInforom",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
)
def inforom(subject: Subject) -> Iterator[Finding]:
    """Look at the checksum that NVML verifies."""

    def judge(board: Board) -> Finding:
        state = board.health("inforom")
        evidence = board.evidence("infoROM", state, "valid")
        if state == "valid":
            return passed("the infoROM is valid", evidence, on=board.on)
        if state != "corrupted":
            raise ValueError(f"the infoROM is {state!r:.60}")
        return failed("the infoROM is corrupted", evidence, on=board.on)

    yield from judge_boards(subject, "nvidia", judge)
