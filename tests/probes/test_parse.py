from __future__ import annotations

import errno

import pytest
from hypothesis import given, strategies as st

from pytest_gpucoexist.model.readings import Reading, Status
from pytest_gpucoexist.probes import parse
from pytest_gpucoexist.probes.reader import Bad, excerpt, first_ok, link_name, read, reason
from tests.probes.sysfs import SysfsWriter, as_host, watched

PARSERS = [
    parse.hex_id,
    parse.pci_class,
    parse.uevent_class,
    parse.runtime_status,
    parse.number,
    parse.word,
    parse.numa_node,
    parse.link_speed,
    parse.link_width,
    parse.cpus_of_list,
    parse.local_cpulist,
    parse.cpulist_of_mask,
    parse.named_values,
]


@pytest.mark.parametrize(
    ("parser", "text", "value"),
    [
        (parse.hex_id, "0x10de\n", "0x10de"),
        (parse.hex_id, "10DE", "0x10de"),
        (parse.pci_class, "0x030000\n", "0x030000"),
        (parse.uevent_class, "30000", "0x030000"),
        (parse.uevent_class, "120000", "0x120000"),
        (parse.runtime_status, "suspended\n", "suspended"),
        (parse.numa_node, "0\n", 0),
        (parse.numa_node, "255\n", 255),
        (parse.link_speed, "16.0 GT/s PCIe\n", 16.0),
        (parse.link_speed, "2.5 GT/s PCIe", 2.5),
        (parse.link_speed, "8 GT/s\n", 8.0),
        (parse.link_speed, "64.0 GT/s PCIe", 64.0),
        (parse.link_width, "16\n", 16),
        (parse.link_width, "0\n", 0),
        (parse.local_cpulist, "0-7,16-23\n", "0-7,16-23"),
        (parse.cpus_of_list, "\n", ()),
        (parse.cpus_of_list, "3,0-1", (0, 1, 3)),
        (parse.cpulist_of_mask, "0000,00000011,11111111\n", "0,4,8,12,16,20,24,28,32,36"),
        (parse.cpulist_of_mask, "ffff\n", "0-15"),
        (parse.named_values, "simd_count 416\nvendor_id 4098\n", {"simd_count": 416, "vendor_id": 4098}),
    ],
)
def test_what_kernels_print_is_understood(parser: object, text: str, value: object) -> None:
    assert callable(parser)
    assert parser(text) == value


@pytest.mark.parametrize(
    ("parser", "text", "status", "words"),
    [
        (parse.hex_id, "0x10", "broken", "not a PCI id: '0x10'"),
        (parse.hex_id, "0xffff", "broken", "does not answer"),
        (parse.pci_class, "0x03", "broken", "not a PCI class"),
        (parse.uevent_class, "GGGGG", "broken", "not a PCI class"),
        (parse.runtime_status, "acti", "broken", "not a runtime power state: 'acti'"),
        (parse.number, "9" * 6000, "broken", "not a number"),
        (parse.number, "-1", "broken", "out of range: '-1'"),
        (parse.number, "", "broken", "not a number: ''"),
        (parse.word, "two words", "broken", "not a word"),
        (parse.numa_node, "-1\n", "unsupported", "-1: the firmware does not say which node"),
        (parse.numa_node, "4096", "broken", "out of range"),
        (parse.link_speed, "Unknown speed", "unsupported", "Unknown speed"),
        (parse.link_speed, "Unknown", "unsupported", "Unknown"),
        (parse.link_speed, "999.0 GT/s", "broken", "not a link speed"),
        (parse.link_speed, "16.0", "broken", "not a link speed: '16.0'"),
        (parse.link_width, "63", "broken", "all ones"),
        (parse.link_width, "255", "broken", "all ones"),
        (parse.link_width, "x16", "broken", "not a number"),
        (parse.local_cpulist, "", "unsupported", "an empty CPU list"),
        (parse.local_cpulist, "7-0", "broken", "not a CPU list"),
        (parse.local_cpulist, "0-999999", "broken", "not a CPU list"),
        (parse.local_cpulist, "0-", "broken", "not a CPU list"),
        (parse.cpulist_of_mask, "0,00000000", "unsupported", "an empty CPU mask"),
        (parse.cpulist_of_mask, "xyz", "broken", "not a CPU mask"),
        (parse.cpulist_of_mask, ",".join(["ffffffff"] * 3000), "broken", "not a CPU mask"),
        (parse.named_values, "", "broken", "no properties"),
        (parse.named_values, "simd_count", "broken", "not a property: 'simd_count'"),
        (parse.named_values, "simd_count -1", "broken", "not a property"),
        (parse.named_values, "<html> 7", "broken", "not a property"),
    ],
)
def test_garbage_is_never_a_value(parser: object, text: str, status: Status, words: str) -> None:
    assert callable(parser)
    bad = parser(text)
    assert isinstance(bad, Bad)
    assert bad.status == status
    assert words in bad.detail


