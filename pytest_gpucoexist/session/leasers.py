"""What gives devices to this process, by the options."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.leases.lease import Leaser
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["lease_notes", "make_leaser"]


def make_leaser(session: GpuSession) -> Leaser:
    """Return the leaser of a session: of the machine, or with `--gpu-lease=off` of this process alone.

    A replayed machine is leased under its own name, wherever it was recorded. Raises UserError where the folder of
    leases cannot be used.
    """
    options = session.options
    if options.lease == "off":
        from pytest_gpucoexist.session.unleased import Unleased

        return Unleased(session.machine)
    from pytest_gpucoexist.host import local_host
    from pytest_gpucoexist.leases.opening import open_leaser
    from pytest_gpucoexist.session.discovery import session_host

    # A machine that was read from JSON has no host; one that a plugin calls real is this one.
    host = session_host(session.config, options) or local_host()
    leaser = open_leaser(
        session.machine,
        host,
        lease_dir=options.lease_dir,
        session=session.run_id,
        worker=getattr(session.config, "workerinput", {}).get("workerid"),
        default_memory_bytes=options.default_memory_bytes,
        busy=options.busy,  # type: ignore[arg-type]
    )
    session.config.add_cleanup(leaser.close)
    return leaser


def lease_notes(session: GpuSession) -> tuple[str, ...]:
    """Say for a report where leases were kept, whom they held back and whom not."""
    if session.options.lease == "off":
        return ("No leases were taken (--gpu-lease=off): nobody else was held back from these devices.",)
    from pytest_gpucoexist.host import local_host
    from pytest_gpucoexist.leases.places import find_place
    from pytest_gpucoexist.session.discovery import session_host

    place = find_place(session_host(session.config, session.options) or local_host(), session.options.lease_dir)
    kept = f"Leases were kept in {place.where}. They hold back {place.protects}."
    return kept, *place.limits, *place.notes
