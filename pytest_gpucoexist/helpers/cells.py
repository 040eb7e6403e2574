"""One guarded value of a vendor library's reply: `{"value": …}`, or why there is none.

A reply is JSON. Each of its values is read under a guard of its own, so that one function that fails hides nothing
else: `{"value": 24564}` when it answered, `{"status": "unsupported", "detail": "Not Supported"}` when it did not, with
the library's own number as `code` where the status is `broken`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Cell", "NotKnown", "cell", "plain_text"]

Cell = dict[str, Any]


class NotKnown(Exception):  # noqa: N818 - not an error: an answer about what is not there
    """A value that the library could not give: a status of `Fact` and the reason in words."""

    def __init__(self, status: str, detail: str, code: int | None = None) -> None:
        super().__init__(status, detail, code)
        self.status = status
        self.detail = detail
        self.code = code


def cell(explain: Callable[[Exception], NotKnown], read: Callable[..., Any], *arguments: Any) -> Cell:
    """Call `read` and keep what came. Never raises: `explain` puts the library's own errors into words."""
    try:
        return {"value": read(*arguments)}
    except NotKnown as why:
        known = why
    except Exception as error:  # noqa: BLE001 - whatever a client raises is a fact about that client
        known = explain(error)
    said: Cell = {"status": known.status, "detail": known.detail}
    return said if known.code is None else {**said, "code": known.code}


def plain_text(value: object) -> str:
    """Return text; clients of different ages give `str` or `bytes`. Raises NotKnown for an empty one."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if text.strip() in {"", "N/A"}:
        raise NotKnown("unsupported", "the driver gives no text")
    return text.strip()
