"""What a helper may raise when it has no answer, and the form in which an answer travels.

    HelperRefusal
    ├── HelperAbsent        its library is not installed
    ├── HelperUnsupported   installed, but there is no driver or device to ask
    ├── HelperDenied        this user may not ask
    └── HelperBroken        it should have answered and did not; the message says how

Anything else that a helper raises means `broken` too, with the exception's name and text as the reason. This module
imports nothing of the package: it is loaded in each helper process.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = ["HelperAbsent", "HelperBroken", "HelperDenied", "HelperRefusal", "HelperUnsupported"]


class HelperRefusal(Exception):  # noqa: N818 - not an error: an answer about what is not there
    """Base of the answers that say why there is none. `cause` is a word for programs, where a helper has one."""

    status: ClassVar[str]

    def __init__(self, detail: str, *, cause: str | None = None) -> None:
        super().__init__(detail)
        self.cause = cause


class HelperAbsent(HelperRefusal):
    """The library is not installed."""

    status = "absent"


class HelperUnsupported(HelperRefusal):
    """The library is installed and says that there is no driver or device."""

    status = "unsupported"


class HelperDenied(HelperRefusal):
    """This user may not ask."""

    status = "denied"


class HelperBroken(HelperRefusal):
    """The library should have answered and did not, or answered nonsense."""

    status = "broken"
