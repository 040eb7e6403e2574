"""A function for a vendor process that imports nothing."""

from __future__ import annotations

import sys


def modules() -> list[str]:
    return sorted(sys.modules)
