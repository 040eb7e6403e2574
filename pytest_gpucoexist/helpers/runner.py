"""The first code of a helper process: import the helper, let it answer, send the answer.

Standard library only. The answer goes over a pipe of its own, so that what a library prints does no harm.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.helpers.protocol import HelperRefusal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main", "serve"]

_DETAIL_CHARACTERS = 2000


def main(answer_fd: int, module: str, request: dict[str, Any], limit_s: float) -> None:
    """Answer once. `limit_s` ends this process by itself should nobody be left to end it."""
    os.set_inheritable(answer_fd, False)
    _no_core_dump()
    faulthandler.dump_traceback_later(limit_s, exit=True)
    text = _answered(lambda: importlib.import_module(module).answer(request))
    with open(answer_fd, "wb") as pipe, contextlib.suppress(BrokenPipeError):
        pipe.write(text.encode())
    faulthandler.cancel_dump_traceback_later()


def serve(answer_fd: int, module: str, _request: dict[str, Any], limit_s: float) -> None:
    """Answer each line of standard input by a line, until it is closed; the library stays open meanwhile.

    Opening it and each answer may take `limit_s`; then this process ends by itself.
    """
    os.set_inheritable(answer_fd, False)
    _no_core_dump()
    faulthandler.dump_traceback_later(limit_s, exit=True)
    with contextlib.ExitStack() as stack, open(answer_fd, "wb") as pipe, contextlib.suppress(BrokenPipeError):
        opened: list[Any] = []
        failed = _answered(lambda: opened.append(stack.enter_context(importlib.import_module(module).keep())))
        faulthandler.cancel_dump_traceback_later()
        for line in sys.stdin.buffer:
            faulthandler.dump_traceback_later(limit_s, exit=True)
            text = _answered(functools.partial(opened[0], json.loads(line))) if opened else failed
            pipe.write(text.encode() + b"\n")
            pipe.flush()
            faulthandler.cancel_dump_traceback_later()
            if not opened:
                return


def _answered(call: Callable[[], object]) -> str:
    try:
        return json.dumps({"status": "ok", "data": call()})
    except HelperRefusal as refusal:
        refused = {"status": refusal.status, "detail": str(refusal)[:_DETAIL_CHARACTERS]}
        return json.dumps(refused if refusal.cause is None else {**refused, "data": {"cause": refusal.cause}})
    except BaseException as exc:  # noqa: BLE001 - KeyError at import, SystemExit, anything: each is an answer
        detail = f"{type(exc).__name__}: {exc}"[:_DETAIL_CHARACTERS]
        return json.dumps({"status": "broken", "detail": detail})


def _no_core_dump() -> None:
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
