"""From leased devices to a running process of their vendor, and whether it is what it was meant to be."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import VendorLaunchError, VendorProcessError
from pytest_gpucoexist.host.base import Host
from pytest_gpucoexist.model.identity import Vendor
from pytest_gpucoexist.processes.contents import folder_contents
from pytest_gpucoexist.processes.isolation import (
    WATCHED,
    WATCHED_OWNERS,
    Breach,
    foreign_libraries,
    mapped_files,
    shadowed_modules,
    shifted_masks,
)
from pytest_gpucoexist.processes.launch import LaunchOrder, find_interpreter
from pytest_gpucoexist.processes.process import VendorProcess
from pytest_gpucoexist.processes.scoping import Scoped, mask_names, scope_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from pytest_gpucoexist.model.machine import Gpu, Machine, NumaNode
    from pytest_gpucoexist.model.visibility.write import MaskStyle
    from pytest_gpucoexist.processes.records import CallResult
    from pytest_gpucoexist.processes.references import Reference
    from pytest_gpucoexist.processes.watchdog import Ending

__all__ = ["OpenedProcess", "open_process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedProcess:
    """A process of one vendor: what it was given, and the process. `notes` say what could not be done."""

    vendor: Vendor
    devices: tuple[str, ...]
    scoped: Scoped
    process: VendorProcess
    host: Host
    notes: tuple[str, ...] = ()

    def run(self, function: Callable[..., Any] | Reference, *args: Any, deadline_s: float = 60.0) -> Any:
        """Call a module-level function in it (`VendorProcess.run`)."""
        return self.process.run(function, *args, deadline_s=deadline_s)

    def call(self, function: Callable[..., Any] | Reference, *args: Any, deadline_s: float = 60.0) -> CallResult:
        """Call a module-level function in it, and get what it wrote too (`VendorProcess.call`)."""
        return self.process.call(function, *args, deadline_s=deadline_s)

    def breaches(self, *, deadline_s: float = 30.0) -> tuple[Breach, ...]:
        """Return in what it is not its vendor's alone, as it is now: worth asking after its first use.

        What cannot be read is a breach that nobody can rule out.
        """
        found: list[Breach] = []
        maps = f"/proc/{self.process.pid}/maps"
        try:
            found += foreign_libraries(mapped_files(self.host, self.process.pid), self.vendor)
        except OSError as error:
            sentence = f"which libraries the process of {self.vendor} has mapped cannot be read: {error}"
            found.append(Breach(kind="unreadable", subject=maps, sentence=sentence))
        try:
            inside = self.process.inspect(mask_names(), WATCHED, "|".join(WATCHED_OWNERS), deadline_s=deadline_s)
        except VendorProcessError as error:
            sentence = f"the process of {self.vendor} does not say what it has loaded: {error}"
            return (*found, Breach(kind="unreadable", subject=str(self.process.pid), sentence=sentence))
        found += shadowed_modules(inside.modules, self.vendor)
        found += shifted_masks(inside.variables, self.scoped.environment, mask_names())
        return tuple(found)

    def close(self, reason: str = "it is not needed any more") -> Ending:
        """End it (`VendorProcess.close`)."""
        return self.process.close(reason)

    def __enter__(self) -> OpenedProcess:  # noqa: PYI034 - Self is of Python 3.11
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it."""
        self.close()


def open_process(
    gpus: Sequence[Gpu],
    machine: Machine,
    vendor: Vendor,
    *,
    host: Host,
    environ: Mapping[str, str] | None = None,
    python: str | None = None,
    style: MaskStyle = "auto",
    node: NumaNode | None = None,
    deadline_s: float = 30.0,
) -> OpenedProcess:
    """Start a process of `vendor` that sees exactly `gpus`. `host` is this machine; `machine` may be a simulated one.

    `environ` is the caller's (default: that of `host`), `python` the interpreter (default: this one), `node` the NUMA
    node to whose CPUs and memory it is bound, within what the caller may use. Raises RequirementError for devices of
    another vendor, VendorLaunchError when it does not start within `deadline_s` seconds.
    """
    if not sys.platform.startswith("linux"):
        raise VendorLaunchError(f"vendor processes run on Linux, and this is {sys.platform}")
    environ = host.environ if environ is None else environ
    # By name: a virtual environment's interpreter is a link to that of another.
    same = python is None or os.path.abspath(python) == os.path.abspath(sys.executable)
    scoped = scope_environment(
        environ, gpus, machine, vendor, style=style, contents=folder_contents(host, environ), same_interpreter=same
    )
    cpus, notes = _cpus_of(node)
    order = LaunchOrder(
        python=sys.executable if python is None else find_interpreter(python, scoped.environment),
        environment=scoped.environment,
        cpus=cpus,
        node=None if node is None else node.id,
        deadline_s=deadline_s,
    )
    process = VendorProcess(order, host)
    return OpenedProcess(
        vendor=vendor,
        devices=tuple(gpu.key for gpu in gpus),
        scoped=scoped,
        process=process,
        host=host,
        notes=(*notes, *process.notes),
    )


def _cpus_of(node: NumaNode | None) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
    """Return the CPUs of a node that the caller may use, and why there are none."""
    if node is None:
        return None, ()
    mine = os.sched_getaffinity(0)
    wanted: set[int] = set()
    for part in filter(None, (node.cpulist or "").split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return None, (f"CPU affinity not bound: the CPUs of node {node.id} are not understood: {node.cpulist}",)
        wanted.update(range(int(first), int(last or first) + 1))
    found = tuple(sorted(wanted & mine))
    if not found:
        return None, (f"CPU affinity not bound: no CPU of node {node.id} ({node.cpulist or 'none'}) is the caller's",)
    return found, ()
