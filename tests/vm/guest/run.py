"""Run the tests that were selected outside, in their order."""

from __future__ import annotations

import json
import sys

import pytest

from tests.vm.guest.reporting import Reporter


def main() -> int:
    """Run pytest in the project's folder and return its exit code."""
    with open("selected.json", encoding="utf-8") as file:
        selected: list[str] = json.load(file)
    return pytest.main(["-p", "no:gpucoexist", "-p", "no:cacheprovider", "-q", *selected], plugins=[Reporter()])


if __name__ == "__main__":
    sys.exit(main())
