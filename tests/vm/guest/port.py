"""The guest's end of the serial port that leads out of the machine."""

from __future__ import annotations

import json
import os
from typing import Any

__all__ = ["ask", "say"]

PORT = "/dev/ttyS1"


def say(message: dict[str, Any]) -> None:
    """Send one message."""
    port = _opened()
    try:
        _write(port, message)
    finally:
        os.close(port)


def ask(action: str, **arguments: object) -> None:
    """Have something done to the machine from outside; return when it was done. Raises RuntimeError."""
    port = _opened()
    try:
        _write(port, {"do": action, **arguments})
        answer = b""
        while not answer.endswith(b"\n"):
            answer += os.read(port, 4096)
    finally:
        os.close(port)
    told = json.loads(answer)
    if "ok" not in told:
        raise RuntimeError(told.get("error"))


def _opened() -> int:
    import tty  # collected on other systems, too

    port = os.open(PORT, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(port)
    return port


def _write(port: int, message: dict[str, Any]) -> None:
    left = json.dumps(message).encode() + b"\n"
    while left:
        left = left[os.write(port, left) :]
