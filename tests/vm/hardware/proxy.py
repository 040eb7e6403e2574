"""Serve a PCI function to QEMU's `x-pci-proxy-dev` over a pair of sockets.

Each message has a head of 16 bytes (command, padding, size of the body) and, for some, file descriptors beside it; the
body of an answer is one number of 8 bytes. Source: include/hw/remote/mpqemu-link.h and hw/remote/proxy.c of QEMU.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vm.hardware.cards import Configuration

__all__ = ["ProxyFunction"]

_HEAD = struct.Struct("<iiQ")
_ANSWER = struct.Struct("<iiQQ")
_CONFIGURATION = struct.Struct("<IIi")  # address, value, length
_BAR = struct.Struct("<QQI?")  # address, value, size, memory
_ALL_ONES = (1 << 64) - 1
_MOST_DESCRIPTORS = 8


class _Command(enum.IntEnum):
    SYNC_SYSMEM = 0
    RET = 1
    CONFIGURATION_WRITE = 2
    CONFIGURATION_READ = 3
    BAR_WRITE = 4
    BAR_READ = 5
    SET_IRQFD = 6
    DEVICE_RESET = 7


_UNANSWERED = {_Command.SYNC_SYSMEM, _Command.SET_IRQFD}


class ProxyFunction:
    """One function. While it is `gone`, every read gives all ones, as from a bus where nobody answers."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.gone = False
        self._mine, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def descriptor(self) -> int:
        """The end of the pair that QEMU inherits."""
        return self._theirs.fileno()

    def start(self) -> None:
        """Serve until QEMU closes its end, which it must have inherited by now."""
        self._theirs.close()
        self._thread.start()

    def close(self) -> None:
        """Let go of both ends."""
        self._mine.close()
        self._theirs.close()

    def _serve(self) -> None:
        try:
            while head := self._receive(_HEAD.size):
                command, _, size = _HEAD.unpack(head)
                body = self._receive(size)
                if command not in _UNANSWERED:
                    answer = self._answer(_Command(command), body)
                    self._mine.sendall(_ANSWER.pack(_Command.RET, 0, 8, answer & _ALL_ONES))
        except OSError:
            return  # the machine ended in the middle of a message

    def _receive(self, size: int) -> bytes:
        """Receive this much, and nothing where QEMU closed its end. Descriptors of its memory are not needed."""
        received = b""
        while len(received) < size:
            part, descriptors, _, _ = socket.recv_fds(self._mine, size - len(received), _MOST_DESCRIPTORS)
            for descriptor in descriptors:
                os.close(descriptor)
            if not part:
                return b""
            received += part
        return received

    def _answer(self, command: _Command, body: bytes) -> int:
        if command is _Command.BAR_READ:
            address, _, _, _ = _BAR.unpack_from(body)
            return self._read_bar(address)
        if command is _Command.CONFIGURATION_READ:
            address, _, length = _CONFIGURATION.unpack_from(body)
            return (1 << 8 * length) - 1 if self.gone else self.configuration.read(address, length)
        if command is _Command.CONFIGURATION_WRITE and not self.gone:
            address, value, length = _CONFIGURATION.unpack_from(body)
            self.configuration.write(address, length, value)
        return 0

    def _read_bar(self, address: int) -> int:
        if self.gone:
            return _ALL_ONES
        base = self.configuration.read(0x10, 4) & ~0xF
        return self.configuration.card.register if address in {0, base} else 0
