"""A record of `/proc/<pid>` names no program that tells something about a person."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.host.anonymise import anonymised
from pytest_gpucoexist.host.manifest import Manifest
from pytest_gpucoexist.host.tree import MemoryTree
from pytest_gpucoexist.model.programs import is_known_program

STAT = "4242 ({name}) D 800 4242 4242 0 -1 4194304 1617 0 0\n"
SCHED = "{name} (4242, #threads: 9)\n-----\nse.exec_start   :   12364542.770971\n"


def kept(path: str, text: str) -> str:
    tree = MemoryTree()
    tree.add_file(path, text.encode())
    clean, _manifest = anonymised(tree, Manifest(), key=b"0123456789abcdef")
    return clean.read(path, 1 << 16).decode()


@pytest.mark.parametrize(
    ("path", "form"), [("/proc/4242/stat", STAT), ("/proc/4242/sched", SCHED), ("/proc/4242/comm", "{name}\n")]
)
def test_names_of_programs_are_replaced_and_those_that_anybody_runs_stay(path: str, form: str) -> None:
    secret = kept(path, form.format(name="train-merger) S"))
    assert "merger" not in secret
    assert "process-" in secret
    assert secret.partition("\n")[2] == form.partition("\n")[2]
    for name in ("gnome-shell", "nv-hostengine", "nvidia-cuda-mps"):
        assert kept(path, form.format(name=name)) == form.format(name=name)


def test_one_program_has_one_name_everywhere() -> None:
    tag = kept("/proc/4242/comm", "train-merger\n").strip()
    assert f"({tag}) D 800" in kept("/proc/4242/stat", STAT.format(name="train-merger"))


@pytest.mark.parametrize("path", ["/proc/4242/stat", "/proc/4242/sched"])
def test_what_makes_no_sense_is_not_kept(path: str) -> None:
    assert kept(path, "no file of the kernel by alice\n") == ""


def test_known_programs_are_told_by_the_kernels_fifteen_bytes() -> None:
    assert is_known_program("gnome-session-b")
    assert is_known_program("gnome-session-binary")
    assert not is_known_program("python3")
