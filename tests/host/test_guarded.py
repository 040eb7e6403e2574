"""Files behind which a driver can hang: read within a deadline, by a process that can be left behind."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host.guarded import GuardedReader
from pytest_gpucoexist.host.local import LocalHost

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


def reader(folder: Path, patience_s: float = 5.0) -> GuardedReader:
    return GuardedReader(os.environ, area=f"{folder}/", patience_s=patience_s)


def code_of(guarded: GuardedReader, path: Path) -> int | None:
    with pytest.raises(OSError, match=str(path)) as caught:
        guarded.read(str(path), 100)
    return caught.value.errno


def test_a_file_is_read_and_cut_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "information").write_bytes(b"Model: \t NVIDIA H200\n")
    assert reader(tmp_path).read(str(tmp_path / "information"), 6) == b"Model:"


def test_a_file_that_blocks_costs_its_deadline_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "information")  # opening it waits for a writer, as a wedged driver's reader waits for a lock
    (tmp_path / "other").write_bytes(b"x")
    guarded = reader(tmp_path, 0.1)
    assert code_of(guarded, tmp_path / "information") == errno.ETIMEDOUT
    assert code_of(guarded, tmp_path / "other") == errno.ETIMEDOUT


def test_errors_are_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = reader(tmp_path)
    assert code_of(guarded, tmp_path / "missing") == errno.ENOENT
    assert code_of(guarded, tmp_path) == errno.EIO  # cat says only that it failed
    (tmp_path / "closed").touch()
    monkeypatch.setattr(os, "access", lambda *_args, **_kwargs: False)
    assert code_of(guarded, tmp_path / "closed") == errno.EACCES


def test_without_cat_the_file_is_read_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "information").write_bytes(b"text")
    monkeypatch.setattr("shutil.which", lambda *_args, **_kwargs: None)
    host = LocalHost()
    host._guarded = reader(tmp_path)
    assert host.read_bytes(str(tmp_path / "information")) == b"text"


def test_this_machine_reads_the_nvidia_drivers_files_so(tmp_path: Path) -> None:
    host = LocalHost()
    assert host._guarded.guards("/proc/driver/nvidia/gpus/0000:01:00.0/information")
    assert not host._guarded.guards("/proc/driver/nvidia/version")
    (tmp_path / "information").write_bytes(b"text")
    host._guarded = reader(tmp_path)
    assert host.read_text(str(tmp_path / "information")) == "text"
