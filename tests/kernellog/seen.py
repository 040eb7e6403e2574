"""Lines that kernels, drivers and programs print, with what they mean and where each was seen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).with_name("data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    line: str
    rule: str
    severity: str
    source: str
    device: str | None = None


def problems() -> list[Line]:
    with (DATA / "problems.jsonl").open(encoding="utf-8") as file:
        return [Line(**json.loads(text)) for text in file]


def benign() -> list[str]:
    text = (DATA / "benign.txt").read_text(encoding="utf-8")
    return [line for line in text.split("\n") if line and not line.startswith("# ")]


def samples(shared: Path) -> list[Line]:
    with (shared / "facts" / "kernel_log_samples.jsonl").open(encoding="utf-8") as file:
        entries = [json.loads(text) for text in file]
    return [Line(**{name: entry[name] for name in ("line", "rule", "severity", "source")}) for entry in entries]
