"""One request: which devices would do for each group, what each claims, and one attempt to have them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.claims import claim_for, claim_within
from pytest_gpucoexist.model.choosing import choose
from pytest_gpucoexist.model.groups import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pytest_gpucoexist.leases.claims import Claim
    from pytest_gpucoexist.leases.hold import Hold
    from pytest_gpucoexist.leases.token import Inherited
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["Chosen", "Request"]

Chosen = tuple[tuple[str, ...], ...]


class Request:
    """What a test wants at once."""

    def __init__(
        self,
        groups: Sequence[Group],
        machine: Machine,
        *,
        owner: str = "",
        preferred: Sequence[str] = (),
        closest_pair: bool = False,
        default_memory_bytes: int | None = None,
        inherited: Inherited | None = None,
    ) -> None:
        """`inherited` are devices of another process that this one may use; they come first."""
        self.groups = tuple(groups)
        self.machine = machine
        self.owner = owner
        self.candidates = tuple(dict.fromkeys(key for group in groups for key in group.candidates))
        self.inherits = False
        self.inherits_all = False
        self._preferred = preferred
        self._closest_pair = closest_pair
        self._default = default_memory_bytes
        self._prefix = f"{machine.name}:" if machine.simulated else ""
        self._claims: dict[tuple[int, str], Claim] = {}
        if inherited is not None and inherited.machine == (machine.name if machine.simulated else ""):
            self._inherit(inherited)

    def _inherit(self, inherited: Inherited) -> None:
        """Let inherited devices do where they can; where they do for everything, ask for nothing else."""
        own = [key for key in inherited.devices if key in self.candidates]
        for index, group in enumerate(self.groups):
            for key in own:
                gpu = self.machine.gpu(key)
                if key in group.candidates and gpu is not None:
                    claim = claim_within(inherited, gpu, group.requirement, default_memory_bytes=self._default)
                    if claim is not None:
                        self._claims[index, key] = claim
        self._preferred = (*own, *self._preferred)
        others = {
            (index, key)
            for index, group in enumerate(self.groups)
            for key in group.candidates
            if (index, key) not in self._claims
        }
        if self.choose(others) is not None:
            self.groups = tuple(self._without(others))
            self.candidates = tuple(own)
            self.inherits_all = True
        self.inherits = True

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

    def all_claims(self) -> list[Claim]:
        """Return what the request could come to: one claim for each device, as its first group would have it."""
        found: dict[str, Claim] = {}
        for index, group in enumerate(self.groups):
            for key in group.candidates:
                claim = self.claim(index, key)
                found.setdefault(claim.name, claim)
        return list(found.values())

    def choose(self, without: Collection[tuple[int, str]] = ()) -> Chosen | None:
        """Choose devices for all groups, or None. `without` names (group, device) that are out of the question."""
        return choose(
            self._without(without) if without else self.groups,
            self.candidates,
            self.machine,
            closest_pair=self._closest_pair,
            preferred=self._preferred,
        )

    def could_do_without(self, keys: Iterable[str]) -> bool:
        """Whether the machine could serve it with all devices free but these."""
        keys = set(keys)
        return self.choose({(index, key) for index in range(len(self.groups)) for key in keys}) is not None

    def _without(self, without: Collection[tuple[int, str]]) -> list[Group]:
        return [
            Group(
                requirement=group.requirement,
                candidates=tuple(key for key in group.candidates if (index, key) not in without),
            )
            for index, group in enumerate(self.groups)
        ]

    def attempt(self, hold: Hold, may_take: Callable[[Claim], bool]) -> Chosen | None:
        """Lock devices for all groups, or none and return None. `may_take` says whether it is one's turn."""
        without: set[tuple[int, str]] = set()
        while (chosen := self.choose(without)) is not None:
            claims = [(index, self.claim(index, key)) for index, keys in enumerate(chosen) for key in keys]
            claims.sort(key=lambda each: each[1].name)  # everybody takes them in the same order
            # Looked at first: what is taken and given back at once is in the way of others for that moment.
            busy = {
                (index, claim.key)
                for index, claim in claims
                if not may_take(claim) or (len(claims) > 1 and not hold.free(claim))
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
