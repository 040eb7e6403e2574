"""In which order DRM numbers the GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.baseline.store import load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.gates.baseline.store import Loaded
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["baseline_card_order", "card_order", "loaded", "sorted_by_card"]


def card_order(machine: Machine) -> tuple[str, ...]:
    """Return the GPUs' keys in the order of their card numbers; those without a card are left out."""
    found = {gpu.pci_address or gpu.key: gpu.drm.card for gpu in machine.gpus if gpu.drm is not None}
    return sorted_by_card(found.items())


def baseline_card_order(subject: Subject) -> tuple[str, ...] | None:
    """Return the order when the baseline was saved; None where there is no baseline."""
    baseline = loaded(subject).baseline
    return None if baseline is None else sorted_by_card((gpu.key, gpu.card) for gpu in baseline.gpus)


def loaded(subject: Subject) -> Loaded:
    """Load this machine's baseline once for all gates."""
    return subject.shared(("baseline", "loaded"), lambda: load(subject.host))


def sorted_by_card(cards: Iterable[tuple[str, str | None]]) -> tuple[str, ...]:
    """Sort keys by the number in `card0`."""
    numbers = [(int(match[1]), key) for key, card in cards if (match := re.fullmatch(r"card(\d{1,4})", card or ""))]
    return tuple(key for _, key in sorted(numbers))
