"""The other end of `serve`: a client process that a test tells what to do."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.machine import FakeMachine
from tests.fakes.serve import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Client", "Died", "Driven", "Refused", "running_client"]

_ROOT = Path(__file__).resolve().parents[2]
_ANSWER_S = 60.0

# What each runtime's real client is, and where it comes from.
_NEEDED = {"cuda": ("cuda.bindings", "cuda-bindings"), "hip": ("rocm.bindings", "rocm-bindings-hip")}

# A mask or a library of the machine that runs the tests must not reach the client.
_FOREIGN = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "LD_PRELOAD")


class Died(Exception):  # noqa: N818 - what became of a client
    """The client ended instead of answering; `status` is as `subprocess` has it (-11: SIGSEGV)."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the client ended with status {status}")
        self.status = status


class Client:
    """Asks one client process. `client("cuda.allocate", 4096)` returns its answer or raises Refused or Died."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The client's process."""
        return self._process.pid

    def __call__(self, what: str, *args: Any) -> Any:
        self.send(what, *args)
        return self.answer()

    def send(self, what: str, *args: Any) -> None:
        """Ask, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, *args]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the answer to what was sent."""
        assert self._process.stdout is not None
        ready, _write, _error = select.select([self._process.stdout], [], [], _ANSWER_S)
        assert ready, f"no answer within {_ANSWER_S:.0f} s"
        line = self._process.stdout.readline()
        if not line:
            raise Died(self._process.wait(_ANSWER_S))
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """One runtime of a client, and the machine that it runs on. `driven("allocate", 4096)` asks the runtime."""

    machine: FakeMachine
    client: Client
    runtime: str

    @property
    def vendor(self) -> str:
        """The name of the runtime's devices in the description."""
        return {"cuda": "nvidia", "hip": "amd"}[self.runtime]

    def __call__(self, function: str, *args: Any) -> Any:
        return self.client(f"{self.runtime}.{function}", *args)

    def host(self, data: bytes) -> int:
        """Return the address of a buffer of the client's with this content, of whole pages."""
        address = self.client("host.buffer", len(data))
        self.write(address, data)
        return int(address)

    def write(self, address: int, data: bytes) -> None:
        """Write host memory of the client."""
        self.client("host.write", address, data.hex())

    def read(self, address: int, size_bytes: int) -> bytes:
        """Read host memory of the client."""
        return bytes.fromhex(self.client("host.read", address, size_bytes))

    def status(self, cuda: str, hip: str) -> str:
        """Choose the name of this runtime's status."""
        return {"cuda": cuda, "hip": hip}[self.runtime]

    def refusal(self, function: str, *args: Any) -> str:
        """Return the name of the status with which a call is refused, "" where it is not."""
        try:
            self(function, *args)
        except Refused as status:
            return str(status)
        return ""


@contextmanager
def running_client(environ: Mapping[str, str], *runtimes: str) -> Iterator[Client]:
    """Run a client with these variables. Skips the test if the package of a runtime is not installed."""
    for runtime in runtimes:
        package, distribution = _NEEDED[runtime]
        if not _is_installed(package):
            pytest.skip(f"needs {distribution} (pip install {distribution})")
    inherited = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.serve"],
        env={**inherited, **environ},
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Client(process)
        finally:
            process.kill()


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
