"""Reads the records of a folder, of whichever user, without taking anything.

What others wrote is not trusted: a record counts only when it lies in the folder of the user that owns it, and what has
not the right shape is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.leases.forks import close, opened
from pytest_gpucoexist.leases.lease import Holder
from pytest_gpucoexist.leases.ofd import conflict

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Seen", "SeenLease", "SeenWait", "holders_of", "read_record", "records", "sweep"]

_LIMIT_BYTES = 1 << 18
_MOST = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLease:
    """A lease as its holder's record has it. `devices` gives the bytes of a share by key, None for a whole device."""

    number: int
    owner: str
    since_s: float
    devices: Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWait:
    """A request that waits, as its record has it; `devices` are the keys that would do."""

    owner: str
    since_s: float
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One process that uses the folder, or used it until it died (`live` False).

    `uid` is the file's owner; everything else is what that user's process says. `started` is field 22 of its
    `/proc/PID/stat`, `namespace` that of its PID, `digest` of the secret in its tokens.
    """

    path: str
    live: bool
    uid: int
    pid: int
    group: int | None
    session_id: int | None
    started: int | None
    namespace: str | None
    session: str
    worker: str | None
    program: str
    machine: str
    nonce: str
    leases: tuple[SeenLease, ...]
    waits: tuple[SeenWait, ...]
    had: Mapping[str, int | None]

    @property
    def covers(self) -> Mapping[str, int | None]:
        """Bytes of each device that it may have in use, None for all: what it holds, and what it held and may cache."""
        found = dict(self.had)
        sums: dict[str, int] = {}
        for lease in self.leases:
            for key, share in lease.devices.items():
                sums[key] = sums.get(key, 0) + (share or 0)
                before = found.get(key, 0)
                found[key] = None if share is None or before is None else max(before, sums[key])
        return found

    def holders(self) -> Iterator[Holder]:
        """Describe it as the holder of each of its devices."""
        for lease in self.leases:
            for key, share in lease.devices.items():
                yield Holder(
                    key=key,
                    kind="lease",
                    pid=self.pid,
                    uid=self.uid,
                    program=self.program,
                    session=self.session,
                    worker=self.worker,
                    test=lease.owner,
                    since_s=lease.since_s,
                    memory_bytes=share,
                )


def records(folder: str) -> Iterator[Seen]:
    """Yield every record of a folder, those of dead processes too, by user and PID. Never raises."""
    for name in sorted(filter(str.isdecimal, _names(folder))):
        path = os.path.join(folder, name)
        for each in sorted(_names(path)):
            found = read_record(os.path.join(path, each), int(name)) if each.endswith(".json") else None
            if found is not None:
                yield found


def holders_of(seen: Iterable[Seen], machine: str = "") -> Iterator[Holder]:
    """Yield the living holders of a machine's devices; `machine` is the name of a replayed one."""
    for each in seen:
        if each.live and each.machine == machine:
            yield from each.holders()


def read_record(path: str, uid: int | None = None) -> Seen | None:
    """Read one record; None when it is gone, of another user than `uid`, or not what a record looks like."""
    try:
        fd = opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or (uid is not None and found.st_uid != uid):
            return None
        for _ in range(3):  # its owner may be writing it
            data = os.pread(fd, _LIMIT_BYTES, 0)
            # Asked after reading: what was read is then of a process that lived, or is all that it left.
            live = conflict(fd, 0, 1) is not None
            seen = _parsed(path, data, live=live, uid=found.st_uid)
            if seen is not None or not data:
                return seen
    except OSError:
        return None
    finally:
        close(fd)
    return None


def sweep(folder: str, is_named: Callable[[str], bool]) -> None:
    """Remove records that dead processes of this user left, except while the board of marks still names their devices.

    `is_named` says so for the name that a device is locked by.
    """
    own = os.path.join(folder, str(os.geteuid()))
    for name in _names(own):
        path = os.path.join(own, name)
        seen = read_record(path, os.geteuid())
        if seen is None and _is_scrap(path):
            with contextlib.suppress(OSError):
                os.unlink(path)
        if seen is None or seen.live:
            continue
        prefix = f"{seen.machine}:" if seen.machine else ""
        if not any(is_named(prefix + key) for lease in seen.leases for key in lease.devices):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _is_scrap(path: str) -> bool:
    """Whether it is a record whose process died before it had written anything."""
    try:
        fd = opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        return stat.S_ISREG(found.st_mode) and not found.st_size and conflict(fd, 0, 1) is None
    except OSError:
        return False
    finally:
        close(fd)


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _parsed(path: str, data: bytes, *, live: bool, uid: int) -> Seen | None:
    try:
        fields = json.loads(data)
        return Seen(
            path=path,
            live=live,
            uid=uid,
            pid=_number(fields["pid"]),
            group=_maybe(fields["group"]),
            session_id=_maybe(fields["session_id"]),
            started=_maybe(fields["started"]),
            namespace=_text(fields["namespace"]) or None,
            session=_text(fields["session"]),
            worker=_text(fields["worker"]) or None,
            program=_text(fields["program"]),
            machine=_text(fields["machine"]),
            nonce=_text(fields["nonce"]),
            leases=tuple(
                SeenLease(
                    number=_number(each["number"]),
                    owner=_text(each["owner"]),
                    since_s=_time(each["since"]),
                    devices={_text(key): _maybe(share) for key, share in each["devices"]},
                )
                for each in fields["leases"]
            ),
            waits=tuple(
                SeenWait(
                    owner=_text(each["owner"]),
                    since_s=_time(each["since"]),
                    devices=tuple(_text(key) for key in each["devices"]),
                )
                for each in fields["waits"]
            ),
            had={_text(key): _maybe(share) for key, share in fields["had"]},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"not a number: {value!r}")
    if not 0 <= value <= _MOST:
        raise ValueError("a number that nothing here has")
    return value


def _time(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds <= _MOST:  # nor is it infinite, or none
        raise ValueError("a time that never was")
    return seconds


def _maybe(value: Any) -> int | None:
    return None if value is None else _number(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"not a text: {value!r}")
    # It is shown on other users' terminals: nothing in it may command one, or fail to be written there.
    if value.isprintable():
        return value
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in value)
