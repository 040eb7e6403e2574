"""`python -m pytest_gpucoexist` is `gpucoexist`."""

from __future__ import annotations

import sys

from pytest_gpucoexist.cli import main

if __name__ == "__main__":
    sys.exit(main())
