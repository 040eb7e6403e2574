"""The door to the operating system: this machine, or a recorded one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Host

if TYPE_CHECKING:
    from pytest_gpucoexist.host.replay import ReplayHost

__all__ = ["Host", "local_host", "open_recording"]


def local_host() -> Host:
    """Return this machine."""
    from pytest_gpucoexist.host.local import LocalHost

    return LocalHost()


def open_recording(path: str) -> ReplayHost:
    """Open a recorded machine: a folder or an archive. Raises RecordingError."""
    from pytest_gpucoexist.host.replay import open_recording as opened

    return opened(path)
