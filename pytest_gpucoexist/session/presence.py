"""Devices that vanish while tests run: they are looked at when they are handed out, and after a test that failed.

A card that fell off the bus or was unplugged stays in what discovery found. Handing it on would fail test after test;
it is unfit from then on, for every worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.session.discovery import session_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["lost_among", "take_out"]


def lost_among(session: GpuSession, keys: Iterable[str]) -> dict[str, str]:
    """Return the devices that do not answer on the bus any more, each with the gate's words.

    Nothing where gates are off or only warn, or where the machine is replayed. A sleeping device is not woken.
    """
    machine = session.machine()
    if machine.simulated or session.options.gates == "off" or session.options.gate_policy == "warn":
        return {}
    found = {}
    for key in dict.fromkeys(keys):
        gpu = machine.gpu(key)
        if gpu is not None and gpu.pci_address is not None and (words := _lost(session, gpu)):
            found[key] = words
    return found


def _lost(session: GpuSession, gpu: Gpu) -> str | None:
    from dataclasses import replace

    from pytest_gpucoexist.gates.pcie.answers import config_space
    from pytest_gpucoexist.gates.subject import Subject

    host = session_host(session.config, session.options)
    if host is None or config_space.check is None:
        return None
    alone = replace(session.machine(), gpus=(gpu,))
    for finding in config_space.check(Subject(host=host, machine=alone)):
        if finding.status == "FAIL":
            return f"{config_space.id}: {finding.reason}"
    return None


def take_out(session: GpuSession, lost: Mapping[str, str]) -> None:
    """Make devices unfit from now on: in this process, and through the controller in every report."""
    new = {key: words for key, words in lost.items() if key not in session.lost}
    if not new:
        return
    session.quarantine(new)
    if session.teller is not None:
        session.teller.take_out(new)
        return
    for key, words in new.items():
        gpu = session.machine().gpu(key)
        name = key if gpu is None else f"{gpu.id} ({key})"
        said = f"ERROR: {name} was lost during the session. {words}"
        if session.link is None:
            session.notes.append(said)
        else:
            from pytest_gpucoexist.session.remote import tell_note

            tell_note(session.link, said)
