"""Which mark a fixture implies.

Read at collection for every test, so it imports nothing. A name counts only where the fixture behind it is this
package's own: a project that defines its own `gpu` keeps it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FIXTURES_MODULE", "FIXTURE_NEEDS", "WIDER_SCOPES", "implied_marks", "is_ours", "our_fixtures"]

FIXTURES_MODULE = "pytest_gpucoexist.session.fixtures"

FIXTURE_NEEDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpu": ("gpu", {}),
    "gpus": ("gpu", {}),
    "cuda_gpu": ("cuda", {}),
    "rocm_gpu": ("rocm", {}),
    "intel_gpu": ("gpu", {"vendor": "intel"}),
    "gpu_pair": ("cross_vendor", {}),
    "class_gpu": ("gpu", {}),
    "module_gpu": ("gpu", {}),
    "session_gpu": ("gpu", {}),
    "each_gpu": ("gpu", {}),
    "each_vendor": ("gpu", {}),
    "each_numa_node": ("gpu", {}),
    "numa_node": ("gpu", {}),
    "gpu_env": ("gpu", {}),
    "torch_device": ("gpu", {}),
    "cupy_device": ("gpu", {}),
    "gpu_parity": ("cross_vendor", {}),
}
"""Fixture name → (mark name, keyword arguments). Those that are not here imply nothing."""

WIDER_SCOPES = ("class_gpu", "module_gpu", "session_gpu")
"""Fixtures that fix the choice of a device for longer than one test, narrowest first."""


def is_ours(item: Any, name: str) -> bool:
    """Whether the fixture `name` of this test is, or wraps, the one of this package.

    `item` is a test function or the `definition` of a `Metafunc`. An override counts when it asks for the fixture of
    the same name that it overrides.
    """
    info = getattr(item, "_fixtureinfo", None)
    for definition in reversed(getattr(info, "name2fixturedefs", {}).get(name, ())):
        if getattr(definition.func, "__module__", None) == FIXTURES_MODULE:
            return True
        if name not in definition.argnames:
            return False
    return False


def our_fixtures(item: Any) -> tuple[str, ...]:
    """Return the names of this package's fixtures in the closure of a test that imply a mark."""
    names = getattr(item, "fixturenames", ())
    return tuple(name for name in names if name in FIXTURE_NEEDS and is_ours(item, name))


def implied_marks(item: Any) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return (mark name, keyword arguments) for each fixture of this package that a test uses."""
    return tuple(FIXTURE_NEEDS[name] for name in our_fixtures(item))