@pytest.mark.parametrize("parser", PARSERS)
@given(text=st.text(max_size=200))
def test_no_parser_raises(parser: object, text: str) -> None:
    assert callable(parser)
    value = parser(text)
    # An empty text may be an empty list; nothing else turns into a value that means nothing.
    assert isinstance(value, Bad) or value or value in {0, ()}
    if value == 0 and value is not False:
        assert "0" in text


@given(st.sets(st.integers(0, 300)))
def test_lists_and_masks_name_the_same_cpus(cpus: set[int]) -> None:
    text = parse.list_of_cpus(tuple(sorted(cpus)))
    assert parse.cpus_of_list(text) == tuple(sorted(cpus))
    if cpus:
        digits = f"{sum(1 << cpu for cpu in cpus):x}"
        digits = digits.zfill(-(-len(digits) // 8) * 8)
        mask = ",".join(digits[at : at + 8] for at in range(0, len(digits), 8))
        assert parse.cpulist_of_mask(mask) == text


def test_excerpt_is_one_short_printable_line() -> None:
    assert excerpt("\x00\n" + "y" * 100) == repr("\x00\n" + "y" * 58 + "...")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (errno.ENOENT, "absent"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.EINVAL, "unsupported"),
        (errno.EIO, "broken"),
        (errno.ENODEV, "broken"),
    ],
)
def test_an_error_becomes_the_status_of_its_errno(code: int, status: Status) -> None:
    host = as_host(watched(SysfsWriter().tree, errors={"/sys/x": code}))
    reading = read(host, "numa_node", "/sys/x", parse.numa_node)
    assert (reading.value, reading.status, reading.source) == (None, status, "/sys/x")
    assert reading.detail == reason(OSError(code, ""))
    assert link_name(host, "driver", "/sys/x").status == status


def test_an_error_without_a_number_keeps_its_words() -> None:
    assert reason(OSError("no such page in the recording")) == "no such page in the recording"
    assert reason(OSError()) == "OSError"


def test_a_link_to_nowhere_in_particular_is_broken() -> None:
    writer = SysfsWriter()
    writer.tree.add_link("/sys/driver", "/")
    assert link_name(as_host(watched(writer.tree)), "driver", "/sys/driver").status == "broken"


def test_first_ok_prefers_a_value_and_else_the_first() -> None:
    denied = Reading(field="name", value=None, source="a", status="denied")
    absent = Reading(field="name", value=None, source="b", status="absent")
    told = Reading(field="name", value="x", source="c")
    assert first_ok([denied, told]) is told
    assert first_ok([denied, absent]) is denied
    with pytest.raises(ValueError, match="no readings"):
        first_ok([])


def test_control_characters_beside_a_number_do_not_raise() -> None:
    # `str.strip` takes the unit separator for white space, `int` does not (found by hypothesis).
    assert parse.number("0\x1f") == 0
