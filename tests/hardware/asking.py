"""Ask the drivers from a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FOREIGN", "RATED_BYTES", "RUNTIMES", "said_by"]

RATED_BYTES = int(os.environ.get("GPUCOEXIST_HARDWARE_BYTES") or 256 << 20)
"""What a copy moves whose rate is taken."""

RUNTIMES = {"nvidia": "cuda", "amd": "hip"}

FOREIGN = {
    "nvidia": r"libamdhip64|libhsa-runtime64|libamd_smi|librocm|/opt/rocm",
    "amd": r"libcuda\.so|libcudart|libnvidia|libnvrtc",
}
"""The libraries that a process of a vendor must not have mapped."""

_ORACLES = Path(__file__).with_name("oracles.py")


def said_by(what: str, environ: Mapping[str, str] | None = None) -> Any:
    """Return what NVML ("nvml") or a runtime ("cuda", "hip") says in a process with these variables."""
    done = subprocess.run(
        [sys.executable, str(_ORACLES), what], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{what}: {done.stderr}"
    return json.loads(done.stdout)
