"""What is written is kept at both ends, and memory is given back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.processes.captures import KEEP_BYTES, OVERFLOW_BYTES, Capture

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def capture() -> Iterator[Capture]:
    made = Capture("test")
    yield made
    made.close()
    made.close()
    assert made.take() == ""


def memory_bytes(capture: Capture) -> int:
    return os.fstat(capture.fd).st_blocks * 512


def test_portions_follow_each_other(capture: Capture) -> None:
    assert capture.take() == ""
    os.write(capture.fd, b"one")
    assert capture.take() == "one"
    os.write(capture.fd, "zwölf".encode())
    os.write(capture.fd, b"\xff")
    assert capture.take() == "zwölf\ufffd"
    assert capture.take() == ""


def test_a_writer_appends_wherever_it_stands(capture: Capture) -> None:
    other = os.dup(capture.fd)
    os.lseek(other, 0, os.SEEK_SET)
    os.write(capture.fd, b"first ")
    os.lseek(other, 0, os.SEEK_SET)
    os.write(other, b"second")
    os.close(other)
    assert capture.take() == "first second"


def test_a_large_portion_is_cut_in_the_middle_and_given_back(capture: Capture) -> None:
    os.write(capture.fd, b"a" * KEEP_BYTES + b"b" * 12345 + b"c" * KEEP_BYTES)
    text = capture.take()
    assert text == "a" * KEEP_BYTES + "\n… 12345 bytes left out …\n" + "c" * KEEP_BYTES
    assert memory_bytes(capture) < 2 * KEEP_BYTES
    os.write(capture.fd, b"next")
    assert capture.take() == "next"


def test_what_nobody_takes_does_not_fill_the_memory(capture: Capture) -> None:
    os.write(capture.fd, b"taken")
    assert capture.take() == "taken"
    block = b"x" * 2**20
    os.write(capture.fd, b"begin")
    for _ in range(OVERFLOW_BYTES // len(block) + 1):
        os.write(capture.fd, block)
    capture.trim()
    assert memory_bytes(capture) <= 3 * KEEP_BYTES
    os.write(capture.fd, b"end")
    text = capture.take()
    assert text.startswith("beginxxx")
    assert text.endswith("xxxend")
    lost = OVERFLOW_BYTES + 2**20 + 8 - 2 * KEEP_BYTES
    assert f"… {lost} bytes left out …" in text
