"""Processes that count PIDs or time in namespaces of their own, as containers do, and share the folder of leases."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.leases.processes import need

if TYPE_CHECKING:
    from tests.leases.conftest import Start

N0 = "0000:41:00.0"


def unshared(*options: str) -> list[str]:
    """Return a command that runs another one in namespaces of its own; skip where that is not allowed."""
    command = ["unshare", *options]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs root and namespaces: {' '.join(command)} fails: {error}")
    return command


@pytest.mark.parametrize("theirs", [["-pf", "--mount-proc"], ["-pf"]], ids=["pids", "pids-and-the-host's-proc"])
@pytest.mark.parametrize(
    "mine",
    [["-pf", "--mount-proc"], ["-pf"], [], ["-Tf", "--monotonic", "100000"]],
    ids=["pids", "pids-and-the-host's-proc", "none", "time"],
)
def test_numbers_of_another_namespace_are_neither_mine_nor_above_me(
    start: Start, theirs: list[str], mine: list[str]
) -> None:
    """Both may be process 1: the one waits for the other all the same, and is served when it is its turn."""
    holder = start(under=unshared(*theirs), kin=True).ready()
    waiter = start(under=unshared(*mine) if mine else (), kin=True).ready()
    number = holder.ask("acquire", "test_a", [need([N0])])[0]
    name, words = waiter.refusal("acquire", "test_b", [need([N0])], 0.1)
    assert name == "DeviceBusyError"
    assert f"{N0} is held by test_a in process 1 (pytest)" in words
    assert "waits for this one" not in words
    waiter.tell("acquire", "test_b", [need([N0])])
    waiter.waits()
    holder.ask("release", number)
    assert waiter.answer()[1][1] == [[N0]]
