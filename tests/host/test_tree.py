"""Trees in memory: what was put is what is there."""

from __future__ import annotations

import errno

import pytest

from pytest_gpucoexist.host.base import Node
from pytest_gpucoexist.host.tree import LayeredTree, MemoryTree


def test_folders_come_with_what_is_in_them() -> None:
    tree = MemoryTree()
    tree.add_file("/sys/a/b", b"1")
    tree.add_link("/sys/a/c", "b")
    tree.add_node("/dev/x", Node(kind="chardev"))
    tree.add_node("/dev/d", Node(kind="dir"))
    assert dict(tree.walk()) == {
        "/dev": "dir",
        "/dev/d": "dir",
        "/dev/x": "node",
        "/sys": "dir",
        "/sys/a": "dir",
        "/sys/a/b": "file",
        "/sys/a/c": "link",
    }


def test_an_entry_is_replaced_but_never_a_folder() -> None:
    tree = MemoryTree()
    tree.add_file("/a/b", b"1")
    tree.add_file("/a/b", b"2")
    assert tree.read("/a/b", 9) == b"2"
    with pytest.raises(IsADirectoryError):
        tree.add_file("/a", b"")
    with pytest.raises(NotADirectoryError) as error:
        tree.add_file("/a/b/c", b"")
    assert error.value.errno == errno.ENOTDIR


def test_removing_takes_everything_below() -> None:
    tree = MemoryTree()
    tree.add_file("/a/b/c/d", b"1")
    tree.add_file("/a/x", b"1")
    tree.remove("/a/b")
    tree.remove("/a/none")
    assert [path for path, _kind in tree.walk()] == ["/a", "/a/x"]
    tree.remove("/a/x")
    assert tree.names("/a") == []


def test_below_is_a_tree_of_its_own() -> None:
    tree = MemoryTree()
    tree.add_file("/top/sys/x", b"1")
    tree.add_file("/topping/y", b"1")
    assert [path for path, _kind in tree.below("/top").walk()] == ["/sys", "/sys/x"]
    assert tree.below("") is tree


def test_layers_are_one() -> None:
    top, base = MemoryTree(), MemoryTree()
    top.add_node("/dev/a", Node(kind="chardev", major=1))
    top.add_link("/dev/l", "a")
    base.add_file("/dev/b", b"base")
    base.add_file("/sys/x", b"x")
    tree = LayeredTree(top, base)
    assert sorted(tree.names("/dev")) == ["a", "b", "l"]
    assert tree.names("/sys") == ["x"]
    assert tree.node("/dev/a").major == 1
    assert tree.node("/dev/b").kind == "file"
    assert tree.target("/dev/l") == "a"
    assert tree.read("/dev/b", 9) == b"base"
    assert tree.kind("/none") is None
