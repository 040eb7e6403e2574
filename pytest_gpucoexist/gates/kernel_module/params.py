"""Parameters of nvidia, nvidia_drm and amdgpu: what is in force, and whether it is what modprobe.d asks for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.ondisk import module_tree
from pytest_gpucoexist.gates.kernel_module.rules import Setting, module_rules
from pytest_gpucoexist.gates.kernel_module.settings import differences, not_in_force
from pytest_gpucoexist.gates.kernel_module.state import module_state
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import Bad, excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["amd_params", "nvidia_drm_modeset", "nvidia_params", "parse_params"]

_NVIDIA = "/proc/driver/nvidia/params"
_DRM = "/sys/module/nvidia_drm/parameters"
_AMD = "/sys/module/amdgpu/parameters"

_NVIDIA_SHOWN = (
    "DynamicPowerManagement",
    "EnableGpuFirmware",
    "EnableResizableBar",
    "GrdmaPciTopoCheckOverride",
    "OpenRmEnableUnsupportedGpus",
    "RegistryDwords",
)
# The container toolkit shows containers a copy of the file in which this one is 0.
_NVIDIA_PRIVATE = {"ModifyDeviceFiles"}
_FORCES_PEERS = re.compile(r"\b(?:RM)?(?:ForceP2P|PcieP2P)\w*=", re.IGNORECASE)

_AMD_SHOWN = ("runpm", "gpu_recovery", "noretry", "lockup_timeout", "pcie_p2p", "sched_policy")


def parse_params(text: str) -> dict[str, str]:
    """Read `Name: value` lines as nv-procfs.c prints them; texts stand in quotes. Other lines are left out."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([A-Za-z]\w*): (.*)", line)
        if match is not None:
            found[match[1]] = match[2].strip().strip('"')
    return found


@gate(
    "kmod.nv.params",
    group="kernel-module",
    title="The nvidia module runs with the parameters that were asked for",
    reads="/proc/driver/nvidia/params; options lines for nvidia in modprobe.d and on the command line",
    criterion="each option that is asked for is in force, and none forces peer access",
    why="an options line that the initramfs does not have yet does nothing; forced peer access lets copies between "
    "GPUs return wrong data on platforms that cannot do it",
    action="rebuild the initramfs and reboot; judge peer access without the forcing keys",
    source="aikitoria/open-gpu-kernel-modules#25; NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv-procfs.c",
    vendors=("nvidia",),
)
def nvidia_params(subject: Subject) -> Iterator[Finding]:
    """Record the parameters that matter, and compare them with what is asked for."""
    text = subject.read(_NVIDIA)
    if text.text is None:
        if text.status == "absent" and not isinstance(module_state(subject, "nvidia"), Bad):
            yield skipped("the NVIDIA driver is not loaded, or does not show its parameters here")
        else:
            yield unknown(f"{_NVIDIA}: {text.detail}")
        return
    actual = parse_params(text.text)
    if not actual.keys() & set(_NVIDIA_SHOWN):
        yield unknown(f"{_NVIDIA} makes no sense: {excerpt(text.text)}")
        return
    gpus = subject.functions("nvidia")
    shown = ", ".join(f"{name}={actual[name]}" for name in _NVIDIA_SHOWN if name in actual)
    record = Evidence(source=_NVIDIA, found=shown)
    forced = _FORCES_PEERS.search(f"{actual.get('RegistryDwords', '')};{actual.get('RegistryDwordsPerDevice', '')}")
    if forced is not None:
        yield warned(
            f"RegistryDwords forces peer access ({forced[0]}…): what it copies must be checked", record, on=gpus
        )
    asked = {
        name.removeprefix("NVreg_"): setting
        for name, setting in _asked_for(subject, "nvidia").items()
        if name.startswith("NVreg_") and name.removeprefix("NVreg_") not in _NVIDIA_PRIVATE
    }
    yield from _compared(subject, "nvidia", asked, actual, record, quiet=forced is not None)


