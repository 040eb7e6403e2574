"""Everything that one lease has locked: in the table of a folder, and of the PCI functions themselves."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError
from pytest_gpucoexist.leases.deaths import Board
from pytest_gpucoexist.leases.forks import generation
from pytest_gpucoexist.leases.function import FunctionLock, attribute
from pytest_gpucoexist.leases.heirs import Heirs
from pytest_gpucoexist.leases.table import TableLocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.leases.claims import Claim
    from pytest_gpucoexist.leases.places import Place
    from pytest_gpucoexist.leases.single import FlockLocks, ProcessLocks

__all__ = ["Hold", "Holds"]

_IDLE = 4


class Hold:
    """The kernel's side of one lease, or of one request that waits. Not safe to use from two threads at once."""

    def __init__(self, place: Place) -> None:
        """Open the table of a place. Raises TableMissingError and OSError."""
        self._place = place
        self._generation = generation()
        self.table = _locks(place)
        fd = self.table.fd
        self.board = Board(fd) if fd is not None else None
        self.heirs = Heirs(fd) if fd is not None else None
        self.functions: dict[str, FunctionLock] = {}
        self._unlockable: set[str] = set()
        self._rested: set[str] = set()
        self.claims: dict[str, Claim] = {}

    def function(self, address: str) -> FunctionLock | None:
        """Return the lock of a PCI function, opened when it is first asked for; None where there is none to lock."""
        known = self.functions.get(address)
        if known is not None and address in self._rested:
            self._rested.discard(address)
            if not known.is_there():
                self.functions.pop(address).close()
                known = None
        if known is None and self._place.functions is not None and address not in self._unlockable:
            try:
                known = self.functions[address] = FunctionLock(attribute(self._place.functions, address))
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
                    raise  # to go on without the lock would be to share
                self._unlockable.add(address)  # not in this container's sysfs, or a function that is gone
        return known

    def queue_file(self, claim: Claim) -> tuple[str, int] | None:
        """Return name and descriptor of the file where waiters for a device queue; None where there is none.

        A folder for all users has their queues too. Beside a folder of one user, all meet at the PCI function.
        """
        if claim.function is not None and (self._place.kind != "folder" or self.table.fd is None):
            function = self.function(claim.function)
            if function is not None:
                return claim.function, function.fd
        return None if self.table.fd is None else ("", self.table.fd)

    def trim(self) -> None:
        """Close what only the wait needed."""
        used = {claim.function for claim in self.claims.values()}
        for address in [each for each in self.functions if each not in used]:
            self.functions.pop(address).close()

    def free(self, claim: Claim) -> bool:
        """Whether nobody else has locked it, as far as the table knows. Takes nothing."""
        return self.table.free(claim)

    def take(self, claim: Claim) -> bool:
        """Lock a device, or nothing and return False. Raises DeviceBusyError where what is inherited has just ended."""
        if not self.table.take(claim):
            return False
        if claim.function is not None:
            function = self.function(claim.function)
            wanted = self.table.ranges(claim)
            if function is not None and not function.take(claim, wanted):
                self.table.give(claim)
                return False
        self.claims[claim.key] = claim
        if self.heirs is None:
            return True
        if claim.inherited:
            if claim.lent_in == self._place.folder and not self.heirs.inherit(claim):
                raise DeviceBusyError(f"the lease of {claim.key} that this process inherited has just ended")
        elif self.heirs.orphaned(claim):
            self.give([claim.key])
            return False
        return True

    def lend(self, space: str) -> None:
        """Announce what is held as a lease that can be inherited. Raises OSError."""
        if self.heirs is not None:
            self.heirs.lend(
                space, [claim for claim in self.claims.values() if claim.lent_in in {"", self._place.folder}]
            )

    def give(self, keys: Iterable[str]) -> None:
        """Unlock devices. What is not held is no error."""
        if self._generation != generation():
            return  # a forked child: it has nothing of this
        for key in keys:
            claim = self.claims.pop(key, None)
            if claim is None:
                continue
            if self.heirs is not None:
                self.heirs.take_back(claim)  # first: nobody is to inherit what others can have
            function = self.functions.get(claim.function or "")
            if function is not None:
                function.give(claim)
            self.table.give(claim)

    def intact(self) -> bool:
        """Whether what is locked is still what others would find."""
        return self.table.intact()

    def rest(self) -> None:
        """Give everything back, but keep the files open for the next request of this process."""
        self.give(tuple(self.claims))
        if self.heirs is not None:
            self.heirs.end()
        self._rested = set(self.functions)
        self._unlockable.clear()
        self.table.rest()

    def wake(self) -> bool:
        """Serve another request; return whether it can. Raises TableMissingError."""
        if self._generation != generation():
            return False
        self.table.wake()
        return True

    def close(self) -> None:
        """Unlock everything. Doing so twice is no error."""
        if self._generation != generation():
            return
        self._generation = -1
        self.claims.clear()
        for function in self.functions.values():
            function.close()
        self.table.close()


class Holds:
    """Opens holds, and keeps some open between leases: to open the files costs as much as all the rest.

    Safe to use from several threads.
    """

    def __init__(self, place: Place) -> None:
        """Nothing is opened yet."""
        self._place = place
        self._idle: list[Hold] = []

    def take(self) -> Hold:
        """Return a hold with nothing locked. Raises TableMissingError and GpuCoexistError."""
        while True:
            try:
                hold = self._idle.pop()
            except IndexError:
                return _open(self._place)
            try:
                if hold.wake():
                    return hold
            except BaseException:
                hold.close()
                raise

    def put(self, hold: Hold) -> None:
        """Give everything of a hold back."""
        if len(self._idle) < _IDLE:
            hold.rest()
            self._idle.append(hold)
        else:
            hold.close()

    def close(self) -> None:
        """Close what is kept."""
        while self._idle:
            self._idle.pop().close()


def _open(place: Place) -> Hold:
    """Open a place, and make the folder of this user again if somebody removed it.

    Raises TableMissingError, and GpuCoexistError that says what is wrong with the folder.
    """
    try:
        try:
            return Hold(place)
        except FileNotFoundError:
            if place.kind != "user" or place.folder is None:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(place.folder, 0o755)
            return Hold(place)
    except OSError as error:
        raise GpuCoexistError(
            f"leases cannot be kept in {place.folder} any more: {error.strerror or error}. No device is given without "
            "a lease; --gpu-lease=off takes none"
        ) from error


def _locks(place: Place) -> TableLocks | FlockLocks | ProcessLocks:
    if place.locks == "table" and place.folder is not None:
        return TableLocks(place.folder)
    from pytest_gpucoexist.leases.single import FlockLocks, ProcessLocks

    if place.locks == "flock" and place.folder is not None:
        return FlockLocks(place.folder)
    return ProcessLocks()
