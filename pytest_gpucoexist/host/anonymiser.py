"""Replace personal values: in texts, paths, files and replies, everywhere by the same.

What is looked for: the values that `personal.Details` found, whatever has the form of a personal value (UUID, MAC and
IP address), and the names that people gave to folders of their own.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.host.caller import FIRST_USER_ID
from pytest_gpucoexist.host.kernel_lines import BOOT_PARAMETERS, LOG_FILES, telling_lines, without_programs
from pytest_gpucoexist.host.kernel_log import KEPT_LOG
from pytest_gpucoexist.host.personal import MAC, PRIVATE_IPV4, UNIQUE_ID_LINE, UUID, VISIBLE_UUID
from pytest_gpucoexist.host.places import KERNEL_AREA, PRIVATE_PATH, renamed
from pytest_gpucoexist.host.scramble import Scrambler
from pytest_gpucoexist.host.scrub import cgroup_folder, mounts, process_name_in, process_status
from pytest_gpucoexist.model.programs import is_known_program

if TYPE_CHECKING:
    from pytest_gpucoexist.host.personal import Details

__all__ = ["PUBLIC_FILES", "SHORT", "Anonymiser"]

SHORT = 6
"""A serial shorter than this is replaced in its own file only: elsewhere the same digits are something else."""
_SMALL_NUMBER = 2**32
"""A unique id below this has too few digits to be told from other numbers; it is replaced in its own files only."""
# A host's name with its domain: at least two more labels, so that `host.json` is none.
_DOMAIN = r"(?:(?:\.[a-z0-9-]+){2,}|(?!\w))"
_WORD_BEFORE, _WORD_AFTER = r"(?<![\w.-])", r"(?![\w-])"
_VISIBLE_PREFIX = re.compile(r"(?:MIG-)?GPU-|MIG-", re.IGNORECASE)
_MASK_TOKEN = re.compile(r"((?:MIG-)?GPU-|MIG-)([0-9a-f][0-9a-f-]*)", re.IGNORECASE)
_UNIQUE_ID_FILE = re.compile(r"^((?:0x)?)([0-9a-fA-F]{1,16})(?=\s*\Z)")
_COMMAND_FILES = re.compile(r"/proc/(?:\d+|self)(?:/task/\d+)?/(cmdline|comm|environ)")
_BLANKED_FILES = frozenset({"edid", "vpd"})
PUBLIC_FILES = frozenset({"pci.ids"})  # a megabyte of product names
# Parameters of the kernel's command line that say something about GPUs and memory; others can name disks and hosts.
_KERNEL_PARAMETER = re.compile(
    r"(?:\w*iommu\w*|nvidia\S*|nouveau\S*|amdgpu\S*|radeon\S*|i915\S*|xe\.\S*|modprobe\.blacklist|module_blacklist|pci\w*"
    r"|rd\.driver\.blacklist|rdblacklist|nomodeset|nova\S*|vfio\S*"
    r"|hugepages\w*|default_hugepagesz|numa\w*|mitigations|quiet|splash|ro|rw)(?:=\S*)?"
)


_CGROUP_FILES = re.compile(r"/proc/(?:\d+|self)/cgroup")
_MOUNT_FILES = re.compile(r"/proc/(?:\d+/|self/)?mount(?:s|info)")
_MAP_FILES = re.compile(r"/proc/(?:\d+|self)/(?:s?maps|numa_maps)")
_STAT_FILES = re.compile(r"/proc/(?:\d+|self)/(?:task/\d+/)?(?:stat|sched)")
_STATUS_FILES = re.compile(r"/proc/(?:\d+|self)/status")
_CGROUP_PART = re.compile(r"[^/\n]+")
_CGROUP_PLAIN = frozenset({"..", "docker", "machine.slice", "init.scope", "system.slice", "user.slice"})
_CGROUP_WORD = re.compile(r"(?:docker|kubepods|libpod|crio|lxc|containerd|slurm)\b")
_PROCESS_LINK = re.compile(r"/proc/(?:\d+|self)/(?:task/\d+/)?(?:fd/\d+|cwd|exe|root|map_files/.+)")
_SYSTEM_GROUPS = frozenset({"render", "video", "nogroup", "nobody"})


class Anonymiser:
    """Replaces the details that were found, and whatever has the form of a personal value."""

    def __init__(self, details: Details, key: bytes) -> None:
        self._scrambler = Scrambler(key)
        self._details = details
        self._unique: dict[str, str] = {}
        for number in details.unique_ids:
            if number >= _SMALL_NUMBER:
                fake = self._scrambler.number(number)
                self._unique[f"{number:016x}"] = self._unique[f"{number:x}"] = f"{fake:016x}"
                self._unique[str(number)] = str(fake)
        serials = {serial for serial in details.serials if len(serial) >= SHORT}
        values = _alternatives({*serials, *self._unique}, before=r"(?<![0-9A-Za-z])(?:0x0*)?", after=r"(?![0-9A-Za-z])")
        # One pass, so that nothing is replaced twice: the first form that fits at a place wins.
        self._strict = re.compile(
            f"(?P<value>{values})|(?P<visible>{VISIBLE_UUID})|(?P<scrambled>{UUID}|{MAC})"
            f"|(?P<address>{PRIVATE_IPV4}|{_alternatives(details.addresses, before=_WORD_BEFORE, after=_WORD_AFTER)})",
            re.IGNORECASE,
        )
        self._names = re.compile(
            f"(?P<home>{_alternatives(details.homes, before=_WORD_BEFORE, after=_WORD_AFTER)})"
            f"|(?P<host>{_alternatives(details.hosts, before=_WORD_BEFORE, after=_DOMAIN)})"
            f"|(?P<user>{_alternatives(details.users, before=_WORD_BEFORE, after=_WORD_AFTER)})",
            re.IGNORECASE,
        )

    def text(self, text: str) -> str:
        """Replace in free text."""
        return PRIVATE_PATH.sub(lambda match: renamed(match[0], self._scrambler.tag), self.words(text))

    def words(self, text: str) -> str:
        """Replace in a text of the kernel, whose paths (`/soc/gpu@0`) nobody chose."""
        return self._names.sub(self._name, self.strict(text))

    def strict(self, text: str) -> str:
        """Replace what cannot be mistaken: UUIDs, serials, MAC and IP addresses. For names of the kernel's files."""
        return self._strict.sub(self._replacement, text)

    def mask(self, value: str) -> str:
        """Replace in a list of devices, where the beginning of a UUID may be very short."""
        return ",".join(
            f"{match[1]}{self._scrambler.text(match[2], hexadecimal=True)}"
            if (match := _MASK_TOKEN.fullmatch(token))
            else self.text(token)
            for token in value.split(",")
        )

    def path(self, path: str) -> str:
        """Replace in a path; in the kernel's own folders a user's name may be a word of the kernel."""
        if path.startswith("/sys/fs/cgroup/"):
            return cgroup_folder(path, self._cgroup_name)
        if path == KEPT_LOG:
            return path
        return self.strict(path) if KERNEL_AREA.match(path) else self.text(path)

    def link(self, path: str, target: str) -> str:
        """Replace in a link's text, which may be relative to a folder that changes its name."""
        absolute = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if _PROCESS_LINK.fullmatch(path) and absolute.startswith("/") and not KERNEL_AREA.match(absolute):
            return "/name"  # what a person has open; only that it is no device matters
        new = self.path(absolute)
        return self.strict(target) if new == self.strict(absolute) else new

    def group(self, name: str, gid: int) -> str:
        """Replace the name of a group of people; the system's own (`render`, `video`) stay."""
        new = self.words(name)
        if gid < FIRST_USER_ID or new != name or name in _SYSTEM_GROUPS:
            return new
        return f"name-{self._scrambler.tag(name)}"

    def content(self, path: str, content: bytes) -> bytes:
        """Replace in a file."""
        name = path.rpartition("/")[2]
        if name in PUBLIC_FILES:
            return content
        if name in _BLANKED_FILES:
            return bytes(len(content))
        if name == "config":
            return _without_serial_capability(content)
        text = content.decode("utf-8", "surrogateescape")
        command = _COMMAND_FILES.fullmatch(path)
        if name == "unique_id" and _UNIQUE_ID_FILE.match(text):
            return _UNIQUE_ID_FILE.sub(self._unique_file, text).encode("utf-8", "surrogateescape")
        if command is not None:
            text = self.process(text) if command[1] == "comm" else self._command(text)
        elif path == "/proc/cmdline":
            text = f"{self._boot_parameters(text)}\n"
        elif LOG_FILES.fullmatch(path):
            text = self.kernel_log(text)
        elif _MOUNT_FILES.fullmatch(path):
            text = self.words(mounts(text))
        elif _MAP_FILES.fullmatch(path):
            text = self.text(text)
        elif _STAT_FILES.fullmatch(path):
            text = process_name_in(text, self.process)
        elif _STATUS_FILES.fullmatch(path):
            text = process_status(text)
        elif _CGROUP_FILES.fullmatch(path):
            text = "\n".join(self._cgroup(line) for line in text.splitlines() if line.count(":") > 1) + "\n"
        elif text.strip() in self._details.serials:
            text = text.replace(text.strip(), self._scrambler.text(text.strip()))
        elif name == "properties":
            text = self.words(UNIQUE_ID_LINE.sub(self._unique_line, text))
        else:
            text = self.words(text) if KERNEL_AREA.match(path) else self.text(text)
        return text.encode("utf-8", "surrogateescape")

    def kernel_log(self, text: str) -> str:
        """Replace in a kernel's log, of which only the lines stay that a record may hold."""
        text = without_programs(telling_lines(text), self.process)
        return self.text(BOOT_PARAMETERS.sub(lambda match: self._boot_parameters(match[0]), text))

    def _boot_parameters(self, line: str) -> str:
        return self.words(" ".join(filter(_KERNEL_PARAMETER.fullmatch, line.split())))

    def process(self, name: str) -> str:
        """Replace the name of a program that a person ran, unless anybody may run it; white space at the end stays."""
        bare = name.rstrip("\0\n")
        if is_known_program(bare):
            return name
        return f"process-{self._scrambler.tag(bare)}{name[len(bare) :]}" if bare else name

    def json(self, data: Any, key: str = "") -> Any:
        """Replace in what a helper sent; keys of objects stay."""
        if isinstance(data, dict):
            return {name: self.json(value, key if name == "value" else name) for name, value in data.items()}
        if isinstance(data, list):
            return [self._process_entry(item) if key == "processes" else self.json(item, key) for item in data]
        if isinstance(data, str):
            if data in self._details.serials:
                return self._scrambler.text(data)
            return self._command(data) if key in {"cmdline", "command", "command_line"} else self.text(data)
        if isinstance(data, int) and not isinstance(data, bool) and data in self._details.unique_ids:
            return self._scrambler.number(data)
        return data

    def _process_entry(self, item: Any) -> Any:
        clean = self.json(item)
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            clean["name"] = self.process(item["name"])
        return clean

    def _unique_file(self, match: re.Match[str]) -> str:
        number = int(match[2], 16)
        return f"{match[1]}{self._scrambler.number(number):0{len(match[2])}x}" if number else match[0]

    def _unique_line(self, match: re.Match[str]) -> str:
        return f"{match[1]}{self._scrambler.number(int(match[2]))}"

    def _cgroup(self, line: str) -> str:
        """Keep of a control group's path the words that tell a container: the others name users, jobs and programs."""
        number, controllers, path = line.split(":", 2)
        return f"{number}:{controllers}:{_CGROUP_PART.sub(self._cgroup_part, path)}"

    def _cgroup_part(self, match: re.Match[str]) -> str:
        return self._cgroup_name(match[0])

    def _cgroup_name(self, part: str) -> str:
        if part in _CGROUP_PLAIN:
            return part
        word = _CGROUP_WORD.match(part)
        return f"{word[0]}-{self._scrambler.tag(part)}" if word else f"name-{self._scrambler.tag(part)}"

    def _command(self, text: str) -> str:
        return f"command-{self._scrambler.tag(text)}\0" if text else text

    def _replacement(self, match: re.Match[str]) -> str:
        if match.lastgroup == "value":
            return self._value(match[0])
        if match.lastgroup == "visible":
            prefix, digits = _VISIBLE_PREFIX.match(match[0]), _VISIBLE_PREFIX.sub("", match[0])
            assert prefix is not None
            return prefix[0] + self._scrambler.text(digits, hexadecimal=True)
        if match.lastgroup == "scrambled":
            return self._scrambler.text(match[0], hexadecimal=True)
        return self._address(match[0])

    def _name(self, match: re.Match[str]) -> str:
        value = match[0].lower()
        if match.lastgroup == "home":
            return f"/home/user-{self._scrambler.tag(value.rpartition('/')[2])}"
        if match.lastgroup == "host":
            return f"host-{self._scrambler.tag(value.partition('.')[0])}"
        return f"user-{self._scrambler.tag(value)}"

    def _value(self, value: str) -> str:
        prefix = value[:2] if value[:2] in {"0x", "0X"} else ""
        digits = value[len(prefix) :]
        known = self._unique.get(digits.lower()) or (self._unique.get(digits.lstrip("0").lower()) if prefix else None)
        if known is None:
            return self._scrambler.text(value)
        return prefix + (known.upper() if digits.isupper() else known)

    def _address(self, value: str) -> str:
        tag = int(self._scrambler.tag(value.lower()), 16)
        if ":" in value:
            return f"2001:db8::{tag >> 16:x}:{tag & 0xFFFF:x}"  # RFC 3849
        return f"198.{18 + (tag >> 16) % 2}.{tag >> 8 & 255}.{tag & 255}"  # RFC 2544: addresses of test networks


def _alternatives(values: set[str], *, before: str, after: str) -> str:
    """Return a pattern of any of the values, longest first; of no value, one that never matches."""
    if not values:
        return r"(?!)"
    body = "|".join(re.escape(value) for value in sorted(values, key=lambda value: (-len(value), value)))
    return f"{before}(?:{body}){after}"


def _without_serial_capability(config: bytes) -> bytes:
    """Zero the Device Serial Number (PCI Express Base, 7.9.3: extended capability 3) in a configuration space."""
    data = bytearray(config)
    offset, seen = 0x100, set[int]()
    while 0x100 <= offset <= len(data) - 12 and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(data[offset : offset + 4], "little")
        if header & 0xFFFF == 3:
            data[offset + 4 : offset + 12] = bytes(8)
        offset = header >> 20
    return bytes(data)