@gate(
    "kmod.nv.drm_modeset",
    group="kernel-module",
    title="The mode setting of nvidia_drm is what was asked for",
    reads="/sys/module/nvidia_drm/parameters/modeset and fbdev; options lines for nvidia-drm",
    criterion="each option that is asked for is in force; the values are recorded",
    why="with mode setting the driver drives displays, keeps the GPU awake and decides which DRM card comes first",
    action="rebuild the initramfs and reboot",
    source="system76/firmware-open#259; nvidia-bug-report.sh records it",
    vendors=("nvidia",),
    severity="info",
)
def nvidia_drm_modeset(subject: Subject) -> Iterator[Finding]:
    """Record both parameters. Only root may read them: what cannot be read is not off."""
    state = module_state(subject, "nvidia_drm")
    if isinstance(state, Bad):
        yield unknown(f"whether nvidia_drm is loaded is not known: {state.detail}")
        return
    if state == "absent":
        yield skipped("nvidia_drm is not loaded")
        return
    actual: dict[str, str] = {}
    denied: list[str] = []
    for name in ("modeset", "fbdev"):
        text = subject.read(f"{_DRM}/{name}", 64)
        if text.text is not None and re.fullmatch(r"[YN01-]\d*", text.text.strip()):
            actual[name] = text.text.strip()
        elif text.text is not None:
            denied.append(f"{text.path} says {excerpt(text.text)}")
        elif text.status != "absent":
            denied.append(f"{text.path}: {text.detail}")
    if not actual:
        asked = _asked_for(subject, "nvidia_drm")
        words = ", ".join(f"{setting.where} asks for {name}={setting.value}" for name, setting in asked.items())
        reason = "; ".join(filter(None, [*denied, words])) or "nvidia_drm shows no parameters"
        yield unknown(f"whether nvidia_drm sets modes is not known: {reason}")
        return
    record = Evidence(source=_DRM, found=", ".join(f"{name}={value}" for name, value in actual.items()))
    yield from _compared(subject, "nvidia_drm", _asked_for(subject, "nvidia_drm"), actual, record)


@gate(
    "kmod.amd.params",
    group="kernel-module",
    title="amdgpu runs with the parameters asked for, and recovers from hangs",
    reads="/sys/module/amdgpu/parameters; options lines for amdgpu in modprobe.d and on the command line",
    criterion="each option that is asked for is in force, and gpu_recovery is not 0",
    why="an options line that the initramfs does not have yet does nothing; without recovery a hang ends all work on "
    "GPUs until a reboot",
    action="rebuild the initramfs and reboot; remove gpu_recovery=0",
    source="minisforum-docs/MS-02-Ultra#26 (runpm); ROCm/ROCR-Runtime#355",
    vendors=("amd",),
)
def amd_params(subject: Subject) -> Iterator[Finding]:
    """Record the parameters that matter, and compare them with what is asked for."""
    if not subject.host.exists(_AMD):
        if subject.host.exists("/sys/module"):
            yield skipped("amdgpu is not loaded, or has no parameters here")
        else:
            yield unknown(f"{_AMD} is not here")
        return
    asked = module_rules(subject).settings("amdgpu")
    actual: dict[str, str] = {}
    for name in dict.fromkeys((*_AMD_SHOWN, *asked)):
        text = subject.read(f"{_AMD}/{name}", 256)
        if text.text is not None and text.text.isprintable():
            actual[name] = text.text.strip()
    if not actual:
        yield unknown(f"no parameter in {_AMD} can be read")
        return
    record = Evidence(source=_AMD, found=", ".join(f"{name}={value}" for name, value in actual.items()))
    stuck = actual.get("gpu_recovery") == "0"
    if stuck:
        expected = Evidence(source=f"{_AMD}/gpu_recovery", found="0", expected="-1 or 1")
        yield warned("gpu_recovery is 0: amdgpu does not reset a GPU that hangs", expected, on=subject.functions("amd"))
    yield from _compared(subject, "amdgpu", asked, actual, record, quiet=stuck)


def _asked_for(subject: Subject, module: str) -> dict[str, Setting]:
    """Return what is asked for by the module's name, and by that of its file (Debian's is nvidia-current.ko)."""
    rules, tree = module_rules(subject), module_tree(subject)
    path = "" if isinstance(tree, Bad) else tree.files.get(module, "")
    file_name = path.rpartition("/")[2].partition(".ko")[0]
    return {**rules.settings(module), **(rules.settings(file_name) if file_name else {})}


def _compared(
    subject: Subject,
    module: str,
    asked: dict[str, Setting],
    actual: dict[str, str],
    record: Evidence,
    *,
    quiet: bool = False,
) -> Iterator[Finding]:
    """Warn of options that are not in force; else tell the record, unless something else was said already."""
    gpus = subject.functions("amd" if module == "amdgpu" else "nvidia")
    wrong = differences(asked, actual, record.source)
    if wrong:
        words = "; ".join(text for text, _evidence in wrong)
        evidence = [each for _text, each in wrong]
        yield warned(f"options of {module} are not in force: {words}", *evidence, on=gpus, fix=not_in_force(subject))
    elif not quiet:
        known = [name for name in asked if name in actual]
        more = f"; {', '.join(known)} as asked for" if known else ""
        yield passed(f"{module} runs with {record.found}{more}", record, on=gpus)
