"""Marks: validated, described, combined."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpucoexist.errors import RequirementError
from pytest_gpucoexist.model.arguments import format_bytes, parse_memory
from pytest_gpucoexist.model.codec import decode, encode
from pytest_gpucoexist.model.requirement import Need, combine, parse_mark, restrict
from pytest_gpucoexist.model.versions import parse_condition, satisfies

GIB = 1024**3


def one(name: str, **kwargs: Any) -> str:
    (requirement,) = parse_mark(name, (), kwargs)
    return requirement.describe()


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("gpu", {}, "1 GPU"),
        ("gpu", {"count": 3, "vendor": "intel"}, "3 Intel GPUs"),
        ("cuda", {}, "1 NVIDIA GPU with CUDA"),
        ("cuda", {"memory": "8 GiB"}, "1 NVIDIA GPU with CUDA, ≥ 8 GiB"),
        ("cuda", {"arch": ">=8.0"}, "1 NVIDIA GPU with CUDA, compute capability >=8.0"),
        ("cuda", {"runtime": ">=12.4"}, "1 NVIDIA GPU with CUDA and CUDA >=12.4"),
        (
            "cuda",
            {"runtime": "tensorrt>=10", "driver": ">=535"},
            "1 NVIDIA GPU with CUDA and tensorrt>=10, driver >=535",
        ),
        ("rocm", {"count": 2, "same_node": True}, "2 AMD GPUs with ROCm, on one NUMA node"),
        ("rocm", {"arch": ["gfx90a", "gfx11*"]}, "1 AMD GPU with ROCm, gfx90a or gfx11*"),
        ("gpu", {"framework": ("torch>=2.4", "cupy")}, "1 GPU with torch>=2.4 and cupy"),
        ("gpu", {"features": {"p2p", "ecc"}, "exclusive": True}, "1 GPU, ecc, p2p, exclusive"),
        ("gpu", {"arch": "gfx90a"}, "1 AMD GPU, gfx90a"),
        ("gpu", {"vendor": None, "memory": None}, "1 GPU"),
    ],
)
def test_a_mark_in_words(name: str, kwargs: dict[str, Any], words: str) -> None:
    assert one(name, **kwargs) == words


def test_cross_vendor_asks_for_one_of_each_vendor() -> None:
    requirements = parse_mark("cross_vendor", (), {"memory": "1 GiB"})
    assert [(each.vendor, each.api, each.memory_bytes) for each in requirements] == [
        ("nvidia", "cuda", GIB),
        ("amd", "rocm", GIB),
    ]
    assert [each.vendor for each in parse_mark("cross_vendor", (), {"vendors": ("amd", "intel")})] == ["amd", "intel"]


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "complaint"),
    [
        ("gpu", (2,), {}, r"gpu\(2\) takes keywords only.*count"),
        ("gpu", (), {"cout": 2}, r"no keyword 'cout'; valid keywords: vendor, count, memory"),
        ("cuda", (), {"vendor": "nvidia"}, r"cuda\(\) has no keyword 'vendor'"),
        ("gpu", (), {"vendor": "matrox"}, r"vendor='matrox' is unknown; the vendors are 'nvidia', 'amd', 'intel'"),
        ("gpu", (), {"vendor": "other"}, "is unknown"),
        ("gpu", (), {"count": 0}, "count=0 must be a whole number from 1"),
        ("gpu", (), {"count": True}, "count=True"),
        ("gpu", (), {"count": "2"}, "count='2'"),
        ("gpu", (), {"memory": "6 gigs"}, r"memory='6 gigs'.*\"6 GiB\""),
        ("gpu", (), {"memory": -1}, "memory=-1"),
        ("gpu", (), {"memory": 1.5}, "memory=1.5"),
        ("cuda", (), {"arch": "gfx90a"}, "compute capability"),
        ("rocm", (), {"arch": ">=8.0"}, "gfx name"),
        ("gpu", (), {"arch": "xe_hpg"}, "say the vendor too"),
        ("gpu", (), {"arch": ("gfx90a", "8.0")}, "mixes architectures"),
        ("gpu", (), {"arch": 8.0}, r"arch=8.0 must be a text"),
        ("cuda", (), {"runtime": ">=twelve"}, "no valid version specifier"),
        ("cuda", (), {"runtime": "what is this"}, "no version condition"),
        ("cuda", (), {"driver": 535}, "driver=535 must be a text"),
        ("gpu", (), {"framework": ">=2"}, "names no framework"),
        ("gpu", (), {"features": (1,)}, "must be a text or a sequence of texts"),
        ("gpu", (), {"exclusive": 1}, "exclusive=1 must be True or False"),
        ("cross_vendor", (), {"vendors": ("amd",)}, "two or three different vendors"),
        ("cross_vendor", (), {"vendors": ("amd", "amd")}, "two or three different vendors"),
        ("slow", (), {}, "'slow' is no mark of this plugin; these are: gpu, cuda, rocm, cross_vendor"),
    ],
)
def test_what_means_nothing_is_an_error_that_says_what_would(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(RequirementError, match=complaint):
        parse_mark(name, args, kwargs)
    with pytest.raises(RequirementError, match=complaint):
        combine([(name, args, kwargs)])


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        ([("cuda", {}), ("rocm", {})], "1 NVIDIA GPU with CUDA and 1 AMD GPU with ROCm"),
        ([("gpu", {"count": 2}), ("cuda", {})], "2 NVIDIA GPUs with CUDA"),
        ([("cuda", {}), ("gpu", {"count": 2, "memory": "1 GiB"})], "2 NVIDIA GPUs with CUDA, ≥ 1 GiB"),
        ([("cuda", {"count": 1}), ("gpu", {"count": 2})], "1 NVIDIA GPU with CUDA"),
        ([("gpu", {"count": 2}), ("cuda", {}), ("rocm", {})], "2 NVIDIA GPUs with CUDA and 2 AMD GPUs with ROCm"),
        ([("gpu", {"vendor": "intel"}), ("cuda", {})], "1 NVIDIA GPU with CUDA and 1 Intel GPU"),
        ([("gpu", {"vendor": "nvidia", "count": 2}), ("cuda", {})], "2 NVIDIA GPUs with CUDA"),
        ([("cuda", {"count": 2}), ("cuda", {"count": 4, "memory": "1 GiB"})], "2 NVIDIA GPUs with CUDA, ≥ 1 GiB"),
        ([("cuda", {"memory": None}), ("cuda", {"memory": "1 GiB"})], "1 NVIDIA GPU with CUDA"),
        ([("cross_vendor", {}), ("cuda", {"arch": ">=8.0"})],
         "1 NVIDIA GPU with CUDA, compute capability >=8.0 and 1 AMD GPU with ROCm"),
    ],
)  # fmt: skip
def test_several_marks_on_one_test(marks: list[tuple[str, dict[str, Any]]], words: str) -> None:
    assert combine([(name, (), kwargs) for name, kwargs in marks]).describe() == words


@pytest.mark.parametrize(
    ("marks", "narrowed", "words"),
    [
        (["cuda", "rocm"], {"device": "amd1", "device_vendor": "amd"},
         "1 AMD GPU with ROCm, namely amd1 and 1 NVIDIA GPU with CUDA"),
        (["cuda", "rocm"], {"vendor": "amd"}, "1 AMD GPU with ROCm and 1 NVIDIA GPU with CUDA"),
        (["cuda", "rocm"], {"device": "intel0", "device_vendor": "intel"},
         "1 NVIDIA GPU with CUDA, namely intel0 and 1 AMD GPU with ROCm"),
        (["cuda", "rocm"], {"node": 1},
         "1 NVIDIA GPU with CUDA, of NUMA node 1 and 1 AMD GPU with ROCm, of NUMA node 1"),
    ],
)  # fmt: skip
def test_device_or_vendor_narrows_the_requirement_that_it_is_for(
    marks: list[str], narrowed: dict[str, Any], words: str
) -> None:
    assert restrict(combine([(name, (), {}) for name in marks]), **narrowed).describe() == words


def test_of_several_devices_one_is_the_one_named() -> None:
    need = restrict(combine([("cuda", (), {"count": 3})]), device="nvidia1", device_vendor="nvidia")
    assert need.describe() == "1 NVIDIA GPU with CUDA, namely nvidia1 and 2 NVIDIA GPUs with CUDA"


def test_restricting_a_single_requirement() -> None:
    need = restrict(combine([("gpu", (), {})]), device="0000:41:00.0")
    assert need.describe() == "1 GPU, namely 0000:41:00.0"
    assert restrict(need, vendor="amd", node=1).describe() == "1 AMD GPU, namely 0000:41:00.0, of NUMA node 1"
    assert restrict(combine([("cuda", (), {})]), vendor="amd").requirements[0].vendor == "nvidia"


def test_a_need_survives_the_way_to_a_worker() -> None:
    need = combine([("cuda", (), {"runtime": ("tensorrt>=10", ">=12.4"), "driver": ">=535", "arch": ">=8"})])
    assert decode(Need, encode(need)) == need


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("6 GiB", 6 * GIB),
        ("1.5GB", 1_500_000_000),
        ("500 mb", 500_000_000),
        ("1 TiB", 1024 * GIB),
        (77, 77),
        ("9 B", 9),
    ],
)
def test_memory(text: object, count: int) -> None:
    assert parse_memory(text) == count


@given(st.integers(min_value=1, max_value=1023), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_memory_is_written_as_it_is_read(amount: int, unit: str) -> None:
    assert format_bytes(parse_memory(f"{amount} {unit}")) == f"{amount} {unit}"


@given(st.text(max_size=12))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for parse in (parse_memory, lambda value: parse_condition(value, what="runtime")):
        complaint = ""
        try:
            parse(text)
        except RequirementError as error:
            complaint = str(error)
        assert not complaint or repr(text) in complaint


@pytest.mark.parametrize(
    ("version", "specifier", "answer"),
    [
        ("12.8", ">=12.4", True),
        ("12.8", ">=12.4,<12.6", False),
        ("535.261.03", ">=535", True),
        ("6.8.0-51-generic", ">=6.8", True),
        ("6.3.42134-a9a80e791", "<6.3", False),
        ("2.9.0+rocm6.3", ">=2.4", True),
        ("2.10.0.dev20251101+cu128", ">=2.9", True),
        ("git-abc", ">=1", None),
        (None, ">=1", None),
        (None, "", True),
    ],
)
def test_versions_as_drivers_and_packages_write_them(version: str | None, specifier: str, answer: bool | None) -> None:
    assert satisfies(version, specifier) is answer


def test_a_bare_version_means_exactly_that() -> None:
    assert str(parse_condition("12.4", what="runtime")) == "==12.4"
    assert str(parse_condition(" tensorrt >= 10 ", what="runtime")) == "tensorrt>=10"
