"""A child with a bench of its own: asked by name, answers in order, and can be stopped or killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Any

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

PATIENCE_S = 100.0


class Remote:
    """One child. `ask` raises what the child raised."""

    def __init__(self, environ: Mapping[str, str] | None = None, descriptors: tuple[int, ...] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.transfer.remote"],
            cwd=ROOT,
            env={**os.environ, **(environ or {}), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
        )
        self.pid = self._process.pid

    def tell(self, name: str, *arguments: Any, **options: Any) -> None:
        """Ask without waiting."""
        assert self._process.stdin is not None
        pickle.dump((name, arguments, options), self._process.stdin)
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return, or raise, what the oldest question gave."""
        assert self._process.stdout is not None
        end = time.monotonic() + PATIENCE_S
        if not select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
            raise TimeoutError(f"process {self.pid} did not answer in {PATIENCE_S:g} s")
        failed, value = pickle.load(self._process.stdout)
        if failed:
            raise value
        return value

    def ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.tell(name, *arguments, **options)
        return self.answer()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """Close its input, on which it ends; kill it where it does not. Returns its exit status."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 18)  # SIGCONT: one that is stopped does not end
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def __enter__(self) -> Remote:  # noqa: PYI034 - typing has Self from 3.11 on
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()


def _serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    from tests.transfer.bench import Bench

    bench = Bench()
    while True:
        try:
            name, arguments, options = pickle.load(questions)
        except EOFError:
            break
        try:
            answer = (False, getattr(bench, name)(*arguments, **options))
        except Exception as error:  # noqa: BLE001 - it is the other's to judge
            answer = (True, error)
        pickle.dump(answer, answers)
        answers.flush()
    bench.close()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
