"""Recordings of every layout that people make end at the same absolute paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import RecordingError
from pytest_gpucoexist.host import open_recording

if TYPE_CHECKING:
    from pathlib import Path

KFD = "/sys/class/kfd/kfd/topology/nodes/1/properties"
CARD = "/sys/class/drm/card1/device/vendor"


def record(root: Path, *paths: str) -> str:
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("text\n")
    return str(root)


@pytest.mark.parametrize(
    ("recorded", "machine"),
    [
        ("sys/class/drm/card1/device/vendor", CARD),
        ("top/sys/class/drm/card1/device/vendor", CARD),
        ("a/b/c/sys/class/drm/card1/device/vendor", CARD),
        ("class/drm/card1/device/vendor", CARD),
        ("snapshot/bus/pci/devices/0000:01:00.0/vendor", "/sys/bus/pci/devices/0000:01:00.0/vendor"),
        ("card1/device/vendor", CARD),
        ("lact/card1/device/vendor", CARD),
        ("topology/nodes/1/properties", KFD),
        ("nodes/1/properties", KFD),
        ("mi210/nodes/1/properties", KFD),
        ("kfd/topology/nodes/1/properties", KFD),
        ("kfd/kfd/topology/nodes/1/properties", KFD),
        ("class/kfd/kfd/topology/nodes/1/properties", KFD),
        ("proc/meminfo", "/proc/meminfo"),
    ],
)
def test_layouts(tmp_path: Path, recorded: str, machine: str) -> None:
    host = open_recording(record(tmp_path, recorded))
    assert host.read_text(machine) == "text"
    above = ""
    for name in machine.split("/")[1:]:
        assert name in host.list_dir(above or "/")
        above += f"/{name}"


def test_a_card_and_a_topology_side_by_side(tmp_path: Path) -> None:
    root = record(
        tmp_path, "x/card0/device/vendor", "x/card1/device/vendor", "x/kfd/topology/nodes/1/properties", "x/kfd/dev"
    )
    host = open_recording(root)
    assert host.list_dir("/sys/class/drm") == ["card0", "card1"]
    assert host.read_text(KFD) == "text"
    assert host.read_text("/sys/class/kfd/kfd/dev") == "text"
    assert host.list_dir("/sys/class") == ["drm", "kfd"]
    assert host.stat("/sys").kind == "dir"
    assert not host.exists("/sys/class/net")


def test_a_single_device_folder_is_a_card(tmp_path: Path) -> None:
    host = open_recording(record(tmp_path, "vendor", "uevent"))
    assert host.read_text("/sys/class/drm/card0/device/vendor") == "text"


@pytest.mark.parametrize("paths", [[], ["readme.txt"], ["a/b/c/d/e/sys/x"], ["nodes/readme"], ["card0/readme"]])
def test_an_unknown_layout_says_what_was_found(tmp_path: Path, paths: list[str]) -> None:
    with pytest.raises(
        RecordingError, match=r"no known layout\. Expected sys/ .* found (nothing|readme|a|nodes|card0)"
    ):
        open_recording(record(tmp_path, *paths))


def test_nodes_listed_beside_the_tree(tmp_path: Path) -> None:
    record(tmp_path, "sys/x")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra/dev.list").write_text(
        "/dev/dri/renderD128 c 226:128 660 0:109\n/dev/sda b 8:0 660 0:6\n"
        "/dev/dri/by-path/pci-0000:01:00.0-render -> ../renderD128\n"
        "/dev/null c 1:3 666 0:0\nnonsense\n/dev/null/x c 1:3 666 0:0\n"
    )
    host = open_recording(str(tmp_path))
    node = host.stat("/dev/dri/by-path/pci-0000:01:00.0-render")
    assert (node.kind, node.major, node.minor, node.mode, node.gid) == ("chardev", 226, 128, 0o660, 109)
    assert host.stat("/dev/sda").kind == "blockdev"
    assert host.list_dir("/dev") == ["dri", "null", "sda"]
    assert host.covers("/dev/kfd")
    host.may_open("/dev/null", write=True)
    with pytest.raises(FileNotFoundError):
        host.may_open("/dev/kfd", write=True)
