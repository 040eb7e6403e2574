"""A machine as it was when somebody said that it was right, and what has changed since."""

from pytest_gpucoexist.gates.baseline.difference import Difference, diff
from pytest_gpucoexist.gates.baseline.order import baseline_card_order, card_order
from pytest_gpucoexist.gates.baseline.record import Baseline, BaselineGpu, baseline_of
from pytest_gpucoexist.gates.baseline.store import Loaded, load, save

__all__ = [
    "UNBUILT",
    "Baseline",
    "BaselineGpu",
    "Difference",
    "Loaded",
    "baseline_card_order",
    "baseline_of",
    "card_order",
    "diff",
    "load",
    "save",
]

UNBUILT: dict[str, str] = {}
"""Rows of the catalogue that are no gate of their own, and why: none."""
