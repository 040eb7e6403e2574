"""Hardware-aware testing on workstations where NVIDIA, AMD and Intel GPUs live in one kernel."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` is not imported for this; type checkers know the name
if TYPE_CHECKING:
    from pytest_gpucoexist._version import __version__
    from pytest_gpucoexist.session.current import current_gpu, current_gpus
    from pytest_gpucoexist.session.home import caller_environ

__all__ = ["__version__", "caller_environ", "current_gpu", "current_gpus"]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: loading the plugin must not load the model."""
    if name in {"current_gpu", "current_gpus"}:
        # Not `from package import module`: pytester forgets modules, but not the attributes of their packages.
        from pytest_gpucoexist.session.current import current_gpu, current_gpus

        return current_gpu if name == "current_gpu" else current_gpus
    if name == "caller_environ":
        from pytest_gpucoexist.session.home import caller_environ

        return caller_environ
    if name == "__version__":
        from pytest_gpucoexist._version import __version__

        return __version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
