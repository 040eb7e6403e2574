"""Hosts that take their files from one place and what the vendors' libraries say from another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.host.base import HelperReply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.host import Host


class _Split:
    simulated = False  # as a live machine, whose libraries are asked only where their driver is loaded

    def __init__(self, files: Host, libraries: Host) -> None:
        self._files = files
        self._libraries = libraries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def ask(self, *args: Any, **kwargs: Any) -> HelperReply:
        return self._libraries.ask(*args, **kwargs)

    def ask_all(self, *args: Any, **kwargs: Any) -> dict[str, HelperReply]:
        return self._libraries.ask_all(*args, **kwargs)


class _Canned:
    def __init__(self, replies: Mapping[str, HelperReply]) -> None:
        self._replies = replies

    def ask(self, helper: str, *_args: Any, **_kwargs: Any) -> HelperReply:
        return self._replies[helper]

    def ask_all(self, helpers: Sequence[str], *_args: Any, **_kwargs: Any) -> dict[str, HelperReply]:
        return {helper: self._replies[helper] for helper in helpers if helper in self._replies}


def asking_here(files: Host) -> Host:
    """Files of a machine that was built; libraries of this one, so that real helper processes run."""
    return cast("Host", _Split(files, local_host()))


def answering(files: Host, **replies: HelperReply | Any) -> Host:
    """Files of a machine that was built; replies as they are given here (data alone is an `ok` reply)."""
    canned = {
        helper: reply if isinstance(reply, HelperReply) else HelperReply(status="ok", data=reply)
        for helper, reply in replies.items()
    }
    return cast("Host", _Split(files, cast("Host", _Canned(canned))))
