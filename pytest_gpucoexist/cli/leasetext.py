"""The board of leases as text: a table of devices, one of requests that wait, and what the place is good for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.layout import add_row, bold, grid
from pytest_gpucoexist.reports.screen import Screen, render
from pytest_gpucoexist.reports.words import describe_size, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.leases.board import Board, BoardDevice, BoardWait
    from pytest_gpucoexist.leases.lease import Holder

__all__ = ["board_lines", "board_text", "place_text", "span"]

WIDE = 100
"""Columns from which a device's key stands beside its id."""

_STYLES = {"lease": "", "unknown": "yellow", "elsewhere": "yellow", "leftover": "red"}
_KINDS = {"lease": "", "unknown": "", "elsewhere": "without a lease: ", "leftover": "left behind: "}


def board_text(board: Board, screen: Screen) -> str:
    """Write the whole board."""
    simulated = " (SIMULATED: a replayed machine)" if board.simulated else ""
    blocks = [bold(f"Leases of {board.machine}{simulated}: {_summary(board)}", screen)]
    if board.devices:
        blocks += ["", _devices(board, screen)]
    if board.waiting:
        blocks += ["", _waiting(board, screen)]
    return "\n".join([*blocks, "", place_text(board, screen)])


def place_text(board: Board, screen: Screen) -> str:
    """Say where leases are kept, whom they hold back and whom not."""
    from rich.table import Table
    from rich.text import Text

    place = board.place
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    rows = [("kept in", place.where), ("hold back", place.protects)]
    rows += [("but" if number == 0 else "", text) for number, text in enumerate(place.limits)]
    rows += [("note" if number == 0 else "", text) for number, text in enumerate(place.notes)]
    for name, text in rows:
        table.add_row(Text(screen.say(name), style="dim"), Text(screen.say(text)))
    return render(table, screen)


def board_lines(board: Board) -> dict[str, str]:
    """Write each device and each waiting request in a line, by what it is about: to tell what has changed."""
    lines = {}
    for device in board.devices:
        texts = [_who(holder) + _share_words(holder) for holder in device.holders]
        lines[device.key] = f"{_name(device)}: {'; '.join(texts) or 'free'}"
    for wait in board.waiting:
        lines[f"{wait.pid} {wait.test}"] = f"waits, could use {_wanted(board, wait)}: {_waiter(wait)}"
    return lines


def span(seconds: float) -> str:
    """Write how long something has lasted: `4 s`, `3:07`, `2:05:00`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _summary(board: Board) -> str:
    held = sum(any(holder.kind in {"lease", "unknown"} for holder in device.holders) for device in board.devices)
    foreign = sum(
        any(holder.kind in {"elsewhere", "leftover"} for holder in device.holders) for device in board.devices
    )
    parts = [f"{held} of {plural(len(board.devices), 'device')} held" if board.devices else "no device"]
    parts += [f"{foreign} busy without a lease"] if foreign else []
    parts += [f"{plural(len(board.waiting), 'request')} {'waits' if len(board.waiting) == 1 else 'wait'}"]
    return ", ".join(parts if board.waiting else parts[:-1])


def _devices(board: Board, screen: Screen) -> str:
    table = grid(screen, "Device", "Share", "For", "Who", right=("For",))
    for device in board.devices:
        name = _name(device) if screen.width >= WIDE else device.id or device.key
        if not device.holders:
            add_row(table, screen, (name, "bold"), ("free", "green"), ("", ""), (_unknown(device), "dim"))
        for number, holder in enumerate(device.holders):
            since = "" if holder.since_s is None else span(board.read_at_s - holder.since_s)
            style = _STYLES[holder.kind]
            first = (name if number == 0 else "", "bold")
            add_row(table, screen, first, (_share(holder), style), (since, style), (_who(holder), style))
    return render(table, screen)


def _waiting(board: Board, screen: Screen) -> str:
    table = grid(screen, "Could use", "Waits", "Who", right=("Waits",))
    for wait in board.waiting:
        since = span(board.read_at_s - wait.since_s)
        add_row(table, screen, (_wanted(board, wait), ""), (since, ""), (_waiter(wait), ""))
    return render(table, screen)


def _name(device: BoardDevice) -> str:
    return device.key if device.id is None else f"{device.id} {device.key}"


def _unknown(device: BoardDevice) -> str:
    return "" if device.problem is None else f"who uses it without a lease is not known: {device.problem}"


def _share(holder: Holder) -> str:
    if holder.kind == "unknown":
        return "?"
    if holder.memory_bytes is None:
        return "whole" if holder.kind == "lease" else "?"
    return describe_size(holder.memory_bytes)


def _share_words(holder: Holder) -> str:
    return "" if holder.kind == "unknown" else f" ({_share(holder)})"


def _who(holder: Holder) -> str:
    """Say who has a device: user, program and PID, worker and session, test."""
    if holder.kind == "leftover" and holder.program is None:
        whose = "a process" if holder.pid is None else f"PID {holder.pid}"
        return f"left behind: memory of {whose}, which died{_of_test(holder)}"
    if holder.kind == "elsewhere" and holder.pid is None:
        return "without a lease: somebody who cannot be seen from here"
    parts = _person(holder.user, holder.uid, holder.program or "", holder.pid)
    words = ", ".join([*(["somebody without a record"] if holder.kind == "unknown" else []), *parts])
    session = _session(holder.worker, holder.session)
    return _KINDS[holder.kind] + " ".join(filter(None, (words, session))) + _of_test(holder)


def _of_test(holder: Holder) -> str:
    return f": {holder.test}" if holder.test else ""


def _waiter(wait: BoardWait) -> str:
    person = ", ".join(_person(wait.user, wait.uid, "", wait.pid))
    return f"{person} {_session(wait.worker, wait.session)}: {wait.test}"


def _person(user: str | None, uid: int | None, program: str, pid: int | None) -> Iterator[str]:
    if user is not None or uid is not None:
        yield user if user is not None else f"uid {uid}"
    if program:
        yield program
    if pid is not None:
        yield f"PID {pid}"


def _session(worker: str | None, session: str | None) -> str:
    # A session is told by the first letters of its number, as a commit is.
    text = " of ".join(filter(None, (worker, None if session is None else f"session {session[:8]}")))
    return f"({text})" if text else ""


def _wanted(board: Board, wait: BoardWait) -> str:
    """Name the devices that would do, of many some: a record does not say whether all of them are needed, or one."""
    ids = {device.key: device.id or device.key for device in board.devices}
    names = [ids.get(key, key) for key in wait.devices]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} others"
