"""What a runner promises to have, as text: `cuda:2,rocm`."""

from __future__ import annotations

import re

from pytest_gpucoexist.errors import UserError

__all__ = ["PROMISES", "parse_promises"]

PROMISES = ("gpu", "cuda", "rocm", "nvidia", "amd", "intel")
"""What a runner can promise, each with an optional count."""


def parse_promises(text: str | None, where: str) -> tuple[tuple[str, int], ...]:
    """Read a list of promises; of one name the largest count holds. Raises UserError that lists the good names."""
    found: dict[str, int] = {}
    for part in (text or "").split(","):
        if not part.strip() and not text:
            continue
        match = re.fullmatch(r"\s*([a-z]+)\s*(?::\s*([1-9]\d*)\s*)?", part)
        if match is None or match[1] not in PROMISES:
            raise UserError(
                f"{where}: {part.strip()!r} is not one of {', '.join(PROMISES)}, each with an optional count "
                "such as cuda:2, separated by commas"
            )
        found[match[1]] = max(found.get(match[1], 0), int(match[2] or 1))
    return tuple(found.items())
