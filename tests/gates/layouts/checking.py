"""The one check that every healthy machine passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.probes import discover
from tests.gates.layouts.tables import decided_share, judged_whole, letters_of, read_tables

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.host.base import Host

__all__ = ["check_healthy"]

_WRITE = "if that is right: python -m tests.gates.layouts.write"


def check_healthy(table: Path, name: str, host: Host) -> None:
    """Judge a healthy machine: nothing fails or breaks or blocks, enough is decided, and it is as the table says."""
    judgement = judged_whole(host)
    wrong = [
        f"{verdict.id}: {verdict.status}: {verdict.reason}"
        for verdict in judgement.verdicts
        if verdict.status in {"FAIL", "ERROR"} or verdict.blocks
    ]
    assert wrong == []
    assert judgement.fit is not False
    assert judgement.unfit == {}
    letters = letters_of(judgement)
    expected = read_tables(table).get(name)
    assert expected is not None, f"no column {name} in {table}: {_WRITE}"
    assert decided_share(letters) >= expected.least_decided
    # Where no GPU computes, nothing is there to be decided on.
    assert expected.least_decided > 0 or not any(gpu.is_compute for gpu in discover(host).gpus)
    changed = {
        gate: f"{expected.letters.get(gate, '-')} -> {letters.get(gate, '-')}"
        for gate in sorted({*letters, *expected.letters})
        if letters.get(gate) != expected.letters.get(gate)
    }
    assert changed == {}, _WRITE
