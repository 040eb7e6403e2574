"""Workers of pytest-xdist without processes: they take from their queues what a real one takes, one step at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.placement.transport import CANCEL, RAN, REFUSED, RUN, UNRUN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.placement.scheduler_run import Run

_END = -1


@dataclass(eq=False, kw_only=True)
class FakeWorker:
    """A worker whose loop is that of `xdist.remote`, and a gate whose rules are those of `placement.worker`.

    `outside` are devices that another session holds. One that `is_dead` has crashed, and the controller does not know
    yet. It is the scheduler's `Node` as well.
    """

    name: str
    collection: list[str]
    outside: set[str]
    log: list[tuple[str, str, tuple[str, ...]]]
    shutting_down: bool = False
    torun: deque[int] = field(default_factory=deque)
    words: dict[int, list[Any] | None] = field(default_factory=dict)
    refusals: int = 0
    number: int = 0
    at: int | None = None
    following: int | None = None
    running: list[Any] | None = None
    is_over: bool = False
    peers: dict[str, FakeWorker] = field(default_factory=dict)
    keeps: bool = False
    """Whether it holds the devices of a test until it runs the next one, as `--gpu-lease=worker` makes it."""
    kept: set[str] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    is_dead: bool = False
    reports: bool = True
    """Whether the controller hears when a test is set up, before it is over."""
    passed_by: list[tuple[str, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gateway = SimpleNamespace(id=self.name)

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        assert not self.shutting_down
        if self.is_dead:
            raise OSError("cannot send (already closed?)")  # as execnet says it
        self.torun.extend(indices)

    def shutdown(self) -> None:
        self.torun.append(_END)
        self.shutting_down = True

    def hear(self, verb: str, value: Any) -> None:
        if verb == RUN and value[3] == self.refusals:
            self.words[value[0]] = value
        elif verb == CANCEL:
            self.words[value[0]] = None
            if value[1]:
                self.ends.add(value[0])

    @property
    def keys(self) -> tuple[str, ...]:
        """Devices that it holds now."""
        return () if self.running is None else tuple(key for group in self.running[1] for key in group)

    def step(self, run: Run) -> bool:
        """Do the next thing that is possible; False when there is none."""
        if self.is_over or self.is_dead:
            return False
        if self.running is not None:
            self.running = None
            self._left(run, RAN)
            return True
        if self.at is None:
            if not self.torun:
                return False
            self.at = self.torun.popleft()
            return True
        if self.at == _END:
            self.is_over = True
            self.kept.clear()  # the process has ended
            assert run.remove_worker(self.name) is None
            return True
        if self.following is None:
            if not self.torun:
                return False
            self.following = self.torun.popleft()
            return True
        if self.number not in self.words:
            return False
        word = self.words.pop(self.number)
        if word is None:
            following = None if self.following == _END else self.collection[self.following]
            if self.number in self.ends:
                self.kept.clear()
            self.passed_by.append((self.collection[self.at], following))
            self._left(run, UNRUN)
            return True
        wanted = {key for group in word[1] for key in group}
        others = {key for each in self.peers.values() if each is not self for key in each.kept}
        blocked = wanted & (self.outside | others)
        if blocked:
            self.kept.clear()
            if word[2]:
                self.words[self.number] = word
                return False  # it waits in the kernel's queue
            self.refusals += 1
            self.words = {number: said for number, said in self.words.items() if said is None}
            self._left(run, REFUSED, sorted(blocked))
            return True
        self.running = word
        if self.reports:
            run.was_set_up()
        self.kept = set(self.keys) if self.keeps else set()
        run.began(self.collection[self.at])
        self.log.append((self.name, self.collection[self.at], self.keys))
        return True

    def die(self, run: Run) -> str | None:
        """Crash where it stands, or have it told of a crash that was before."""
        self.is_over = self.is_dead = True
        self.running = None
        self.kept.clear()
        return run.remove_worker(self.name)

    def _left(self, run: Run, how: str, keys: Sequence[str] = ()) -> None:
        number, self.number = self.number, self.number + 1
        self.at, self.following = self.following, None
        run.over(self.name, (number, how, 0.01, 0.0, 0.0, 0.01, True, list(keys)))
