"""What crosses between a pytest-xdist worker and its controller, and where each of them is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["END", "KEY", "Channel", "is_surely_here", "place", "send"]

KEY = "gpucoexist"
"""Our entry in `workerinput`."""

END = "end"
"""The verb under which each side hears that the other one is gone."""


class Channel(Protocol):
    """The part of an execnet channel that is used here; execnet is not imported."""

    def send(self, item: object) -> None:
        """Send builtin types. Raises OSError when the other side is gone."""
        ...

    def setcallback(self, callback: Callable[[Any], Any], endmarker: object = ...) -> None:
        """Have `callback` called in the receiver thread for each item, and with `endmarker` at the end."""
        ...


def place() -> list[str | None]:
    """Host name, boot id and step of Slurm: two processes with the same three see the same devices.

    A worker that `python=srun … python` starts has an allocation of its own, also on the controller's host.
    """
    from pytest_gpucoexist.host import local_host

    host = local_host()
    try:
        boot_id: str | None = host.read_text("/proc/sys/kernel/random/boot_id")
    except OSError:
        boot_id = None
    environ = host.environ
    step = f"{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}" if "SLURM_JOB_ID" in environ else None
    return [host.name, boot_id, step]


def is_surely_here(spec: Any) -> bool:
    """Whether a worker is a child of this process, in the same namespaces, and replays no machine of its own."""
    return bool(spec.popen) and not spec.python and not spec.via and "PYTEST_GPU_MACHINE" not in spec.env


def send(channel: Channel, message: object) -> None:
    try:
        channel.send(message)
    except OSError:
        # The other side is gone; `pytest_testnodedown` or the end of the channel says so.
        return
