"""What lies between two GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.numa.relation import MEANINGS, matrix, relation
from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import subject_of
from tests.machines import amd, dual, machine, nvidia

if TYPE_CHECKING:
    from pathlib import Path

# Two sockets: a switch with two NVIDIA cards and a card beside it on the first, an AMD card on the second.
HOST = (
    a_machine()
    .with_numa_nodes(2)
    .with_switch("s")
    .with_gpu("rtx4090", under="s")
    .with_gpu("rtx4090", under="s")
    .with_gpu("rtx3090")
    .with_gpu("radeon-780m", numa_node=1)
    .with_environ(HOME="/home/u")
)


def test_the_classes_of_nvidia_smi_topo() -> None:
    found = discover(HOST.host())
    assert relation(found, "nvidia0", "nvidia0") == "SELF"
    a, b, alone = (gpu.id for gpu in sorted(found.gpus, key=lambda gpu: gpu.name or "") if gpu.vendor == "nvidia")
    pairs = {frozenset((row["a"], row["b"])): row["relation"] for row in matrix(found)}
    under = [gpu.id for gpu in found.gpus if gpu.upstream and len(gpu.upstream) > 1]
    assert pairs[frozenset(under)] == "PIX"
    (other,) = {a, b, alone} - {*under}
    assert {pairs[frozenset((each, other))] for each in under} == {"PHB"}
    assert {pairs[frozenset((each, "amd0"))] for each in (*under, other)} == {"SYS"}


@pytest.mark.parametrize(
    ("first", "second", "nodes", "expected"),
    [
        (("0000:40:00.0", "0000:41:00.0"), ("0000:40:00.0", "0000:41:01.0"), (0, 0), "PIX"),
        # Two switches below one port: two bridges more on each side.
        (
            ("0000:40:00.0", "0000:41:00.0", "0000:42:00.0"),
            ("0000:40:00.0", "0000:41:01.0", "0000:47:00.0"),
            (0, 0),
            "PXB",
        ),
        (("0000:40:01.1",), ("0000:40:03.1",), (0, 0), "PHB"),
        (("0000:40:01.1",), ("0000:80:03.1",), (0, 0), "NODE"),
        (("0000:40:01.1",), ("0000:80:03.1",), (0, 1), "SYS"),
        (("0000:40:01.1",), ("0000:80:03.1",), (None, None), "unknown"),
        (None, ("0000:80:03.1",), (0, 1), "unknown"),
    ],
)
def test_a_class_for_every_tree(
    first: tuple[str, ...] | None, second: tuple[str, ...], nodes: tuple[int | None, int | None], expected: str
) -> None:
    one = nvidia(0, upstream=first, numa_node=nodes[0])
    two = nvidia(1, upstream=second, numa_node=nodes[1])
    found = machine(one, two)
    assert relation(found, "nvidia0", "nvidia1") == relation(found, two.key, one.key) == expected
    assert expected in MEANINGS


def test_a_gpu_that_is_not_here() -> None:
    with pytest.raises(ValueError, match="no GPU 'nvidia9' in testbox"):
        relation(dual(), "nvidia0", "nvidia9")


def test_the_matrix_says_how_copies_go() -> None:
    rows = {(row["a"], row["b"]): row for row in matrix(dual())}
    assert rows.keys() == {("nvidia0", "nvidia1"), ("nvidia0", "amd0"), ("nvidia1", "amd0")}
    assert rows["nvidia0", "amd0"]["path"] == "host-staged"
    assert rows["nvidia0", "nvidia1"]["path"] == "unknown"
    no_peers = machine(nvidia(0, features={"p2p": False}), nvidia(1))
    assert matrix(no_peers)[0]["path"] == "host-staged"
    withheld = machine(nvidia(0), amd(0, granted=False))
    assert matrix(withheld) == []


def test_kfd_lists_links_between_cards(shared: Path) -> None:
    found = discover(open_recording(f"{shared}/machines/kfd/topo-mi210-xgmi-pcie.tar.xz"))
    paths = {row["note"] for row in matrix(found)}
    assert "KFD lists a link between them (XGMI)" in paths


def test_parts_of_one_card() -> None:
    parts = [nvidia(number, pci_address="0000:41:00.0", partition=f"gi{number}ci0") for number in (1, 2)]
    (row,) = matrix(machine(*parts))
    assert (row["relation"], row["path"]) == ("SELF", "unknown")


addresses = st.from_regex(r"\A0000:[0-9a-f]{2}:[01][0-9a-f]\.0\Z")
chains = st.none() | st.lists(addresses, max_size=5).map(tuple)


@given(chains, chains, st.none() | st.integers(0, 3), st.none() | st.integers(0, 3))
@settings(max_examples=80)
def test_the_relation_is_the_same_both_ways(
    one: tuple[str, ...] | None, two: tuple[str, ...] | None, first: int | None, second: int | None
) -> None:
    found = machine(nvidia(0, upstream=one, numa_node=first), nvidia(1, upstream=two, numa_node=second))
    assert relation(found, "nvidia0", "nvidia1") == relation(found, "nvidia1", "nvidia0")


def test_pairs_are_listed() -> None:
    rows = matrix(subject_of(HOST).machine)
    assert sorted(row["relation"] for row in rows) == ["PHB", "PHB", "PIX", "SYS", "SYS", "SYS"]
    assert matrix(subject_of(a_machine().with_gpu("rtx4090")).machine) == []


def test_a_tree_that_does_not_tell(shared: Path) -> None:
    host = open_recording(f"{shared}/machines/hwloc/linux/nvidiagpunumanodes.tar.xz")
    assert {row["relation"] for row in matrix(subject_of(host).machine)} == {"unknown"}


def test_a_gpu_without_a_pci_function() -> None:
    tegra = replace(nvidia(1), pci_address=None, uuid="tegra0", upstream=None)
    assert relation(machine(nvidia(0), tegra), "nvidia0", "nvidia1") == "unknown"
