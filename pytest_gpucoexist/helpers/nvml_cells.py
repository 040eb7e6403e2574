"""Read one value of NVML under a guard, and put NVML's errors into the words of a fact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.helpers.cells import Cell, NotKnown, cell

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["nvml_cell"]


def nvml_cell(nvml: Any, read: Callable[..., Any], *arguments: Any) -> Cell:
    """Call `read` and keep what came. Never raises."""

    def explain(error: Exception) -> NotKnown:
        if isinstance(error, AttributeError) and "nvml" in str(error).lower():
            return NotKnown("unsupported", f"this version of nvidia-ml-py has no such function: {error}")
        if not isinstance(error, nvml.NVMLError):
            return NotKnown("broken", f"{type(error).__name__}: {error}")
        code = int(error.value)
        statuses = {
            nvml.NVML_ERROR_NOT_SUPPORTED: "unsupported",
            nvml.NVML_ERROR_NO_PERMISSION: "denied",
            nvml.NVML_ERROR_NOT_FOUND: "absent",
        }
        status = statuses.get(code, "broken")
        return NotKnown(status, f"NVML: {error}", code if status == "broken" else None)

    return cell(explain, read, *arguments)
