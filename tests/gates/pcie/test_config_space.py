"""Bytes of the configuration space, decoded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.pcie.config_space import bits_named, decode, no_answer
from tests.gates.pcie.trees import space


def test_registers_of_an_endpoint() -> None:
    found = decode(space(payload_code=1, supported_code=2, read_code=2, device_status=0b1001, aer=(0x4000, 0, 0x3000)))
    assert found is not None
    assert found.complete
    assert (found.vendor, found.device) == (0x10DE, 0x2684)
    express = found.express
    assert express is not None
    assert (express.port_type, express.payload, express.payload_supported, express.read_request) == (
        "endpoint",
        256,
        512,
        512,
    )
    assert (express.correctable, express.nonfatal, express.fatal, express.unsupported_request) == (
        True,
        False,
        False,
        True,
    )
    assert found.aer is not None
    assert bits_named(found.aer.uncorrectable_status) == ["CmpltTO"]
    assert found.aer.correctable_status == 0x3000
    assert found.acs is None


def test_registers_of_ports() -> None:
    root = decode(space(kind="root", capabilities2=0x180, acs=0x1D))
    assert root is not None
    assert root.express is not None
    assert root.acs is not None
    assert root.express.port_type == "root"
    assert (root.express.atomic_routing, root.express.atomic_32, root.express.atomic_64) == (False, True, True)
    assert (root.acs.request_redirect, root.acs.completion_redirect) == (True, True)
    down = decode(space(kind="downstream", capabilities2=0x40, acs=0x01))
    assert down is not None
    assert down.express is not None
    assert down.acs is not None
    assert down.express.atomic_routing
    assert not down.acs.request_redirect


def test_the_first_version_of_the_capability_has_no_atomics() -> None:
    found = decode(space(version=1, capabilities2=0x1C0, control2=0x40))
    assert found is not None
    assert found.express is not None
    assert found.express.atomic_32 is None
    assert found.express.atomic_requester is None


@pytest.mark.parametrize("size", [64, 128])
def test_what_a_user_may_read_is_not_complete(size: int) -> None:
    found = decode(space(size=size))
    assert found is not None
    assert not found.complete
    assert found.express is None


def test_a_header_that_a_recorder_padded_to_a_page_is_not_complete() -> None:
    found = decode(space()[:64] + bytes(4032))
    assert found is not None
    assert not found.complete


def test_a_function_that_does_not_answer() -> None:
    assert no_answer(b"\xff" * 4)
    assert no_answer(b"\xff" * 4096)
    assert decode(b"\xff" * 4096) is None
    # The ids of a virtual function read as all ones, its other registers do not (SR-IOV 1.1, 3.4.1).
    virtual = b"\xff" * 4 + space()[4:]
    assert not no_answer(virtual)
    assert decode(virtual) is not None


def test_lists_that_loop_end() -> None:
    data = bytearray(space(aer=None))
    data[0x41] = 0x40
    data[0x100:0x104] = (0x0003 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    found = decode(bytes(data))
    assert found is not None
    assert found.express is None
    assert found.aer is None


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    found = decode(data)
    assert found is None or len(data) >= 64
    decode(space()[:64] + data)
    decode(data + space()[len(data) :])
    decode(space()[:256] + data)
