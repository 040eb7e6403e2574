"""What the running kernel was built with, as far as ROCm depends on it."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.ondisk import release
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import Bad, reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["config_values", "kernel_config", "read_config"]

_LIMIT = 4 << 20
_COMPUTE = "CONFIG_HSA_AMD"
_PEER = ("CONFIG_HSA_AMD_P2P", "CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY")


def config_values(text: str) -> dict[str, str]:
    """Read `CONFIG_NAME=value` and `# CONFIG_NAME is not set` (then `n`)."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("CONFIG_"):
            name, equals, value = line.partition("=")
            if equals:
                values[name] = value.strip()
        elif line.startswith("# CONFIG_") and line.endswith(" is not set"):
            values[line.split()[1]] = "n"
    return values


def read_config(subject: Subject) -> tuple[str, Mapping[str, str]] | Bad:
    """Return (source, values) of the running kernel's configuration, once for all gates."""
    return subject.shared(("kernel_module", "config"), lambda: _read(subject))


def _read(subject: Subject) -> tuple[str, Mapping[str, str]] | Bad:
    kernel = release(subject)
    paths = [f"/boot/config-{kernel}", f"/lib/modules/{kernel}/config"] if kernel and "/" not in kernel else []
    tried: list[str] = []
    for path in paths:
        text = subject.read(path, _LIMIT)
        values = config_values(text.text or "")
        if values:
            return path, values
        tried.append(f"{path}: {text.detail or 'holds no configuration'}")
    path = "/proc/config.gz"
    try:
        data = zlib.decompressobj(31).decompress(subject.host.read_bytes(path, _LIMIT), _LIMIT)
        values = config_values(data.decode("utf-8", "replace"))
        if values:
            return path, values
        tried.append(f"{path}: holds no configuration")
    except OSError as error:
        tried.append(f"{path}: {reason(error)}")
    except zlib.error as error:
        tried.append(f"{path}: {error}")
    return Bad("; ".join(tried))


@gate(
    "kmod.kernel_config",
    group="kernel-module",
    title="The kernel is built with AMD's compute part",
    reads="/boot/config-RELEASE, /lib/modules/RELEASE/config or /proc/config.gz",
    criterion="CONFIG_HSA_AMD is set; what peer access needs is recorded",
    why="a kernel without it shows AMD's GPUs and no KFD: ROCm finds nothing, and no setting helps",
    action="use another build of the kernel, or amdgpu-dkms",
    source="siderolabs/pkgs#1488",
    vendors=("amd",),
    severity="info",
)
def kernel_config(subject: Subject) -> Iterator[Finding]:
    """Judge CONFIG_HSA_AMD and record the rest."""
    config = read_config(subject)
    wanted = subject.wanted("amd")
    if isinstance(config, Bad):
        if wanted is None:
            yield skipped("nothing here asks for ROCm")
        else:
            yield unknown(f"the kernel's configuration is not known: {config.detail}")
        return
    source, values = config
    found = {name: values.get(name, "n") for name in (_COMPUTE, *_PEER)}
    evidence = Evidence(
        source=source,
        found=", ".join(f"{name}={value}" for name, value in found.items()),
        expected=f"{_COMPUTE}=y",
    )
    lacking = [name for name in _PEER if found[name] != "y"]
    if found[_COMPUTE] == "y":
        more = f"; peer access between AMD GPUs lacks {', '.join(lacking)}" if lacking else ", and for peer access"
        yield passed(f"the kernel is built for ROCm{more}", evidence)
    elif wanted is None:
        yield skipped("the kernel is built without ROCm's part, and nothing here asks for ROCm")
    elif subject.host.exists("/sys/class/kfd/kfd"):
        yield passed(f"{_COMPUTE} is not set, and KFD is there: amdgpu comes from elsewhere", evidence)
    else:
        yield warned(f"the kernel is built without {_COMPUTE}, though {wanted}", evidence)
