"""Find a leased device among those that a loaded runtime enumerates.

A runtime's order is its own (FASTEST_FIRST, masks, renumbering), so nothing is assumed: the ordinal is the one whose
UUID, else whose PCI address, is that of the device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.model.identity import normal_pci_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["Enumerated", "ordinal_of", "uuid_forms"]

_HEX32 = re.compile(r"[0-9a-f]{32}")
_HEX16 = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumerated:
    """What a runtime tells about the device with this ordinal."""

    ordinal: int
    uuid: str | bytes | None = None
    pci_address: str | None = None
    name: str | None = None


def ordinal_of(gpu: Gpu, devices: Sequence[Enumerated], runtime: str) -> int:
    """Return the ordinal of `gpu`. Raises GpuCoexistError, naming what the runtime showed, unless exactly one fits."""
    own = uuid_forms(gpu.uuid)
    found = [each.ordinal for each in devices if own and own & uuid_forms(each.uuid)]
    if not found and gpu.pci_address is not None:
        address = _slot(gpu.pci_address)
        found = [each.ordinal for each in devices if each.pci_address and _slot(each.pci_address) == address]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(
        f"{each.ordinal}: {each.name or 'unnamed'} (PCI {each.pci_address or 'not told'}, UUID "
        f"{each.uuid if isinstance(each.uuid, str) else 'not told' if each.uuid is None else each.uuid.hex()})"
        for each in devices
    )
    what = "is not among" if not found else "cannot be told apart among"
    raise GpuCoexistError(
        f"{gpu.id} (PCI {gpu.pci_address}, UUID {gpu.uuid}) {what} the devices that {runtime} enumerates: "
        f"{shown or 'none'}. Compare the visibility masks of this process with `gpucoexist show`"
    )


def uuid_forms(uuid: str | bytes | None) -> frozenset[str]:
    """Return the comparable forms of a UUID.

    CUDA and torch print 32 hexadecimal digits, NVML adds `GPU-` or `MIG-`; HIP's 16 bytes are the ASCII of the 16
    digits of KFD's `unique_id`, so torch's ROCm build prints those letters as hexadecimal again.
    """
    if uuid is None:
        return frozenset()
    if isinstance(uuid, bytes):
        if len(uuid) != 16:
            return frozenset()  # cut at a NUL byte by a binding that took it for text
        uuid = uuid.hex()
    text = re.sub(r"^(gpu|mig)-", "", uuid.strip().lower()).replace("-", "")
    if _HEX16.fullmatch(text):
        return frozenset({text})
    if not _HEX32.fullmatch(text) or text.strip("0") == "":
        return frozenset()
    letters = bytes.fromhex(text).decode("latin-1").lower()
    return frozenset({text, letters}) if _HEX16.fullmatch(letters) else frozenset({text})


def _slot(address: str) -> str:
    """Drop the function of an address: runtimes that tell bus and device leave it out."""
    return (normal_pci_address(address) or address).rpartition(".")[0]
