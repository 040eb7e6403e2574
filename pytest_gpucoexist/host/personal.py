"""Which values of a record are personal: by the name of the file or key that holds them, or by their form."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.host.kernel_lines import LOG_FILES, SERIAL

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAC", "PRIVATE_IPV4", "UNIQUE_ID_LINE", "UUID", "VISIBLE_UUID", "Details", "People", "walk_json"]

# Patterns as text, to be joined; all are matched without regard to case.
# The firmware's own variables (SecureBoot-8be4df61-…) carry the same one on every computer: UEFI specification 3.3.
UUID = (
    r"(?<![0-9A-Za-z])(?!8be4df61-93ca-11d2-aa0d-00e098032b8c)"
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9A-Za-z])"
)
VISIBLE_UUID = r"(?<![0-9A-Za-z])(?:(?:MIG-)?GPU-|MIG-)[0-9a-f][0-9a-f-]{2,}[0-9a-f](?![0-9A-Za-z])"
"""A device as masks name it: a UUID, the beginning of one, or AMD's 16 digits."""
MAC = r"(?<![0-9A-Za-z:])(?:[0-9a-f]{2}:){5,19}[0-9a-f]{2}(?![0-9A-Za-z:])"
PRIVATE_IPV4 = r"(?<![\w.])(?:192\.168|172\.(?:1[6-9]|2\d|3[01])|169\.254)\.\d{1,3}\.\d{1,3}(?![\w.])"
UNIQUE_ID_LINE = re.compile(r"^(unique_id[ \t]+)(\d+)$", re.MULTILINE)

# IP addresses, to be looked for only where addresses stand: elsewhere four numbers with dots are a version.
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|fe80:[0-9a-f:]+|(?:[0-9a-f]{1,4}:){4,7}:?[0-9a-f]{1,4})(?![\w.:])",
    re.IGNORECASE,
)
_SERIAL_FILES = frozenset(
    {
        *("serial", "serial_number", "product_serial", "board_serial", "chassis_serial", "product_uuid"),
        *("board_asset_tag", "chassis_asset_tag", "machine-id", "hostid", "uuid", "fru_id"),
    }
)
_SERIAL_KEYS = frozenset({"serial", "serial_number", "asic_serial", "board_serial", "product_serial", "fru_id"})
_HOST_FILES = frozenset({"/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname", "/etc/hostname"})
_ADDRESS_FILES = re.compile(r"/etc/(?:hosts|resolv\.conf)|/proc/(?:\d+/|self/)?net/.*|/proc/cmdline|/proc/mounts")
_HOME = re.compile(r"/(?:home|Users)/([A-Za-z0-9._-]+)")
_NO_VALUE = re.compile(
    r"(?:0+|f+|n/?a|none|unknown|\[n/a\]|default string|to be filled.*|not (?:specified|available).*|)", re.IGNORECASE
)
# Words that name a role or a product: a host called "gpu" must not rename every GPU.
_ORDINARY = frozenset(
    {
        *(
            "amd",
            "amdgpu",
            "compute",
            "cuda",
            "default",
            "demo",
            "docker",
            "gpu",
            "host",
            "intel",
            "linux",
            "localhost",
        ),
        *(
            "localhost",
            "machine",
            "node",
            "none",
            "nvidia",
            "render",
            "rocm",
            "root",
            "server",
            "simulated",
            "system",
            "test",
        ),
        *("ubuntu", "user", "video", "workstation"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Names that the recording process knows: of its host, its users, their homes."""

    hosts: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    homes: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Details:
    """Personal values found so far. Serials are whole values; `unique_ids` are AMD's numbers of 64 bits."""

    hosts: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    homes: set[str] = field(default_factory=set)
    serials: set[str] = field(default_factory=set)
    unique_ids: set[int] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)

    def know(self, people: People) -> None:
        """Take the names that are known from outside."""
        for host in people.hosts:
            self._host(host)
        for user in people.users:
            self._user(user)
        for home in people.homes:
            self.text(f"{home}/")
            if not home.startswith("/root") and home.count("/") >= 2:
                self.homes.add(home.rstrip("/"))

    def text(self, text: str) -> None:
        """Look for homes, and so for user names, in any text."""
        for match in _HOME.finditer(text):
            self.homes.add(match[0])
            self._user(match[1])

    def file(self, path: str, text: str) -> None:
        """Look at a file by its name."""
        name = path.rpartition("/")[2]
        value = text.strip()
        if name == "unique_id":
            self._unique_id(value, 16)
        elif name in _SERIAL_FILES:
            self._serial(value)
        elif path in _HOST_FILES:
            self._host(value)
        elif name == "properties":
            for match in UNIQUE_ID_LINE.finditer(text):
                self._unique_id(match[2], 10)
        elif LOG_FILES.fullmatch(path):
            for match in SERIAL.finditer(text):
                self._serial(match[1])
        elif _ADDRESS_FILES.fullmatch(path):
            self.addresses.update(match[0] for match in _ADDRESS.finditer(text) if not match[0].startswith("127."))
        self.text(text)

    def reply(self, data: Any) -> None:
        """Look at what a helper sent: at keys, and at every text."""
        for key, value in walk_json(data):
            if isinstance(value, str):
                self.text(value)
                if key in {"hostname", "host_name"}:
                    self._host(value)
                elif key in {"user", "username"}:
                    self._user(value)
                elif key in _SERIAL_KEYS:
                    self._serial(value)
            elif key == "unique_id" and isinstance(value, int):
                self.unique_ids.add(value)

    def _host(self, name: str) -> None:
        short = name.partition(".")[0]
        self.hosts.update(each for each in (name, short) if len(each) > 1 and each.lower() not in _ORDINARY)

    def _user(self, name: str) -> None:
        if len(name) > 1 and name.lower() not in _ORDINARY:
            self.users.add(name)

    def _serial(self, value: str) -> None:
        if not _NO_VALUE.fullmatch(value) and not re.fullmatch(UUID, value, re.IGNORECASE):
            self.serials.add(value)

    def _unique_id(self, value: str, base: int) -> None:
        try:
            number = int(value, base)
        except ValueError:
            return
        if number:
            self.unique_ids.add(number)


def walk_json(data: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is no container, with the nearest key above it."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from walk_json(value, key if name == "value" else str(name))
    elif isinstance(data, list):
        for value in data:
            yield from walk_json(value, key)
    else:
        yield key, data
