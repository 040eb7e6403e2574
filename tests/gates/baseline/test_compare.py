"""What a session says about a machine that is not as its baseline."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pytest_gpucoexist.gates.baseline import baseline_card_order, card_order, diff, load, save
from pytest_gpucoexist.gates.baseline.record import baseline_of
from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.baseline.machines import MACHINE, WITHOUT_AMD, baseline_path, remembering
from tests.gates.judging import judged, subject_of, verdict, verdicts
from tests.gates.pcie.trees import port_of, put

GATE = "topo.baseline"


def changed(now: MachineBuilder) -> list[str]:
    """The words of every difference between MACHINE and another one with its id."""
    host = remembering(now, MACHINE).host()
    baseline = load(host).baseline
    assert baseline is not None
    return [each.words for each in diff(baseline, host, discover(host))]


@pytest.mark.proves(GATE, "PASS", on="tree")
@pytest.mark.parametrize("level", ["quick", "standard"])
def test_nothing_has_changed(level: str) -> None:
    found = verdict(remembering(MACHINE, MACHINE), GATE, level=level)
    assert (found.status, found.reason) == ("PASS", "the machine is as its baseline says")
    assert found.evidence[0].source == baseline_path(MACHINE)


def test_no_baseline() -> None:
    assert verdict(MACHINE, GATE).reason == "no baseline was saved on this machine (gpucoexist baseline save)"


@pytest.mark.proves(GATE, "FAIL", on="tree")
def test_a_gpu_is_missing() -> None:
    judgement = judged(remembering(WITHOUT_AMD, MACHINE), GATE)
    failed = [each for each in judgement.verdicts if each.status == "FAIL"]
    assert [each.reason for each in failed] == ["0000:83:00.0 (Navi 31 [Radeon RX 7900 XT/7900 XTX]) is missing"]
    assert judgement.unfit == {}, "what is not there cannot be taken out"
    assert "gpucoexist baseline save" in failed[0].action


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_the_driver_was_updated_or_is_another() -> None:
    found = verdicts(remembering(MACHINE.with_nvidia_driver("575.57.08"), MACHINE), GATE)
    warned = next(each for each in found if each.status == "WARN")
    assert warned.reason.endswith("the driver's version was 570.133.07, now 575.57.08")
    assert warned.devices == ("0000:01:00.0",)
    words = changed(MACHINE.with_wrong_driver("nvidia0", "nouveau"))
    assert "the driver was nvidia, now nouveau" in words[0]
    assert "the driver was nvidia, now none" in changed(MACHINE.with_wrong_driver("nvidia0", None))[0]


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_a_link_became_narrower() -> None:
    assert verdict(remembering(MACHINE.train_link_down("nvidia0", 16.0, 8), MACHINE), GATE).reason == (
        "0000:01:00.0 (NVIDIA GeForce RTX 4090): its link had 16 lanes, now 8"
    )
    slower = put(MACHINE, port_of(MACHINE, "nvidia0"), "max_link_speed", "8.0 GT/s PCIe\n")
    assert changed(slower) == [
        "0000:01:00.0 (NVIDIA GeForce RTX 4090): the slowest link on its path had 16 GT/s, now 8"
    ]


def test_an_idle_or_sleeping_link_is_no_change() -> None:
    assert changed(MACHINE.train_link_down("nvidia0", 2.5, 16)) == []
    assert changed(MACHINE.sleep("nvidia0")) == []


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_less_memory_another_vbios_another_firmware() -> None:
    less = put(MACHINE, "amd0", "mem_info_vram_total", f"{20 << 30}\n")
    assert changed(less)[0].endswith("memory was 24.0 GiB, now 20.0 GiB")
    assert verdict(remembering(put(MACHINE, "amd0", "vbios_version", "113-X-1\n"), MACHINE), GATE).status == "WARN"
    assert changed(MACHINE.with_file("/sys/class/dmi/id/bios_version", "F14\n")) == [
        "the firmware (BIOS) was F13, now F14"
    ]


@pytest.mark.proves(GATE, "WARN", on="tree")
@pytest.mark.proves(GATE, "PASS", on="tree")
def test_what_only_nvml_knows_is_compared_where_it_is_asked(tmp_path: Path) -> None:
    host = MACHINE.host()
    path = save(host, discover(host, ask=("amd", "nvidia")), str(tmp_path / "b.json"))
    text = Path(path).read_text(encoding="utf-8")
    same = MACHINE.with_file(baseline_path(MACHINE), text)
    assert verdict(same, GATE).status == "PASS"
    data = host.ask("nvml").data
    data["devices"][0]["memory"]["value"]["total"] //= 2
    half = same.with_reply("nvml", HelperReply(status="ok", data=data))
    found = verdict(half, GATE)
    assert (found.status, found.reason.endswith("memory was 24.0 GiB, now 12.0 GiB")) == ("WARN", True)
    assert verdict(half, GATE, level="quick").status == "PASS", "files do not tell it"


def test_a_little_more_or_less_memory_is_no_change() -> None:
    assert changed(put(MACHINE, "amd0", "mem_info_vram_total", f"{int(23.95 * 2**30)}\n")) == []


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_cards_were_numbered_in_another_order() -> None:
    host = MACHINE.host()
    machine = discover(host)
    assert card_order(machine) == ("0000:01:00.0", "0000:83:00.0")
    baseline = load(remembering(MACHINE, MACHINE).host()).baseline
    assert baseline is not None
    swapped = dataclasses.replace(
        machine,
        gpus=tuple(
            dataclasses.replace(
                gpu, drm=dataclasses.replace(gpu.drm, card={"card0": "card1", "card1": "card0"}[gpu.drm.card or ""])
            )
            if gpu.drm is not None
            else gpu
            for gpu in machine.gpus
        ),
    )
    words = [each.words for each in diff(baseline, host, swapped)]
    assert words == [
        "DRM numbers the GPUs in another order: it was 0000:01:00.0, 0000:83:00.0, now 0000:83:00.0, 0000:01:00.0"
    ]
    subject = subject_of(remembering(MACHINE, MACHINE))
    assert baseline_card_order(subject) == ("0000:01:00.0", "0000:83:00.0")
    assert baseline_card_order(subject_of(MACHINE)) is None
    from pytest_gpucoexist.gates.catalogue import all_gates
    from pytest_gpucoexist.gates.runner import judge
    from tests.gates.judging import SAID

    judgement = judge(
        dataclasses.replace(subject, machine=swapped), gates=[each for each in all_gates() if each.id == GATE]
    )
    SAID.extend(judgement.verdicts)


def test_another_card_a_new_card_and_a_card_that_moved() -> None:
    base = a_machine().with_file("/etc/machine-id", "a" * 32)
    one = base.with_gpu("rtx4090", address="0000:41:00.0", uuid="GPU-11111111-2222-3333-4444-555555555555")

    def words(now: MachineBuilder) -> list[str]:
        host = remembering(now, one).host()
        baseline = load(host).baseline
        assert baseline is not None
        return [each.words for each in diff(baseline, host, discover(host))]

    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    assert words(base.with_gpu("rtx3090", address="0000:41:00.0"))[0].startswith("another card: 0000:41:00.0")
    twin = base.with_gpu("rtx4090", address="0000:41:00.0", uuid="GPU-99999999-2222-3333-4444-555555555555")
    assert words(twin)[0].endswith("another card of the same model")
    assert words(one.with_gpu("rx7900xtx"))[-1].endswith("is new")
    moved = words(base.with_gpu("rtx4090", address="0000:61:00.0", uuid=uuid))
    assert moved == ["0000:41:00.0 (NVIDIA GeForce RTX 4090) has moved to 0000:61:00.0"]


def test_more_than_before_is_told_by_diff_and_does_not_warn() -> None:
    before = MACHINE.train_link_down("nvidia0", 16.0, 8)
    now = MACHINE.with_file(baseline_path(MACHINE), "")
    now = remembering(now, before)
    assert verdict(now, GATE).status == "PASS"


@pytest.mark.proves(GATE, "UNKNOWN", on="tree")
def test_a_damaged_baseline_is_unknown_and_says_what_to_do() -> None:
    found = verdict(MACHINE.with_file(baseline_path(MACHINE), "{"), GATE)
    assert found.status == "UNKNOWN"
    assert "it is no JSON" in found.reason
    assert found.action == f"Save a new one (gpucoexist baseline save), or delete {baseline_path(MACHINE)}."


def test_a_gpu_that_is_not_granted_here_is_not_missing() -> None:
    assert verdict(remembering(MACHINE.without_nodes("nvidia0"), MACHINE), GATE).status == "PASS"


def test_where_the_bus_cannot_be_seen_nothing_is_missing() -> None:
    blind = remembering(MACHINE.without("/sys/bus/pci/devices").without("/sys/class/drm"), MACHINE)
    found = verdict(blind, GATE)
    assert found.status == "UNKNOWN"
    assert "cannot be seen" in found.reason


def test_partitions_of_a_gpu_are_one_entry(shared: object) -> None:
    from pathlib import Path

    from pytest_gpucoexist.host import open_recording

    assert isinstance(shared, Path)
    host = open_recording(str(shared / "machines/kfd/topology-parsing.tar.xz"))
    machine = discover(host)
    assert len(machine.gpus) == 2
    assert [gpu.key for gpu in baseline_of(host, machine, "x").gpus] == ["0000:19:00.0"]
