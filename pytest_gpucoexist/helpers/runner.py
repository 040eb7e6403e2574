"""The first code of a helper process: import the helper, let it answer, send the answer.

Standard library only. The answer goes over a pipe of its own, so that what a library prints does no harm.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
from typing import Any

from pytest_gpucoexist.helpers.protocol import HelperRefusal

__all__ = ["main"]

_DETAIL_CHARACTERS = 2000


def main(answer_fd: int, module: str, request: dict[str, Any], limit_s: float) -> None:
    """Answer once. `limit_s` ends this process by itself should nobody be left to end it."""
    os.set_inheritable(answer_fd, False)
    _no_core_dump()
    faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        data = importlib.import_module(module).answer(request)
        text = json.dumps({"status": "ok", "data": data})
    except HelperRefusal as refusal:
        refused = {"status": refusal.status, "detail": str(refusal)[:_DETAIL_CHARACTERS]}
        text = json.dumps(refused if refusal.cause is None else {**refused, "data": {"cause": refusal.cause}})
    except BaseException as exc:  # noqa: BLE001 - KeyError at import, SystemExit, anything: each is an answer
        detail = f"{type(exc).__name__}: {exc}"[:_DETAIL_CHARACTERS]
        text = json.dumps({"status": "broken", "detail": detail})
    with open(answer_fd, "wb") as pipe, contextlib.suppress(BrokenPipeError):
        pipe.write(text.encode())
    faulthandler.cancel_dump_traceback_later()


def _no_core_dump() -> None:
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
