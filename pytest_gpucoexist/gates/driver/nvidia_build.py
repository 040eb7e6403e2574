"""The NVIDIA driver's build: open or proprietary, and the firmware that goes with its version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.driver.generations import before_turing, is_blackwell
from pytest_gpucoexist.gates.driver.versions import loaded_version
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.ondisk import release
from pytest_gpucoexist.gates.kernel_module.rules import in_container
from pytest_gpucoexist.gates.kernel_module.state import module_state
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.nvidia_driver import VERSION_FILE, parse_version
from pytest_gpucoexist.probes.reader import Bad, excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["firmware", "flavour"]

_GPUS = "/proc/driver/nvidia/gpus"


@gate(
    "drv.nv.flavor",
    group="driver",
    title="The NVIDIA kernel modules can run these GPUs",
    reads="the first line of /proc/driver/nvidia/version: `Open Kernel Module` or not; the GPUs' PCI ids",
    criterion="Blackwell and later have the open modules, cards before Turing the proprietary ones",
    why="the wrong kind of modules loads, and then refuses the card: NVML finds no device",
    action="install the other kind of kernel modules of the same release",
    source="NVIDIA/open-gpu-kernel-modules#322, #230",
    vendors=("nvidia",),
)
def flavour(subject: Subject) -> Iterator[Finding]:
    """Compare the kind of modules with what each GPU needs."""
    text = subject.read(VERSION_FILE, 4096)
    if text.text is None:
        state = module_state(subject, "nvidia")
        if text.status == "absent" and state == "absent":
            yield skipped("the NVIDIA driver is not loaded")
        else:
            yield unknown(f"{VERSION_FILE}: {text.detail}")
        return
    parsed = parse_version(text.text)
    if parsed is None:
        yield unknown(f"{VERSION_FILE} makes no sense: {excerpt(text.text)}")
        return
    version, kind = parsed
    evidence = Evidence(source=VERSION_FILE, found=f"{kind} {version}")
    for gpu in subject.functions("nvidia"):
        if gpu.driver not in {"nvidia", None}:
            yield skipped(f"{gpu.driver} holds it", on=[gpu])
        elif kind == "open" and before_turing(gpu):
            yield warned(f"the open modules {version} cannot run a GPU before Turing", evidence, on=[gpu])
        elif kind == "proprietary" and is_blackwell(gpu):
            yield warned(
                f"the proprietary modules {version} cannot run Blackwell: it needs the open ones", evidence, on=[gpu]
            )
        else:
            yield passed(f"the {kind} kernel modules {version} are loaded", evidence, on=[gpu])
    if not subject.functions("nvidia"):
        yield passed(f"the {kind} kernel modules {version} are loaded", evidence)


@gate(
    "drv.nv.gsp_fw",
    group="driver",
    title="The firmware of the loaded NVIDIA driver is installed",
    reads="nvidia/VERSION/gsp*.bin in the kernel's firmware folders; `GPU Firmware` in /proc/driver/nvidia/gpus",
    criterion="the folder of the loaded version has the GSP's firmware, where the GPU uses it",
    why="a GPU is initialised anew at its first use, and fails when the firmware of exactly this version is missing",
    action="install the firmware package of the loaded version, or reboot into the version that is installed",
    source="ublue-os/bazzite#2668 (error -2 loading nvidia/570.144/gsp_ga10x.bin)",
    vendors=("nvidia",),
    severity="fail",
)
def firmware(subject: Subject) -> Iterator[Finding]:
    """Look for the firmware of the loaded version where the kernel looks."""
    loaded = loaded_version(subject)
    if isinstance(loaded, Bad):
        if loaded.status == "absent":
            yield skipped("the NVIDIA driver is not loaded")
        else:
            yield unknown(loaded.detail)
        return
    container = in_container(subject)
    if container is not None:
        yield skipped(f"a container ({container}) does not hold the firmware that the host's kernel loads")
        return
    gpus = [gpu for gpu in subject.functions("nvidia") if gpu.driver == "nvidia" and _uses_gsp(subject, gpu)]
    if not gpus:
        yield skipped("no GPU here uses a GSP")
        return
    folders = _folders(subject)
    present = [folder for folder in folders if subject.host.exists(folder)]
    if not present:
        yield unknown(f"none of the kernel's firmware folders is here: {', '.join(folders)}", on=gpus)
        return
    for folder in present:
        path = f"{folder}/nvidia/{loaded.found}"
        names = [
            name
            for name in subject.names(path)
            if re.fullmatch(r"gsp(_\w+)?\.bin(\.\w+)?", name) and subject.host.exists(f"{path}/{name}")
        ]
        if names:
            found = Evidence(source=path, found=", ".join(names))
            yield passed(f"the firmware of {loaded.found} is installed", loaded, found, on=gpus)
            return
    others = [name for folder in present for name in subject.names(f"{folder}/nvidia") if name[:1].isdigit()]
    where = Evidence(
        source=f"{present[-1]}/nvidia",
        found=f"versions: {', '.join(others) or 'none'}",
        expected=f"{loaded.found}/gsp_*.bin",
    )
    yield failed(f"the GSP firmware of the loaded driver {loaded.found} is not installed", loaded, where, on=gpus)


def _uses_gsp(subject: Subject, gpu: Gpu) -> bool:
    """Whether the GPU runs on firmware: the driver says which, or `N/A` (nv-procfs.c); open modules always use it."""
    text = subject.read(f"{_GPUS}/{gpu.pci_address}/information", 4096).text or ""
    match = re.search(r"^GPU Firmware:\s*(\S+)", text, re.MULTILINE)
    if match is not None:
        return match[1] != "N/A"
    parsed = parse_version(subject.read(VERSION_FILE, 4096).text or "")
    return parsed is not None and parsed[1] == "open"


def _folders(subject: Subject) -> list[str]:
    """Return where the kernel looks for firmware, in its order (drivers/base/firmware_loader/main.c, `fw_path`)."""
    own = (subject.read("/sys/module/firmware_class/parameters/path", 4096).text or "").strip()
    kernel = release(subject)
    paths = [own] if own.startswith("/") else []
    paths += [f"/lib/firmware/updates/{kernel}"] if kernel else []
    paths += ["/lib/firmware/updates"]
    paths += [f"/lib/firmware/{kernel}"] if kernel else []
    return [*(path.rstrip("/") for path in paths), "/lib/firmware"]
