"""Whatever one file says, no gate of the bus, of memory or of the baseline breaks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.host.common import as_text
from pytest_gpucoexist.probes import discover
from tests.gates.baseline.machines import MACHINE, remembering
from tests.gates.pcie.trees import put, space

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

GATES = [
    gate
    for gate in all_gates()
    if gate.check is not None and gate.id.startswith(("pcie.", "mem.", "topo.baseline")) and gate.level == "quick"
]


class Overlaid:
    """A host with some files replaced; keeps what was read."""

    def __init__(self, inner: Host) -> None:
        self._inner = inner
        self.files: dict[str, bytes] = {}
        self.read: dict[str, None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read_bytes(self, path: str, limit: int = 65536) -> bytes:
        self.read[path] = None
        return self.files[path][:limit] if path in self.files else self._inner.read_bytes(path, limit)

    def read_text(self, path: str, limit: int = 65536) -> str:
        return as_text(self.read_bytes(path, limit))


def judged_with(host: Overlaid) -> list[tuple[str, str, str | None]]:
    """Discover and judge; return what each gate said, with the traceback of one that broke."""
    live = cast("Host", host)
    judgement = judge(Subject(host=live, machine=discover(live)), gates=GATES)
    return [(each.id, each.status, each.detail) for each in judgement.verdicts]


@functools.cache
def machine() -> tuple[Overlaid, tuple[str, ...]]:
    """A machine with everything that the gates read, and the paths that they read."""
    built = MACHINE.with_switch("board").with_gpu("rtx3090", under="board").with_gpu("arc-b580", under="board")
    built = built.with_gpu("rx7900xtx")
    for gpu in ("nvidia0", "nvidia1", "amd0", "amd1", "intel0"):
        for name in ("aer_dev_fatal", "aer_dev_nonfatal", "aer_dev_correctable"):
            built = put(built, gpu, name, "UnsupReq 0\nTOTAL_ERR_X 0\n")
        files: dict[str, str | bytes] = {
            "dma_mask_bits": "44\n",
            "config": space(),
            "removable": "fixed\n",
            "mem_info_gtt_total": "1\n",
        }
        for name, content in files.items():
            built = put(built, gpu, name, content)
        for number in range(3):
            built = put(built, gpu, f"resource{number}_resize", "0000000000007f00\n")
    for number in range(30):
        built = built.with_file(f"/sys/kernel/iommu_groups/{number}/type", "DMA\n")
    built = built.with_file(
        "/sys/module/pcie_aspm/parameters/policy", "[default] performance powersave powersupersave\n"
    )
    built = built.with_file("/proc/self/cgroup", "0::/\n").with_file("/sys/fs/cgroup/memory.max", "max\n")
    built = built.with_file("/proc/uptime", "1000.00 1.00\n").with_file("/proc/sys/kernel/numa_balancing", "0\n")
    host = Overlaid(remembering(built, built).host())
    judged_with(host)
    return host, tuple(sorted(path for path in host.read if host._inner.exists(path)))


@settings(max_examples=60)
@given(st.data(), st.one_of(st.binary(max_size=80), st.text(max_size=40).map(str.encode)))
def test_one_file_with_garbage_in_it(data: st.DataObject, content: bytes) -> None:
    host, paths = machine()
    path = data.draw(st.sampled_from(paths))
    whole = host._inner.read_bytes(path)
    at = data.draw(st.integers(0, len(whole)))
    host.files = {path: data.draw(st.sampled_from([content, whole[:at], whole[:at] + content + whole[at:]]))}
    assert [each for each in judged_with(host) if each[1] == "ERROR"] == []


def test_the_machine_is_judged_by_every_gate() -> None:
    host, paths = machine()
    host.files = {}
    said = judged_with(host)
    assert {each[0] for each in said} == {gate.id for gate in GATES}
    assert [each for each in said if each[1] in {"FAIL", "ERROR"}] == []
    assert len(paths) > 100
