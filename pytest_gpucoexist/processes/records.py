"""What is kept of a vendor process for a report, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CallRecord", "CallResult", "Inside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The result of a call and what was written meanwhile. `notes` say what was changed on the way, in words."""

    value: Any
    stdout: str = ""
    stderr: str = ""
    duration_s: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call, for a report. `outcome`: done, raised, unsendable, unreadable, unfound, ended."""

    function: str
    duration_s: float
    outcome: str
    stdout: str = ""
    stderr: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A process's variables (None: not set) and the modules it has loaded, with the distributions that claim them."""

    variables: Mapping[str, str | None]
    modules: tuple[Mapping[str, Any], ...] = ()
