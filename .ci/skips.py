"""Fail when a JUnit file holds a skip that should not happen where this runs.

A suite that skips what it could not check looks as green as one that checked it. Every skip must match one of the
reasons below, each of which says why it is right on a machine without a GPU.
"""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ALLOWED = [
    (r"needs a real (NVIDIA|AMD|Intel) GPU", "no GPU is promised here"),
    (r"needs GPUCOEXIST_SUITES", "part `suites` runs them, and is red when it runs none"),
    (r"needs GPUCOEXIST_VM=1", "part `vm` runs them, and is red when it runs none"),
    (r"needs GPUCOEXIST_STRESS=1", "part `stress` runs them, and is red when it runs none"),
    (r"needs GPUCOEXIST_FAULTS", "part `faults` runs them, and is red when it runs none"),
    (r"needs GPUCOEXIST_SLURM=1", "part `slurm` runs them, and is red when it runs none"),
    (r"on Windows|on macOS", "another system's branch"),
    (r"zstd is in the standard library from Python 3\.14 on", "older Pythons say so in a verdict, which is tested"),
    (r"needs a Python between 3\.6 and 3\.9", "few machines still have one that is too old"),
    (r"pytest 9\.0 brought the fixture subtests", "the oldest and the middle pytest do not have it"),
]


def allowed(reason: str) -> bool:
    """Whether a skip with this reason is right without a GPU, or in the mode that `ALSO_ALLOWED` speaks of."""
    also = os.environ.get("ALSO_ALLOWED")
    return any(re.search(rule, reason) for rule in [*(rule for rule, _why in ALLOWED), *([also] if also else [])])


def main(paths: list[str]) -> int:
    """Print every skip that is not allowed; exit 1 when there is one or when no test ran."""
    status = 0
    for path in map(Path, paths):
        cases = list(ET.parse(path).getroot().iter("testcase"))
        skipped = [(case, skip) for case in cases if (skip := case.find("skipped")) is not None]
        bad = [
            f"{case.get('classname')}::{case.get('name')}: {skip.get('message')}"
            for case, skip in skipped
            if skip.get("type") != "pytest.xfail" and not allowed(skip.get("message") or "")
        ]
        print(f"{path.name}: {len(cases)} tests, {len(skipped)} skipped, {len(bad)} of them should have run")
        print("\n".join(f"  {line}" for line in bad))
        if bad or len(cases) == len(skipped):
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
