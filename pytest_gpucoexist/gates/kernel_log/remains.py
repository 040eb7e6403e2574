"""What a boot that died leaves behind in files and in journald."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.kernel_log.evidence import shorten
from pytest_gpucoexist.gates.kernel_log.traces import crash_of, module_of
from pytest_gpucoexist.kernellog.parse import parse_log
from pytest_gpucoexist.kernellog.stamps import wall_clock
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["Remains", "remains_in_files", "remains_in_journal"]

_RECENT_S = 7 * 86400
"""A dump from longer before this boot is history, not the previous boot."""
_PSTORE = "/sys/fs/pstore"
_KEPT = "/var/lib/systemd/pstore"
_CRASH = "/var/crash"
_DUMP = re.compile(r"dmesg-\w+-.*")
# efi-pstore's ids: seconds since the epoch, then two digits for the part and three for the count.
_EFI = re.compile(r"dmesg-efi(?:_pstore)?-(\d{10})\d{5}")
# kdump-tools: /var/crash/202501011230; kexec-tools: /var/crash/127.0.0.1-2025-01-01-12:30:45.
_KDUMP = re.compile(r"(?:.*-)?(\d{4})-?(\d{2})-?(\d{2})-?(\d{2}):?(\d{2})(?::?\d{2})?")
_KDUMP_FILES = re.compile(r"(?:vmcore-)?dmesg(?:\.\d+|\.txt)|vmcore-dmesg.*")
_FILES = 8
_LIMIT = 2**18
_JOURNAL_S = 3.0
_KERNEL = ("journalctl", "--dmesg", "--boot=-1", "--lines=300", "--no-pager", "--output=short-monotonic")
_LAST = ("journalctl", "--boot=-1", "--identifier=systemd-journald", "--lines=1", "--no-pager", "--output=cat")
_NO_BOOT = ("No such boot", "no persistent journal", "not available", "No journal", "Failed to")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """One place that was looked at. `problem`: it shows a crash; `decides`: it would have shown one."""

    source: str
    found: str
    words: str = ""
    module: str | None = None
    problem: bool = False
    read: bool = True
    decides: bool = False

    def evidence(self) -> Evidence:
        """Return it as a verdict shows it."""
        return Evidence(source=self.source, found=self.found, expected="no crash of the previous boot")


def remains_in_files(subject: Subject) -> Iterator[Remains]:
    """Read crash dumps: pstore's, those that systemd moved out of it, kdump's. A program's own dump is none."""
    booted_s = _booted(subject)
    for folder in (_PSTORE, _KEPT):
        try:
            names = subject.host.list_dir(folder)
        except OSError as error:
            yield Remains(source=folder, found=error.strerror or "cannot be listed", read=False)
            continue
        dumps = list(_dumps(subject, folder, names))
        recent = [path for path in dumps if _recent(_efi_time(path), booted_s)]
        yield from _read_dumps(subject, folder, recent, len(dumps))
    yield from _kdumps(subject, booted_s)


def remains_in_journal(subject: Subject) -> Iterator[Remains]:
    """Ask journald how its previous boot ended: an orderly shutdown stops journald itself last."""
    last = _program(subject, _LAST)
    if isinstance(last, Remains):
        yield last
        return
    kernel = _program(subject, _KERNEL)
    text = kernel if isinstance(kernel, str) else ""
    messages = [record.message for record in parse_log(text)]
    crash = crash_of("\n".join(messages))
    orderly = "Journal stopped" in last
    if crash is not None:
        yield Remains(
            source="journald's previous boot", found=shorten(crash), words=shorten(crash),
            module=module_of(messages), problem=True, decides=True,
        )  # fmt: skip
    elif orderly:
        yield Remains(source="journald's previous boot", found="journald was stopped last", decides=True)
    else:
        end = shorten(messages[-1]) if messages else "no line of the kernel"
        yield Remains(
            source="journald's previous boot", found=f"it ends with: {end}",
            words="its journal breaks off without a shutdown", problem=True, decides=True,
        )  # fmt: skip


