"""Modules that must be in the kernel for compute, and those that get in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.asked import promise_of
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.advice import keep_out
from pytest_gpucoexist.gates.kernel_module.rules import module_rules
from pytest_gpucoexist.gates.kernel_module.state import is_in, module_state
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix
from pytest_gpucoexist.probes.reader import Bad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.kernel_module.state import ModuleState
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["amd_required", "nvidia_foreign", "nvidia_required"]

_FOREIGN = ("nouveau", "nova_core", "nova_drm", "nvidiafb", "rivafb")
_NVIDIA_MODPROBE = (
    "/usr/bin/nvidia-modprobe",
    "/usr/sbin/nvidia-modprobe",
    "/run/current-system/sw/bin/nvidia-modprobe",
)
_KFD = "/sys/class/kfd/kfd/topology/generation_id"


@gate(
    "kmod.nv.foreign_loaded",
    group="kernel-module",
    title="No other driver of NVIDIA's GPUs is loaded beside nvidia",
    reads="/sys/module and /proc/modules: nouveau, nova_core, nova_drm, nvidiafb, rivafb",
    criterion="none is loaded, unless it drives a card of its own",
    why="which driver takes the card then depends on which is loaded first: it differs from boot to boot",
    action="keep it out in modprobe.d, rebuild the initramfs and reboot",
    source="NVIDIA/DCGM nvvs/src/Software.cpp; beclab/Olares#3963",
    vendors=("nvidia",),
)
def nvidia_foreign(subject: Subject) -> Iterator[Finding]:
    """Look for modules that could take an NVIDIA card and hold none."""
    wanted = subject.wanted("nvidia")
    if wanted is None:
        yield skipped("nothing here asks for NVIDIA GPUs")
        return
    states = {name: module_state(subject, name) for name in _FOREIGN}
    for state in states.values():
        if isinstance(state, Bad):
            yield unknown(f"which modules are loaded is not known: {state.detail}")
            return
    loaded = [name for name, state in states.items() if state != "absent"]
    holding = {(gpu.driver or "").lower().replace("-", "_") for gpu in subject.machine.gpus if gpu.vendor == "nvidia"}
    for name in loaded:
        evidence = Evidence(source=f"/sys/module/{name}", found=str(states[name]), expected="not loaded")
        if name in holding:
            yield passed(f"{name} is loaded and holds a card; drv.bound_driver judges that", evidence)
        elif name == "nova_drm" and {"nova_core", "novacore"} & holding:
            yield passed("nova_drm belongs to nova_core, which holds a card; drv.bound_driver judges that", evidence)
        else:
            yield warned(f"{name} is loaded beside nvidia and holds no card", evidence, fix=keep_out(subject, name))
    if not loaded:
        yield passed("only nvidia is loaded", Evidence(source="/sys/module", found=f"none of {', '.join(_FOREIGN)}"))


@gate(
    "kmod.nv.required",
    group="kernel-module",
    title="nvidia and nvidia_uvm are loaded",
    reads="/sys/module/nvidia/initstate and /sys/module/nvidia_uvm/initstate; whether nvidia-modprobe is installed",
    criterion="both are live, or nvidia-modprobe loads nvidia_uvm at its first use",
    why="CUDA needs nvidia_uvm: without it cuInit says that there is no device, or an unknown error after suspend",
    action="load the modules: sudo modprobe nvidia_uvm",
    source="gorgonia/cu#2; pop-os/default-settings#64",
    vendors=("nvidia",),
    severity="fail",
)
def nvidia_required(subject: Subject) -> Iterator[Finding]:
    """Judge the two modules that CUDA needs."""
    gpus = [gpu for gpu in subject.functions("nvidia") if gpu.driver in {"nvidia", None}]
    if not gpus:
        yield skipped("no GPU here is left to the nvidia module")
        return
    wanted = subject.wanted("nvidia")
    states = {name: module_state(subject, name) for name in ("nvidia", "nvidia_uvm")}
    for name, state in states.items():
        if isinstance(state, Bad):
            yield unknown(f"whether {name} is loaded is not known: {state.detail}", on=gpus)
            return
    evidence = [
        Evidence(source=f"/sys/module/{name}/initstate", found=str(state), expected="live")
        for name, state in states.items()
    ]
    nvidia, uvm = states["nvidia"], states["nvidia_uvm"]
    if is_in(nvidia) and is_in(uvm):
        yield passed("nvidia and nvidia_uvm are loaded", *evidence, on=gpus)
    elif wanted is None:
        yield skipped("nothing here asks for NVIDIA GPUs", on=gpus)
    elif nvidia == "absent" and module_rules(subject).blocks("nvidia") and promise_of(subject, "nvidia") is None:
        # `prime-select intel` does this to a laptop: drv.bound_driver says so once, and what would undo it.
        block = module_rules(subject).blocks("nvidia")[0]
        yield skipped(f"{block.where} keeps nvidia out (`{block.text}`); drv.bound_driver judges that", on=gpus)
    elif not is_in(nvidia):
        yield _missing(subject, "nvidia", nvidia, wanted, evidence)
    elif uvm == "absent":
        program = next((path for path in _NVIDIA_MODPROBE if subject.host.exists(path)), None)
        if program is not None and not module_rules(subject).blocks("nvidia_uvm"):
            found = Evidence(source=program, found="installed")
            yield passed(
                "nvidia is loaded; nvidia-modprobe loads nvidia_uvm at its first use", *evidence, found, on=gpus
            )
        else:
            yield _missing(subject, "nvidia_uvm", uvm, wanted, evidence)
    else:
        yield _missing(subject, "nvidia_uvm", uvm, wanted, evidence)


@gate(
    "kmod.amd.required",
    group="kernel-module",
    title="amdgpu is loaded, with its compute part",
    reads="/sys/module/amdgpu/initstate; /sys/class/kfd/kfd/topology/generation_id",
    criterion="amdgpu is live; where ROCm is wanted, KFD is there",
    why="ROCm reaches GPUs through KFD only: without it there is no device, though the display works",
    action="load amdgpu; a kernel without KFD needs CONFIG_HSA_AMD=y",
    source="ROCm/rocminfo (its first check); siderolabs/pkgs#1488",
    vendors=("amd",),
    severity="fail",
)
def amd_required(subject: Subject) -> Iterator[Finding]:
    """Judge the module, then KFD where somebody wants ROCm."""
    gpus = [gpu for gpu in subject.functions("amd") if gpu.driver in {"amdgpu", None}]
    if not gpus:
        yield skipped("no GPU here is left to the amdgpu module")
        return
    wanted = subject.wanted("amd")
    state = module_state(subject, "amdgpu")
    evidence = [Evidence(source="/sys/module/amdgpu/initstate", found=str(state), expected="live")]
    if isinstance(state, Bad):
        holding = [gpu for gpu in gpus if gpu.driver == "amdgpu"]
        if not holding:
            yield unknown(f"whether amdgpu is loaded is not known: {state.detail}", on=gpus)
            return
        gpus = holding
        evidence = [Evidence(source=f"/sys/bus/pci/devices/{gpu.pci_address}/driver", found="amdgpu") for gpu in gpus]
    elif not is_in(state):
        if wanted is None:
            yield skipped("nothing here asks for AMD GPUs", on=gpus)
        else:
            yield _missing(subject, "amdgpu", state, wanted, evidence)
        return
    if wanted is None:
        yield passed("amdgpu is loaded; nothing here asks for ROCm", *evidence, on=gpus)
        return
    text = subject.read(_KFD, 64)
    if text.text is not None and text.text.strip().isdigit():
        kfd = Evidence(source=_KFD, found=text.text.strip())
        yield passed("amdgpu is loaded, and KFD is there", *evidence, kfd, on=gpus)
    elif text.status == "absent" and subject.host.covers("/sys/class/kfd"):
        kfd = Evidence(source=_KFD, found="no such file", expected="a number")
        yield failed(f"amdgpu is loaded without KFD, its compute part, though {wanted}", *evidence, kfd, on=gpus)
    else:
        yield unknown(f"whether KFD is there is not known: {text.detail or 'its generation is no number'}", on=gpus)


def _missing(subject: Subject, name: str, state: ModuleState | Bad, wanted: str, evidence: list[Evidence]) -> Finding:
    """Say that a module is not usable, and which line keeps it out."""
    blocks = module_rules(subject).blocks(name)
    lines = [Evidence(source=block.where, found=block.text, expected="no such line") for block in blocks[:4]]
    words = "is not loaded" if state == "absent" else f"is {state}, not live"
    if blocks:
        words += f" ({blocks[0].where} says: {blocks[0].text})"
    fix = () if blocks else (Fix(lines=(f"sudo modprobe {name}",)),)
    vendor = "amd" if name == "amdgpu" else "nvidia"
    return failed(f"{name} {words}, though {wanted}", *evidence, *lines, on=subject.functions(vendor), fix=fix)
