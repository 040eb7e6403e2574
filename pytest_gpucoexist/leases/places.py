"""Where leases are kept, and against whom they therefore protect.

The first of these that can be used: the folder that was named; the one that an administrator made; a folder of this
user's own. On this machine the PCI functions are locked in any case, which crosses users and folders (`function.py`).
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.errors import GpuCoexistError, UserError
from pytest_gpucoexist.leases.function import FunctionLock, attribute
from pytest_gpucoexist.leases.layout import KEEPERS
from pytest_gpucoexist.leases.ofd import any_file_locks, available, lock
from pytest_gpucoexist.leases.table import NAME, TableLocks, TableMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.host import Host

__all__ = ["ADMIN_FOLDER", "TMPFILES", "Place", "find_place", "user_folders"]

ADMIN_FOLDER = "/run/gpucoexist"
TMPFILES = f"""\
# Leases of GPUs for all users of this machine (tmpfiles.d(5)). The table belongs to root, so that nobody removes it.
d {ADMIN_FOLDER} 1777 root root -
f {ADMIN_FOLDER}/{NAME} 0666 root root -
"""
FUNCTIONS = "/sys/bus/pci/devices"

_USER_FOLDER = "gpucoexist-"
_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_NO_RANGES = {errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder, and the folder of this machine's PCI functions where they can be locked too.

    `kind`: `folder` for all who may write it, `user` for one user, `process` where there is none. `locks` is what is
    locked in it. `notes` say why a better place was not taken, and what is wrong with this one.
    """

    kind: Literal["folder", "user", "process"]
    folder: str | None
    functions: str | None = None
    locks: Literal["table", "flock", "process"] = "table"
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Name it in a few words."""
        functions = f"PCI functions ({self.functions})" if self.functions else ""
        folder = f"the folder {self.folder}" if self.folder else "this process"
        if self.kind == "folder" or not functions:
            return " and ".join(filter(None, (folder, functions)))
        return f"{functions} and {folder}"

    @property
    def protects(self) -> str:
        """Say against whom a lease of this place protects."""
        if self.kind == "folder":
            text = f"every process that uses {self.folder}, of whichever user or container it is part"
        elif self.kind == "user":
            text = f"every process of this user that sees {self.folder}"
        else:
            text = "the other threads of this process"
        if self.functions:
            text += "; for a device with a PCI function, every process of this machine that sees the same sysfs"
        return text

    @property
    def limits(self) -> tuple[str, ...]:
        """Say what a lease of this place does not protect against, a sentence each."""
        found = ["Processes that take no lease are not held back; --gpu-busy says what follows when they are seen."]
        elsewhere = {
            "folder": f"Containers and sessions without {self.folder} are not held back",
            "user": "Other users and containers with a /tmp of their own are not held back",
            "process": "Other processes are not held back",
        }[self.kind]
        if self.functions:
            elsewhere += (
                ", except at PCI functions; and there not by a container with a network namespace of its own, which "
                "has a sysfs of its own"
            )
        found.append(f"{elsewhere}.")
        if self.locks != "table":
            found.append("Shares of a device's memory are not told apart: a device is always leased whole.")
        if self.kind == "user" and self.functions:
            found.append("What another user's dead process left on a device is seen only as use without a lease.")
        if self.kind != "process":
            found.append("Whoever may lock here can also hold a lock for ever: leases are for people who cooperate.")
        return tuple(found)


def find_place(host: Host, lease_dir: str | None = None) -> Place:
    """Choose the place for the machine that `host` stands for.

    Raises UserError when `lease_dir` cannot be used: another place in its stead would not exclude those who use it. Nor
    would one that is only found because this process has no descriptor left: GpuCoexistError.
    """
    try:
        return _found(host, lease_dir)
    except OSError as error:
        raise GpuCoexistError(f"no place for leases can be looked for: {_words(error)}") from error


def _found(host: Host, lease_dir: str | None) -> Place:
    functions = FUNCTIONS if not host.simulated and host.platform == "linux" and _lockable(FUNCTIONS) else None
    if lease_dir is not None:
        folder = os.path.abspath(lease_dir)
        place = _tried(Place(kind="folder", folder=folder, functions=functions))
        if isinstance(place, str):
            raise UserError(
                f"gpu_lease_dir: leases cannot be kept in {folder}: {place}. Make it a local folder that all who share "
                "the devices may write (mode 1777), or leave the key out"
            )
        return place
    notes: list[str] = []
    if host.platform == "linux" and os.path.lexists(ADMIN_FOLDER):
        place = _tried(Place(kind="folder", folder=ADMIN_FOLDER, functions=functions))
        if not isinstance(place, str):
            return place
        notes.append(f"{ADMIN_FOLDER} is not used: {place}.")
    for root in _roots():
        # Not `host.identity()`: that of a replayed machine is a recorded one.
        folder = os.path.join(root, f"{_USER_FOLDER}{os.geteuid() if hasattr(os, 'geteuid') else 0}")
        place = _own(folder) or _tried(Place(kind="user", folder=folder, functions=functions))
        if not isinstance(place, str):
            return replace(place, notes=(*notes, *place.notes))
        notes.append(f"{folder} is not used: {place}.")
    return Place(kind="process", folder=None, functions=functions, locks="process", notes=tuple(notes))


def user_folders() -> Iterator[tuple[str, int]]:
    """Yield the folders that users made for themselves, with the user's number; only those that are that user's."""
    for root in _roots():
        try:
            names = sorted(os.listdir(root))
        except OSError:
            continue
        for name in names:
            uid = name.removeprefix(_USER_FOLDER)
            if name.startswith(_USER_FOLDER) and uid.isdecimal():
                folder = os.path.join(root, name)
                try:
                    found = os.lstat(folder)
                except OSError:
                    continue
                if stat.S_ISDIR(found.st_mode) and found.st_uid == int(uid):
                    yield folder, int(uid)


def _lockable(functions: str) -> bool:
    """Whether PCI functions can be locked here: some sandboxes show them and have no such locks on them."""
    if not available():
        return False
    try:
        for address in sorted(os.listdir(functions))[:1]:
            function = FunctionLock(attribute(functions, address))
            try:
                return function.works()
            finally:
                function.close()
    except OSError as error:
        _refuse_shortage(error)
    return False


def _refuse_shortage(error: OSError) -> None:
    """Raise what says nothing about a place: others do not run short with this process, and would take the better."""
    if error.errno in _SHORT:
        raise error


def _roots() -> tuple[str, ...]:
    # Not TMPDIR, nor the user's runtime folder: sessions of one user differ in both, and must meet.
    if os.name == "posix":
        return ("/tmp", "/var/tmp")
    import tempfile

    return (tempfile.gettempdir(),)


def _own(folder: str) -> str | None:
    """Make the user's folder; return what is wrong with it."""
    try:
        os.mkdir(folder, 0o755)
        os.chmod(folder, 0o755)  # whatever the umask: others may read who holds what
    except FileExistsError:
        pass
    except OSError as error:
        return _words(error)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        return "it is no folder"
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & 0o022 and os.name == "posix":
        return f"others may write it (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _tried(place: Place) -> Place | str:
    """Return the place as it can be used, or what is wrong with it."""
    folder = str(place.folder)
    try:
        found = os.stat(folder)
        if not stat.S_ISDIR(found.st_mode):
            return "it is no folder"
        place = replace(place, notes=tuple(_doubts(place, found)))
        if not available():
            return _without_ranges(place, "this system has no locks on ranges of a file")
        table = TableLocks(folder)
    except TableMissingError:
        return place  # those who use it know that it works
    except OSError as error:
        _refuse_shortage(error)
        return _table_words(folder, error)
    try:
        lock(table.locked_fd, KEEPERS, 1, shared=True)
    except OSError as error:
        if error.errno in _NO_RANGES:
            return _without_ranges(place, f"its file system has no locks on ranges ({error.strerror})")
        return _words(error)
    finally:
        table.close()
    return place


def _without_ranges(place: Place, why: str) -> Place | str:
    if not any_file_locks():
        return why
    return replace(place, locks="flock", notes=(*place.notes, f"Devices are leased whole: {why}."))


def _doubts(place: Place, found: os.stat_result) -> Iterator[str]:
    if place.kind != "folder" or os.name != "posix":
        return
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        yield f"Anybody may remove the table of {place.folder}: it should have mode 1777."
    if found.st_uid not in {0, os.geteuid()}:
        yield f"{place.folder} belongs to user {found.st_uid}, who may remove its table."


def _table_words(folder: str, error: OSError) -> str:
    if error.errno in {errno.EACCES, errno.EPERM, errno.ELOOP, errno.EINVAL}:
        try:
            found = os.lstat(os.path.join(folder, NAME))
        except OSError:
            return _words(error)
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "a file" if stat.S_ISREG(found.st_mode) else "no plain file"
        mode = stat.S_IMODE(found.st_mode)
        return f"its {NAME} is {kind} of user {found.st_uid} with mode {mode:04o} ({_words(error)})"
    return _words(error)


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
