"""One line of a kernel log, whoever printed it and however it was saved."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Record"]


class Record(NamedTuple):
    r"""What one line says, without the decoration that a tool put before it.

    A tuple because a log has tens of thousands of them and a frozen dataclass costs five times as much to make.

    `number` counts the lines of the text from 1; a record of several lines (`\n` in the message, rsyslog's `#012`)
    gives several `Record`s of one number. `message` starts after time stamp, host and `kernel:`; a program's tag
    (`modprobe: `) stays. `time_s` is seconds since boot, `wall_s` seconds since the epoch, whichever the form has;
    a wall clock without a zone is read as UTC and one without a year as of the year 1970, so that only differences
    mean something. `level` is the kernel's (0 emergency to 7 debug). `device` is the PCI address in a `/dev/kmsg`
    record's ` DEVICE=` line.
    """

    number: int
    message: str
    time_s: float | None = None
    wall_s: float | None = None
    level: int | None = None
    sequence: int | None = None
    raw: str = ""
    device: str | None = None
