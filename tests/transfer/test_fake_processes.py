"""Processes on one fake machine: they share links, memory and ordered faults, as they do on a real one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.fakes.build import cuda_library, hip_library
from tests.fakes.client import Driven, running_client
from tests.fakes.machine import FakeMachine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = 4096


@pytest.fixture
def other(driven: Driven, fake_drivers_cache: Path) -> Iterator[Driven]:
    """A second process of the same runtime, with the same device in use."""
    library = {"cuda": cuda_library, "hip": hip_library}[driven.runtime](fake_drivers_cache)
    environ = {**driven.machine.environ, "LD_LIBRARY_PATH": str(library)}
    with running_client(environ, driven.runtime) as client:
        second = Driven(machine=driven.machine, client=client, runtime=driven.runtime)
        second("start")
        second("use", 0)
        yield second


def test_processes_share_an_engine(driven: Driven, other: Driven) -> None:
    """Two copies of two processes take twice as long, whenever the second began: the link is one."""
    size_bytes, seconds = 1 << 20, 0.2
    driven.machine.put({f"{driven.vendor}.0.h2d_gbps": size_bytes / seconds / 1e9})
    ready = [(each, each.host(bytes(size_bytes)), each("allocate", size_bytes)) for each in (driven, other)]
    began = time.monotonic()
    for each, host, pointer in ready:
        each.client.send(f"{each.runtime}.to_device", pointer, host, size_bytes)
    for each, _host, _pointer in ready:
        each.client.answer()
    assert time.monotonic() - began >= 2 * seconds
    assert driven.machine.copied(f"{driven.vendor}.0.h2d") == (2, 2 * size_bytes)


def test_a_fault_that_strikes_once_strikes_in_one_process(driven: Driven, other: Driven) -> None:
    ordered = driven.machine.order(f"{driven.vendor}.0.copy.d2h", "flip 5 0xff", at=2)
    wrong = []
    for each in (driven, other, driven, other):
        host, pointer = each.host(bytes(PAGE)), each("allocate", PAGE)
        each("fill", pointer, 0, PAGE)
        each("to_host", host, pointer, PAGE)
        wrong.append(each.read(host, PAGE) != bytes(PAGE))
    assert wrong == [False, True, False, False]
    assert ordered.struck == 1


def test_contexts_are_seen_by_process(driven: Driven, other: Driven) -> None:
    for each in (driven, other):
        each("allocate", PAGE)
    device = f"{driven.vendor}.0"
    assert sorted(driven.machine.contexts()) == sorted([(driven.client.pid, device), (other.client.pid, device)])


def test_other_fakes_hear_who_has_memory(driven: Driven, tmp_path: Path) -> None:
    """The folder of users is what the fakes of NVML and amdsmi read, and what a second process counts."""
    users = tmp_path / "users"
    users.mkdir()
    key = {"nvidia": "memory_total", "amd": "vram_total"}[driven.vendor]
    driven.machine.put({f"{driven.vendor}.1.users": users, f"{driven.vendor}.1.context_bytes": 1000})
    driven.machine.put({f"{driven.vendor}.1.{key}": 10 * PAGE + 1000})
    driven("use", 1)
    pointer = driven("allocate", 2 * PAGE)
    mine = users / str(driven.client.pid)
    assert int(mine.read_text()) == 2 * PAGE + 1000
    (users / "1").write_text(str(3 * PAGE))
    assert driven("memory")[0] == 5 * PAGE
    assert driven.refusal("allocate", 6 * PAGE) == driven.status("CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory")
    driven("free", pointer)
    assert int(mine.read_text()) == 1000
    assert sorted(path.name for path in users.iterdir()) == sorted(["1", mine.name])


def test_a_process_follows_the_variable_to_another_machine(driven: Driven, tmp_path: Path) -> None:
    """Where a test loads the library into its own process, the next test's machine is another file."""
    driven("memory")
    elsewhere = FakeMachine(tmp_path, {})
    elsewhere.put({f"{driven.vendor}.0.{name}": 7 * PAGE for name in ("memory_total", "vram_total")})
    driven.client("host.setenv", "GPUCOEXIST_FAKE_MACHINE", str(elsewhere.path))
    assert driven("memory") == [7 * PAGE, 7 * PAGE]
    elsewhere.put({f"{driven.vendor}.0.{name}": 9 * PAGE for name in ("memory_total", "vram_total")})
    driven.machine.put({f"{driven.vendor}.0.lost": 999})
    assert driven("memory") == [9 * PAGE, 9 * PAGE]
