"""Where a baseline is kept: for the whole machine, or for one user; one file for each machine id.

The machine id itself is confidential (machine-id(5)), so files carry a hash of it that is of use to nobody else: what
systemd's sd_id128_get_machine_app_specific does, HMAC-SHA256 of an id of this application with the machine id as key.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import DataError, UserError
from pytest_gpucoexist.gates.baseline.record import Baseline, baseline_of, from_text, to_text
from pytest_gpucoexist.host.saving import save_file
from pytest_gpucoexist.probes.discovery import discover
from pytest_gpucoexist.probes.reader import reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["SYSTEM_FOLDER", "Loaded", "folders", "load", "machine_id", "read_baseline", "save"]

SYSTEM_FOLDER = "/var/lib/gpucoexist"

_APPLICATION = bytes.fromhex("9e6a4f0d1c5b4c0b8f2d7a33e1f4b6c8")
_MACHINE_ID = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_LIMIT = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The baseline that counts (the newest that can be read), where it lies, and files that are none.

    `damaged` maps a path to what is wrong with it; `searched` lists every place that was looked at.
    """

    baseline: Baseline | None = None
    path: str | None = None
    damaged: tuple[tuple[str, str], ...] = ()
    searched: tuple[str, ...] = ()


def machine_id(host: Host) -> str:
    """Return 32 hexadecimal digits that name this machine, and it alone, to this package only.

    Without a machine id (a container image may have none) the host's name takes its place.
    """
    for path in _MACHINE_ID:
        try:
            text = host.read_text(path, 256).strip()
        except OSError:
            continue
        if re.fullmatch(r"[0-9a-f]{32}", text) and int(text, 16):
            key = bytes.fromhex(text)
            break
    else:
        key = f"name:{host.name}".encode("utf-8", "replace")
    import hmac

    return hmac.new(key, _APPLICATION, hashlib.sha256).hexdigest()[:32]


def folders(host: Host) -> tuple[str, ...]:
    """Return the folders that can hold a baseline: the machine's, then the user's."""
    own = _own_folder(host)
    return (SYSTEM_FOLDER,) if own is None else (SYSTEM_FOLDER, own)


def save(host: Host, machine: Machine, path: str | None = None) -> str:
    """Save a machine as the baseline and return the path.

    Without `path`: in the machine's folder for root and for whoever may write to it, else in the user's. Raises
    UserError that says what to do.
    """
    identity = machine_id(host)
    # Sessions of level quick know only what files tell: that is saved, too.
    also = [discover(host)] if machine.asked else []
    text = to_text(baseline_of(host, machine, identity, *also))
    if path is None:
        if machine.simulated:
            raise UserError("a baseline of a recorded machine needs a name: give a file to write")
        path = f"{_folder_to_write(host)}/{_name(identity)}"
    try:
        save_file(path, text)
    except OSError as error:
        raise UserError(f"cannot write the baseline {path}: {reason(error)}; give another file") from error
    return path


def load(host: Host) -> Loaded:
    """Look for this machine's baseline in both places. Never raises."""
    identity = machine_id(host)
    best: tuple[float, Baseline, str] | None = None
    damaged: list[tuple[str, str]] = []
    searched: list[str] = []
    for path in (f"{folder}/{_name(identity)}" for folder in folders(host)):
        searched.append(path)
        for found in _read(host, path, identity):
            if isinstance(found, str):
                damaged.append((path, found))
            elif best is None or found.saved_at > best[0]:
                best = (found.saved_at, found, path)
    return Loaded(
        baseline=None if best is None else best[1],
        path=None if best is None else best[2],
        damaged=tuple(damaged),
        searched=tuple(searched),
    )


def read_baseline(path: str) -> Baseline:
    """Read a baseline from a file that a person names. Raises UserError."""
    try:
        with open(path, "rb") as file:
            return from_text(file.read(_LIMIT).decode("utf-8", "replace"))
    except OSError as error:
        raise UserError(f"cannot read the baseline {path}: {reason(error)}") from error
    except DataError as error:
        raise UserError(f"cannot read the baseline {path}: {error}") from error


def _read(host: Host, path: str, identity: str) -> Iterator[Baseline | str]:
    try:
        text = host.read_bytes(path, _LIMIT).decode("utf-8", "replace")
    except FileNotFoundError:
        return
    except OSError as error:
        # A folder that was not recorded, or that others may not enter: what is not there for us is no damage.
        if not isinstance(error, (PermissionError, NotADirectoryError)) and host.exists(path):
            yield reason(error)
        elif isinstance(error, PermissionError) and host.exists(path):
            yield f"{reason(error)}; it should be readable by everybody (chmod 644)"
        return
    try:
        baseline = from_text(text)
    except DataError as error:
        yield str(error)
        return
    yield baseline if baseline.machine_id == identity else "it is another machine's"


def _name(identity: str) -> str:
    return f"baseline-{identity}.json"


def _folder_to_write(host: Host) -> str:
    if host.identity().uid == 0:
        return SYSTEM_FOLDER
    try:
        host.may_open(SYSTEM_FOLDER, write=True)
    except OSError:
        own = _own_folder(host)
        if own is None:
            raise UserError(
                f"no place for a baseline: {SYSTEM_FOLDER} cannot be written, and neither"
                " XDG_STATE_HOME nor HOME is set"
            ) from None
        return own
    return SYSTEM_FOLDER


def _own_folder(host: Host) -> str | None:
    """Return the user's folder: the XDG Base Directory Specification's state home. A relative one does not count."""
    state, home = host.environ.get("XDG_STATE_HOME", ""), host.environ.get("HOME", "")
    if state.startswith("/"):
        return f"{state.rstrip('/')}/gpucoexist"
    return f"{home.rstrip('/')}/.local/state/gpucoexist" if home.startswith("/") else None
