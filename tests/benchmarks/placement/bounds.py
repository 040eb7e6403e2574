"""How short a run could be: a bound from sums, and where it is not tight the best of many offline list schedules.

Nothing here comes from the scheduler that is measured.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Card", "Hold", "best_schedule", "bound_s"]


@dataclass(frozen=True, kw_only=True)
class Card:
    """A device: its vendor, and its memory in any unit."""

    vendor: str
    size: float


@dataclass(frozen=True, kw_only=True)
class Hold:
    """What a test holds for `seconds`: (vendor, number of devices), `any` for whichever vendor; whole, or a `share`.

    Tests with the same `unit` hold their devices between them, on one worker, after a set-up of `setup_s` that is not
    part of their seconds; a unit may be split, for one more set-up.
    """

    seconds: float
    needs: tuple[tuple[str, int], ...]
    share: float | None = None
    unit: str | None = None
    setup_s: float = 0.0


def bound_s(holds: Sequence[Hold], cards: Sequence[Card], workers: int) -> float:
    """Return the largest of: demand ÷ capacity, of each vendor as well, the longest test, sum of holds ÷ workers.

    Demand is memory times seconds; a whole device counts as the smallest that would do. Each unit is set up once.
    """
    demand = dict.fromkeys(("any", *(card.vendor for card in cards)), 0.0)
    total_s = longest_s = 0.0
    seen: set[str] = set()
    for hold in holds:
        seconds = hold.seconds
        if hold.unit is not None and hold.unit not in seen:
            seen.add(hold.unit)
            seconds += hold.setup_s
        total_s += seconds
        longest_s = max(longest_s, seconds)
        for vendor, count in hold.needs:
            sizes = sorted(
                card.size for card in cards if vendor in {"any", card.vendor} and card.size >= (hold.share or 0)
            )
            amount = sum(sizes[:count]) if hold.share is None else count * hold.share
            for of in {vendor, "any"}:
                demand[of] += seconds * amount
    sizes_of = {vendor: sum(card.size for card in cards if vendor in {"any", card.vendor}) for vendor in demand}
    return max([total_s / workers, longest_s, *(demand[vendor] / sizes_of[vendor] for vendor in demand)])


def best_schedule(
    holds: Sequence[Hold], cards: Sequence[Card], workers: int, *, tries: int = 1000, seed: int = 0
) -> float:
    """Return the length of the best of so many list schedules: by priority rules first, then in random orders.

    Random ones vary the rules by a factor per test, and split units into parts at random.
    """
    chance = random.Random(seed)
    best_s = float("inf")
    for number in range(tries):
        jobs = _jobs(holds, chance, split=number >= 4)
        power = (0.0, 1.0, 2.0, 4.0)[number % 4]
        spread = 0.0 if number < 4 else chance.choice((0.1, 0.3, 1.0, 3.0))
        by_kind = {job.needs: chance.lognormvariate(0.0, spread) for job in jobs}
        order = sorted(
            jobs,
            key=lambda job: (
                -job.seconds
                * sum(count for _, count in job.needs) ** power
                * by_kind[job.needs]
                * chance.lognormvariate(0.0, spread)
            ),
        )
        best_s = min(best_s, _length(order, cards, workers, best_s))
    return best_s


def _jobs(holds: Iterable[Hold], chance: random.Random, *, split: bool) -> list[Hold]:
    units: dict[str, list[Hold]] = {}
    jobs = []
    for hold in holds:
        if hold.unit is None:
            jobs.append(hold)
        else:
            units.setdefault(hold.unit, []).append(hold)
    for members in units.values():
        parts: list[list[Hold]] = [[] for _ in range(chance.choice((1, 1, 1, 2)) if split else 1)]
        shares = [chance.random() for _ in parts]
        for hold in members:
            chance.choices(parts, shares)[0].append(hold)
        for part in filter(None, parts):
            seconds = part[0].setup_s + sum(hold.seconds for hold in part)
            jobs.append(Hold(seconds=seconds, needs=part[0].needs, share=part[0].share))
    return jobs


def _length(order: Sequence[Hold], cards: Sequence[Card], workers: int, give_up_s: float) -> float:
    """Schedule: whenever something ends, start what fits, in this order."""
    free = [card.size for card in cards]
    waiting: dict[tuple[tuple[tuple[str, int], ...], float | None], list[tuple[int, Hold]]] = {}
    for place, job in reversed(list(enumerate(order))):
        waiting.setdefault((job.needs, job.share), []).append((place, job))
    running: list[tuple[float, int, Mapping[int, float]]] = []
    now_s = 0.0
    left = len(order)
    while True:
        heads = sorted((jobs[-1][0], kind) for kind, jobs in waiting.items() if jobs)
        heapq.heapify(heads)
        while heads and len(running) < workers:
            _, kind = heapq.heappop(heads)
            found = _fit(*kind, free, cards)
            if found is None:
                continue
            place, job = waiting[kind].pop()
            for card, amount in found.items():
                free[card] -= amount
            heapq.heappush(running, (now_s + job.seconds, place, found))
            left -= 1
            if waiting[kind]:
                heapq.heappush(heads, (waiting[kind][-1][0], kind))
        if not running:
            if left:
                raise ValueError("a test needs more than there is")
            return now_s
        now_s, _, taken = heapq.heappop(running)
        if now_s >= give_up_s:
            return give_up_s
        for card, amount in taken.items():
            free[card] += amount


def _fit(
    needs: tuple[tuple[str, int], ...], share: float | None, free: Sequence[float], cards: Sequence[Card]
) -> dict[int, float] | None:
    taken: dict[int, float] = {}
    for vendor, count in sorted(needs, key=lambda need: need[0] == "any"):
        fitting = [
            (free[number], number)
            for number, card in enumerate(cards)
            if number not in taken
            and vendor in {"any", card.vendor}
            and (free[number] == card.size if share is None else free[number] >= share)
        ]
        if len(fitting) < count:
            return None
        for _, number in sorted(fitting)[:count]:  # best fit
            taken[number] = cards[number].size if share is None else share
    return taken
