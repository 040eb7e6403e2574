"""From a Host to a Machine: probes make observations, `discover` merges them."""

from pytest_gpucoexist.probes.discovery import discover

__all__ = ["discover"]
