"""Hardware-aware testing on workstations where NVIDIA, AMD and Intel GPUs live in one kernel."""

from pytest_gpucoexist._version import __version__

__all__ = ["__version__"]
