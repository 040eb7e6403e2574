"""Both sides of a copy at the same time, each in its own process, and what is raised when they fail.

A process does one thing at a time. Two copies that need the same two processes take turns, because each could have one
side at work and wait for the other side, which stands behind the other copy, until both are late.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import EngineError, TransferError, VendorProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucoexist.processes.process import VendorProcess

__all__ = ["together"]

_turns: weakref.WeakKeyDictionary[VendorProcess, threading.Lock] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def together(
    processes: tuple[VendorProcess, VendorProcess], first: Callable[[], Any], second: Callable[[], Any]
) -> tuple[Any, Any]:
    """Call both at the same time, when it is these two processes' turn; raise the error that says most of why."""
    found: dict[int, Any] = {}
    failed: list[BaseException] = []

    def work(number: int, function: Callable[[], Any]) -> None:
        try:
            found[number] = function()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failed.append(error)

    with _turn(*processes):
        thread = threading.Thread(target=work, args=(0, first), name="gpucoexist-sender", daemon=True)
        thread.start()
        work(1, second)
        thread.join()
    if failed:
        raise min(failed, key=_blame)
    return found[0], found[1]


@contextlib.contextmanager
def _turn(*processes: VendorProcess) -> Iterator[None]:
    """Hold the turns of processes, taken in one order by everybody."""
    with _making:
        locks = {each.pid: _turns.setdefault(each, threading.Lock()) for each in processes}
    with contextlib.ExitStack() as held:
        for _, lock in sorted(locks.items()):
            held.enter_context(lock)
        yield


def _blame(error: BaseException) -> int:
    """Rank the errors of two sides: who was interrupted, died, or failed comes before who only heard of it."""
    if not isinstance(error, (VendorProcessError, TransferError)):
        return 0
    if isinstance(error, VendorProcessError):
        return 1
    return 2 if isinstance(error, EngineError) else 3
