"""Read the configuration space of GPUs and ports, once for all gates, and never of a sleeping one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.pcie.config_space import Configuration, decode, no_answer
from pytest_gpucoexist.gates.pcie.folders import ASLEEP, asleep_at
from pytest_gpucoexist.probes.reader import reason

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["CONVENTIONAL", "Registers", "read_bytes", "registers"]

CONVENTIONAL = "no PCI Express device: it has no such link"

_SPACE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Registers:
    """The decoded space of one function, or why there is none. `asleep` is a reason of its own: nothing is wrong."""

    path: str
    space: Configuration | None = None
    reason: str = ""
    asleep: bool = False

    @property
    def conventional(self) -> bool:
        """Whether it was read and is no PCI Express device."""
        return self.space is not None and self.space.express is None


def read_bytes(subject: Subject, path: str, limit: int) -> tuple[bytes | None, str]:
    """Read bytes once for all gates: the bytes, or None and the reason in words. Never raises OSError."""

    def read() -> tuple[bytes | None, str]:
        try:
            return subject.host.read_bytes(path, limit), ""
        except OSError as error:
            return None, reason(error)

    return subject.shared(("pcie.bytes", path, limit), read)


def registers(subject: Subject, folder: str) -> Registers:
    """Decode the capabilities of the function in `folder`."""
    path = f"{folder}/config"
    if asleep_at(subject, folder):
        return Registers(path=path, reason=ASLEEP, asleep=True)
    data, why = read_bytes(subject, path, _SPACE_BYTES)
    if data is None:
        return Registers(path=path, reason=why)
    space = decode(data)
    if space is None:
        said = "it reads all ones: the function does not answer" if no_answer(data) else "no configuration space"
        return Registers(path=path, reason=said)
    if not space.complete:
        return Registers(path=path, reason="only its first 64 bytes may be read without root")
    return Registers(path=path, space=space)
