"""lspci decodes the same bytes of the configuration space and says the same."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.gates.pcie.config_space import UNCORRECTABLE, Configuration, decode
from tests.gates.pcie.trees import TYPES, space
from tests.oracles.trees import Tree, command, program

if TYPE_CHECKING:
    from pathlib import Path

_PORTS = {
    "endpoint": ("Endpoint", "Legacy Endpoint"),
    "root": ("Root Port",),
    "upstream": ("Upstream Port",),
    "downstream": ("Downstream Port",),
    "bridge": ("PCI-Express to PCI/PCI-X Bridge",),
}


@pytest.fixture(scope="module")
def lspci() -> str:
    return program("lspci", "pciutils")


def spaces() -> dict[str, bytes]:
    """Two hundred functions with random registers, by slot; the same in every run."""
    dice = random.Random(20)
    kinds = sorted(TYPES)
    found = {}
    for number in range(200):
        kind = kinds[number % len(kinds)]
        found[f"{number // 8:02x}:00.{number % 8}"] = space(
            kind=kind,
            version=dice.choice((1, 2, 2, 2)),
            payload_code=dice.randrange(6),
            supported_code=dice.randrange(6),
            read_code=dice.randrange(6),
            device_status=dice.randrange(16),
            capabilities2=dice.getrandbits(10) & 0x3C0,
            control2=dice.getrandbits(8) & 0xC0,
            aer=dice.choice((None, (dice.getrandbits(22) & 0x3FF030, 0, dice.getrandbits(6)))),
            acs=dice.choice((None, dice.getrandbits(7))),
        )
    return found


def dump(functions: dict[str, bytes]) -> str:
    """Write what `lspci -xxxx` prints."""
    lines = []
    for slot, data in functions.items():
        lines.append(f"{slot} Unassigned class [0000]: Device")
        lines += [f"{at:02x}: {data[at : at + 16].hex(' ')}" for at in range(0, len(data), 16)]
        lines.append("")
    return "\n".join(lines)


def blocks(text: str) -> dict[str, str]:
    """Split a listing by slot."""
    return {block.split(" ", 1)[0]: block for block in re.split(r"\n\n", text.strip())}


def flag(text: str, name: str) -> bool | None:
    """Return `Name+` as True, `Name-` as False."""
    match = re.search(rf"\b{re.escape(name)}([+-])", text)
    return None if match is None else match[1] == "+"


def line(text: str, name: str) -> str | None:
    """Return the rest of a line, and of those that continue it, up to the next name."""
    match = re.search(rf"{name}:\s*(.*(?:\n\t\t\t.*)*)", text)
    return None if match is None else match[1]


def agree(found: Configuration, text: str) -> None:
    """Assert that a block of `lspci -vvv` says what we decoded."""
    express = found.express
    assert (express is None) == ("Express (v" not in text)
    if express is not None:
        kind = re.search(r"Express \(v\d\) ([^,(]*?)(?: \(Slot[+-]\))?,", text)
        assert kind is not None
        assert kind[1] in _PORTS[express.port_type]
        payload = re.search(r"MaxPayload (\d+) bytes, MaxReadReq (\d+) bytes", text)
        assert payload is not None
        assert (express.payload, express.read_request) == (int(payload[1]), int(payload[2]))
        supported = re.search(r"DevCap:\s*MaxPayload (\d+) bytes", text)
        assert supported is not None
        assert express.payload_supported == int(supported[1])
        status = line(text, "DevSta")
        assert status is not None
        told = [flag(status, name) for name in ("CorrErr", "NonFatalErr", "FatalErr", "UnsupReq")]
        assert told == [express.correctable, express.nonfatal, express.fatal, express.unsupported_request]
        atomics = line(text, "AtomicOpsCap")
        # lspci leaves out what a kind of port does not have.
        for name, ours in (
            ("32bit", express.atomic_32),
            ("64bit", express.atomic_64),
            ("Routing", express.atomic_routing),
        ):
            shown = flag(atomics or "", name)
            assert shown is None or shown == ours, name
        control = line(text, "AtomicOpsCtl")
        if control is not None and flag(control, "ReqEn") is not None:
            assert flag(control, "ReqEn") == express.atomic_requester
    uncorrectable = line(text, "UESta")
    assert (found.aer is None) == (uncorrectable is None)
    if found.aer is not None and uncorrectable is not None:
        for bit, name in UNCORRECTABLE.items():
            shown = flag(uncorrectable, name)
            if shown is not None:
                assert shown == bool(found.aer.uncorrectable_status >> bit & 1), name
    acs = line(text, "ACSCtl")
    assert (found.acs is None) == (acs is None)
    if found.acs is not None and acs is not None:
        assert flag(acs, "ReqRedir") == found.acs.request_redirect
        assert flag(acs, "CmpltRedir") == found.acs.completion_redirect


def test_random_registers(lspci: str, tmp_path: Path) -> None:
    functions = spaces()
    file = tmp_path / "dump"
    file.write_text(dump(functions), encoding="ascii")
    listed = blocks(command(lspci, "-F", str(file), "-n", "-vvv"))
    assert len(listed) == len(functions)
    for slot, data in functions.items():
        found = decode(data)
        assert found is not None
        agree(found, listed[slot])


# The one recording that has more of configuration spaces than their headers.
@pytest.mark.parametrize("tree", ["vm-2node-switch.tar.gz"], indirect=True)
def test_recorded_registers(lspci: str, tree: Tree) -> None:
    text = command(lspci, "-A", "linux-sysfs", "-O", f"sysfs.path={tree.bus}", "-D", "-n", "-vvv")
    read = 0
    for slot, block in blocks(text).items():
        found = decode((tree.bus / "devices" / slot / "config").read_bytes())
        if found is not None and found.complete:
            agree(found, block)
            read += 1
    assert read > 10
