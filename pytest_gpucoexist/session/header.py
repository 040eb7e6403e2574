"""The lines at the top of a session: what was asked for, which machine, and SIMULATED where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import GpuCoexistError

if TYPE_CHECKING:
    from pytest_gpucoexist.leases.places import Place
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["CollectionHeader", "Header", "collection_header", "machine_lines"]


class Header:
    """Says what was asked for. The machine is described once it is known that a test needs it."""

    def __init__(self, session: GpuSession) -> None:
        """`session` has the options."""
        self._session = session

    def pytest_report_header(self) -> list[str]:
        """Name every option in force."""
        options = self._session.options
        words = [name if text == "True" else f"{name}={text}" for name, text in options.given.items()]
        lines = [f"gpucoexist: {', '.join(words)}"]
        if options.machine is not None:
            lines.append(f"gpucoexist: SIMULATED machine {options.machine!r}: nothing below is about this computer")
        return lines


class CollectionHeader:
    """Describes the machine after collection, because only then it is known that a test needs it."""

    def __init__(self, lines: list[str]) -> None:
        """`lines` are finished."""
        self.lines = lines

    def pytest_report_collectionfinish(self) -> list[str]:
        """Show them below the number of collected tests."""
        return self.lines


def collection_header(session: GpuSession) -> CollectionHeader:
    """Make the lines about the machine of this session, which has been discovered."""
    machine = session.machine()
    if getattr(session.config.option, "verbose", 0) < 0:
        from pytest_gpucoexist.session.gating import gate_lines

        simulated = [f"SIMULATED machine: {machine.name}"] if machine.simulated else []
        return CollectionHeader(simulated + gate_lines(session))
    lines = machine_lines(session)
    count = session.selected
    lines.append(f"  {count} selected test{'' if count == 1 else 's'} need{'s' if count == 1 else ''} a GPU")
    return CollectionHeader(lines)


def machine_lines(session: GpuSession) -> list[str]:
    """Describe the machine of a session, which has been discovered, and what was asked for."""
    from pytest_gpucoexist.reports.terminal import machine_header
    from pytest_gpucoexist.session.gating import gate_lines
    from pytest_gpucoexist.session.summary import session_screen

    options = session.options
    lines = machine_header(
        session.machine(),
        promised=options.require,
        simulate=None if options.plan or options.observe else options.simulate,
        observe=options.observe,
        interferences=_interferences(session),
        screen=session_screen(session.config),
    )
    return lines + gate_lines(session)


def _interferences(session: GpuSession) -> list[str]:
    options = session.options
    lines = [] if options.mask_style == "auto" else [f"mask style: {options.mask_style}"]
    if options.plan or options.observe or (session.machine().simulated and not options.simulate):
        return lines
    if options.lease == "off":
        lines.append("no lease is taken (--gpu-lease=off): other sessions may use the same devices at the same time")
        return lines
    if options.busy == "share":
        lines.append("tests share devices with processes that use them without a lease (--gpu-busy=share)")
    if options.default_memory_bytes is not None:
        from pytest_gpucoexist.model.arguments import format_bytes

        lines.append(f"a test that says no memory leases {format_bytes(options.default_memory_bytes)} of a device")
    if not session.machine().simulated and _takes_leases(session) and (words := _unprotected(session)):
        lines.append(words)
    return lines


def _takes_leases(session: GpuSession) -> bool:
    """Whether any test will be given a device; a controller, which knows no tests, goes by its devices."""
    if not session.selected_needs:
        return any(gpu.is_compute and gpu.visible and gpu.fit for gpu in session.machine().gpus)
    return any(session.decide(need).outcome == "run" for need in session.selected_needs)


def _unprotected(session: GpuSession) -> str | None:
    """Say where leases are kept and what they therefore do not protect against.

    None where it is an administrator's folder.
    """
    try:
        place: Place | None = getattr(session.leaser, "place", None)
    except GpuCoexistError as error:
        return str(error)
    if place is None:
        return None
    if place.kind == "folder":
        return place.notes[0] if place.notes else None
    against = {
        "user": "other users and containers are not held back",
        "process": "other processes are not held back",
    }[place.kind]
    if place.functions:
        against += ", except at PCI functions that they see in the same sysfs"
    return f"leases: {place.where}; {against} (gpucoexist leases says more)"
