"""What the virtual workstation is made of, without booting it."""

from __future__ import annotations

import io
import shutil
import socket
import struct
import subprocess
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.vm.build.cpio import write_archive
from tests.vm.hardware.cards import RTX, Configuration
from tests.vm.hardware.proxy import ProxyFunction
from tests.vm.hardware.topology import Hardware
from tests.vm.running.bench import Bench
from tests.vm.running.qmp import Monitor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READ, WRITE, BAR_READ = 3, 2, 5


def test_an_archive_is_one_that_cpio_reads(tmp_path: Path) -> None:
    folder = tmp_path / "root"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/tool").write_bytes(b"#!/bin/sh\n")
    (folder / "bin/tool").chmod(0o755)
    (folder / "sbin").symlink_to("bin")
    out = io.BytesIO()
    write_archive(folder, out)
    assert len(out.getvalue()) % 4 == 0
    if shutil.which("cpio") is None:
        assert out.getvalue().startswith(b"070701")
        return
    target = tmp_path / "unpacked"
    target.mkdir()
    subprocess.run(["cpio", "-i", "--quiet", "--no-preserve-owner"], input=out.getvalue(), cwd=target, check=True)
    assert (target / "bin/tool").read_bytes() == b"#!/bin/sh\n"
    assert (target / "bin/tool").stat().st_mode & 0o777 == 0o755
    assert (target / "sbin").readlink().name == "bin"


def test_a_configuration_takes_only_what_can_be_written() -> None:
    configuration = Configuration(RTX)
    assert configuration.read(0, 4) == 0x268410DE
    configuration.write(0, 4, 0)
    assert configuration.read(0, 4) == 0x268410DE
    # A BAR is sized by writing all ones: the low bits that stay zero are its size.
    configuration.write(0x10, 4, 0xFFFFFFFF)
    assert (~configuration.read(0x10, 4) & 0xFFFFFFFF) + 1 == 1 << 24
    configuration.train(2.5, 4)
    assert configuration.read(0x8A, 2) == 1 | 4 << 4


@pytest.fixture
def served() -> Iterator[tuple[ProxyFunction, socket.socket]]:
    function = ProxyFunction(Configuration(RTX))
    theirs = socket.socket(fileno=socket.dup(function.descriptor))
    function.start()
    yield function, theirs
    theirs.close()
    function.close()


def asked(connection: socket.socket, command: int, body: bytes) -> int:
    connection.sendall(struct.pack("<iiQ", command, 0, len(body)) + body)
    answer = connection.recv(24, socket.MSG_WAITALL)
    return int.from_bytes(answer[16:], "little")


def test_a_function_answers_until_it_is_gone(served: tuple[ProxyFunction, socket.socket]) -> None:
    function, connection = served
    vendor = struct.pack("<IIi", 0, 0, 2)
    register = struct.pack("<QQI?", 0, 0, 4, True)
    assert asked(connection, READ, vendor) == 0x10DE
    assert asked(connection, BAR_READ, register) == RTX.register
    function.gone = True
    assert asked(connection, READ, vendor) == 0xFFFF
    assert asked(connection, BAR_READ, register) == (1 << 64) - 1
    assert asked(connection, WRITE, struct.pack("<IIi", 4, 0x7, 2)) == 0
    function.gone = False
    assert asked(connection, READ, struct.pack("<IIi", 4, 0, 2)) == 0


def test_each_card_has_its_port_and_its_name() -> None:
    hardware = Hardware()
    try:
        assert set(hardware.functions) == {"rtx0", "rtx0.1", "rtx1", "rtx2", "radeon0", "radeon1"}
        devices = [value for name, value in pairwise(hardware.arguments) if name == "-device"]
        assert "-accel tcg" in " ".join(hardware.arguments)
        buses = [part for device in devices if device.startswith("x-pci-proxy") for part in device.split(",")]
        assert len({part for part in buses if part.startswith("bus=")}) == 5
    finally:
        for function in hardware.functions.values():
            function.close()


class _Refusing(Monitor):
    def __init__(self) -> None:
        """Have no machine."""


def test_a_request_that_makes_no_sense_is_refused_in_words() -> None:
    hardware = Hardware()
    try:
        bench = Bench(hardware, _Refusing())
        assert bench.do({"do": "train", "card": "rtx1", "speed_gtps": 2.5, "width": 4}) == {"ok": "train"}
        assert "rtx9" in bench.do({"do": "fall_off", "card": "rtx9"})["error"]
        assert "explode" in bench.do({"do": "explode"})["error"]
    finally:
        for function in hardware.functions.values():
            function.close()