def _program(subject: Subject, argv: tuple[str, ...]) -> str | Remains:
    try:
        done = subject.host.run(argv, timeout_s=_JOURNAL_S)
    except OSError as error:
        return Remains(source="journalctl", found=error.strerror or "cannot be run", read=False)
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.timed_out:
        return Remains(source="journalctl", found=f"no answer within {_JOURNAL_S:g} s", read=False)
    text = done.stdout.decode("utf-8", "replace").strip()
    if not text or text == "-- No entries --" or (done.returncode and any(word in said for word in _NO_BOOT)):
        return Remains(source="journald's previous boot", found=shorten(said) or "not kept", read=False)
    return text


def _dumps(subject: Subject, folder: str, names: list[str]) -> Iterator[str]:
    """Return the paths of kernel dumps; systemd sorts those it moved into folders, two deep."""
    for name in names:
        path = f"{folder}/{name}"
        if _DUMP.fullmatch(name) or name == "dmesg.txt":
            yield path
        elif folder.count("/") - _KEPT.count("/") < 2 and folder.startswith(_KEPT):
            yield from _dumps(subject, path, subject.names(path))


def _read_dumps(subject: Subject, folder: str, recent: list[str], count: int) -> Iterator[Remains]:
    if not recent:
        older = f"{count} older ones" if count else "nothing"
        backend = subject.read("/sys/module/pstore/parameters/backend").text
        kept = backend is not None and backend not in {"", "(null)"}
        yield Remains(source=folder, found=older, decides=folder == _PSTORE and kept)
        return
    texts = [text for path in recent[:_FILES] if (text := subject.read(path, _LIMIT).text)]
    whole = "\n".join(texts)
    if not whole:
        yield Remains(
            source=folder, found="dumps that cannot be read", words="it left a dump", problem=True, decides=True
        )
        return
    yield _dump(recent[0], whole)


def _dump(path: str, text: str) -> Remains:
    messages = [record.message for record in parse_log(text)]
    crash = crash_of(text)
    kind = re.match(r"(Panic|Oops|Emergency|Shutdown|Unknown)#\d+", text)
    words = shorten(crash) if crash is not None else f"it left a dump ({kind[1] if kind else 'of an unknown kind'})"
    orderly = crash is None and kind is not None and kind[1] == "Shutdown"  # printk.always_kmsg_dump
    return Remains(
        source=path,
        found=words,
        words=words,
        module=module_of(messages),
        problem=not orderly,
        decides=True,
    )


def _kdumps(subject: Subject, booted_s: float | None) -> Iterator[Remains]:
    try:
        names = subject.host.list_dir(_CRASH)
    except OSError as error:
        yield Remains(source=_CRASH, found=error.strerror or "cannot be listed", read=False)
        return
    recent = [name for name in names if (stamp := _kdump_time(name)) is not None and _recent(stamp, booted_s)]
    for name in recent[-1:]:
        folder = f"{_CRASH}/{name}"
        logs = [each for each in subject.names(folder) if _KDUMP_FILES.fullmatch(each)]
        text = subject.read(f"{folder}/{logs[0]}", _LIMIT).text if logs else None
        if text:
            yield _dump(f"{folder}/{logs[0]}", text)
        else:
            yield Remains(source=folder, found="a dump", words="kdump saved its memory", problem=True, decides=True)
    if not recent:
        yield Remains(source=_CRASH, found="no dump of the previous boot")


def _booted(subject: Subject) -> float | None:
    text = subject.read("/proc/uptime").text or ""
    try:
        return subject.host.time() - float(text.split()[0])
    except (IndexError, ValueError):
        return None


def _recent(stamp: float | None, booted_s: float | None) -> bool:
    """Whether a dump is of the previous boot, as far as that can be told; one without a time is taken for it."""
    return stamp is None or booted_s is None or booted_s - _RECENT_S <= stamp <= booted_s + 300


def _efi_time(path: str) -> float | None:
    match = _EFI.search(path)
    if match is None:
        folder = re.search(r"/pstore/(\d{10})\d{0,9}(?:/|$)", path)
        return float(folder[1]) if folder is not None else None
    return float(match[1])


def _kdump_time(name: str) -> float | None:
    match = _KDUMP.fullmatch(name)
    if match is None:
        return None
    year, month, day, hour, minute = match.groups()
    return wall_clock(f"{year}-{month}-{day}T{hour}:{minute}:00+00:00 ")[0]
