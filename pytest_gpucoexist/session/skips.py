"""Expected hardware skips: a number, or a file of test ids and reasons.

The file is for people: an id per line, its reason indented below it, `#` begins a comment. A reason that is left out
stands for any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["compare_count", "compare_skips", "format_skips", "parse_skips", "read_skips", "write_skips"]

_HEAD = """\
# Hardware skips that this run expects: pytest --gpu-expect-skips=THIS_FILE
# A test id per line, its reason indented below it. Without a reason, any will do.
"""


def format_skips(skips: Mapping[str, str]) -> str:
    """Write skips as text, sorted by id."""
    return _HEAD + "".join(f"\n{nodeid}\n    {' '.join(skips[nodeid].split())}\n" for nodeid in sorted(skips))


def parse_skips(text: str, where: str) -> dict[str, str | None]:
    """Read what `format_skips` wrote or a person edited. Raises UserError that names the line."""
    found: dict[str, str | None] = {}
    current: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not line[0].isspace():
            current = line.rstrip()
            found[current] = None
        elif current is None:
            raise UserError(
                f"--gpu-expect-skips: {where}:{number}: a reason without a test id above it (an id is not indented)"
            )
        else:
            found[current] = " ".join(filter(None, (found[current], line.strip())))
    return found


def read_skips(path: str) -> dict[str, str | None]:
    """Read a file of expected skips. Raises UserError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        problem = error.strerror or str(error)
    except UnicodeDecodeError:
        problem = "it is no text"
    else:
        return parse_skips(text, path)
    raise UserError(
        f"--gpu-expect-skips: cannot read {path}: {problem}; give a number from 0 or a file of --gpu-write-skips"
    )


def write_skips(skips: Mapping[str, str], path: str) -> None:
    """Write the file at once or not at all: a run that dies leaves the old one. Raises ReportError."""
    from pytest_gpucoexist.reports.atomic import write_text

    write_text(path, format_skips(skips))


def compare_skips(expected: Mapping[str, str | None], found: Mapping[str, str]) -> list[str]:
    """Say in lines how what was skipped differs from what was expected. Empty when it does not."""
    lines = [
        f"{nodeid}: skipped, which was not expected: {found[nodeid]}" for nodeid in found if nodeid not in expected
    ]
    for nodeid, reason in expected.items():
        if nodeid not in found:
            lines.append(f"{nodeid}: expected to be skipped, but was not")
        elif reason is not None and reason != (said := " ".join(found[nodeid].split())):
            lines.append(f"{nodeid}: skipped for another reason: {said} (expected: {reason})")
    return lines


def compare_count(expected: int, found: Mapping[str, str]) -> list[str]:
    """Like `compare_skips`, for a number."""
    if len(found) == expected:
        return []
    return [
        f"{len(found)} hardware skip{'' if len(found) == 1 else 's'}, expected {expected}",
        *(f"    {nodeid}: {reason}" for nodeid, reason in found.items()),
    ]
