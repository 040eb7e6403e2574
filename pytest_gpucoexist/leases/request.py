"""One request: which devices would do for each group, what each claims, and one attempt to have them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.claims import claim_for
from pytest_gpucoexist.model.choosing import choose
from pytest_gpucoexist.model.groups import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pytest_gpucoexist.leases.claims import Claim
    from pytest_gpucoexist.leases.hold import Hold
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["Request"]

Chosen = tuple[tuple[str, ...], ...]


class Request:
    """What a test wants at once."""

    def __init__(
        self,
        groups: Sequence[Group],
        machine: Machine,
        *,
        preferred: Sequence[str] = (),
        closest_pair: bool = False,
        default_memory_bytes: int | None = None,
        prefix: str = "",
    ) -> None:
        """`prefix` is that of what is locked for a device."""
        self.groups = tuple(groups)
        self.machine = machine
        self.candidates = tuple(dict.fromkeys(key for group in groups for key in group.candidates))
        self._preferred = preferred
        self._closest_pair = closest_pair
        self._default = default_memory_bytes
        self._prefix = prefix
        self._claims: dict[tuple[int, str], Claim] = {}

    def claim(self, index: int, key: str) -> Claim:
        """Say what the group of this index claims of a device."""
        known = self._claims.get((index, key))
        if known is None:
            gpu = self.machine.gpu(key)
            assert gpu is not None  # candidates are devices of the machine
            known = self._claims[index, key] = claim_for(
                gpu, self.groups[index].requirement, default_memory_bytes=self._default, prefix=self._prefix
            )
        return known

    def choose(self, without: Collection[tuple[int, str]] = ()) -> Chosen | None:
        """Choose devices for all groups, or None. `without` names (group, device) that are out of the question."""
        groups: Sequence[Group] = self.groups
        if without:
            groups = [
                Group(
                    requirement=group.requirement,
                    candidates=tuple(key for key in group.candidates if (index, key) not in without),
                )
                for index, group in enumerate(groups)
            ]
        return choose(groups, self.candidates, self.machine, closest_pair=self._closest_pair, preferred=self._preferred)

    def claims(self, chosen: Chosen) -> list[tuple[int, Claim]]:
        """Return (group, claim) of each chosen device, in the order in which everybody takes them."""
        found = [(index, self.claim(index, key)) for index, keys in enumerate(chosen) for key in keys]
        return sorted(found, key=lambda each: each[1].name)

    def attempt(self, hold: Hold, may_take: Callable[[str], bool]) -> Chosen | None:
        """Lock devices for all groups, or none and return None. `may_take` says whether it is one's turn."""
        without: set[tuple[int, str]] = set()
        while (chosen := self.choose(without)) is not None:
            claims = self.claims(chosen)
            # Looked at first: what is taken and given back at once is in the way of others for that moment.
            busy = {
                (index, claim.key)
                for index, claim in claims
                if not may_take(claim.key) or (len(claims) > 1 and not hold.free(claim))
            }
            if not busy:
                for index, claim in claims:
                    if not hold.take(claim):
                        hold.give(tuple(hold.claims))
                        busy = {(index, claim.key)}
                        break
                else:
                    return chosen
            without |= busy
        return None
