"""Which driver holds a GPU, and when that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import a_machine
from pytest_gpucoexist.testing.catalogue import CATALOGUE
from tests.gates.judging import judged, verdict, verdicts
from tests.gates.kernel_module.installed import booted_with, folder_of, wanting

if TYPE_CHECKING:
    from pathlib import Path

GATE = "drv.bound_driver"
NVIDIA, AMD = "0000:01:00.0", "0000:04:00.0"


@pytest.mark.proves(GATE, "PASS", on="tree")
def test_the_vendors_own_drivers_are_right() -> None:
    said = verdicts(wanting("rtx4090", "rx7900xtx", "uhd770"), GATE)
    assert {each.reason for each in said} == {"nvidia holds it", "amdgpu holds it", "i915 holds it"}
    assert {each.status for each in said} == {"PASS"}
    assert all(each.evidence[0].source.endswith("/driver") for each in said)


@pytest.mark.proves(GATE, "FAIL", on="tree")
def test_nouveau_on_a_wanted_card_blocks_it() -> None:
    """What NVIDIA's DCGM looks for before anything else (nvvs/src/Software.cpp, checkDenylist)."""
    judgement = judged(wanting("rtx4090", "rx7900xtx").with_wrong_driver("nvidia0", "nouveau"), GATE)
    wrong = next(each for each in judgement.verdicts if each.status == "FAIL")
    assert wrong.reason == (
        "nouveau holds it instead of nvidia, though /usr/lib/x86_64-linux-gnu/libcuda.so.570.133.07 is installed"
    )
    assert wrong.blocks
    assert wrong.devices == (NVIDIA,)
    assert set(judgement.unfit) == {NVIDIA}
    assert judgement.fit is False
    assert wrong.fix[0].path == "/etc/modprobe.d/blacklist-nouveau.conf"
    assert wrong.fix[0].lines == ("blacklist nouveau", "options nouveau modeset=0")
    assert wrong.fix[1].lines[0] == "sudo update-initramfs -u"


@pytest.mark.parametrize("name", ["nova_core", "nova-core", "NovaCore"])
@pytest.mark.proves(GATE, "FAIL", on="tree")
def test_nova_core_is_foreign_under_each_of_its_names(name: str) -> None:
    """beclab/Olares#3963: Ubuntu's kernel brings nova_core, which takes the card before nvidia. `name: "NovaCore"` is
    what drivers/gpu/nova-core/nova_core.rs registers."""
    wrong = verdict(wanting("rtx4090").with_wrong_driver("nvidia0", name), GATE)
    assert wrong.blocks
    assert wrong.fix[0].lines == ("blacklist nova_core", "blacklist nova_drm")


@pytest.mark.proves(GATE, "FAIL", on="tree")
def test_the_only_card_given_to_a_virtual_machine() -> None:
    """wezterm/wezterm#3561: the GPU was bound to vfio-pci, and the program said only that there was none."""
    machine = booted_with(wanting("rtx4090"), "vfio-pci.ids=10de:2684,10de:22ba")
    wrong = verdict(machine.with_wrong_driver("nvidia0", "vfio-pci"), GATE)
    assert wrong.blocks
    assert wrong.reason.startswith("vfio-pci holds it instead of nvidia, though ")
    assert "give it back to the host" in wrong.action
    assert [each.found for each in wrong.evidence] == ["vfio-pci", "vfio-pci ids=10de:2684,10de:22ba"]


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_one_card_of_two_given_to_a_virtual_machine_is_healthy() -> None:
    machine = wanting("rtx4090", "rtx3090").with_wrong_driver("nvidia1", "vfio-pci")
    judgement = judged(machine, GATE, needed=frozenset({"nvidia"}), promised={"cuda": 1})
    assert judgement.by_gate() == {GATE: "WARN"}
    assert judgement.fit
    assert any("it was given away" in each.reason for each in judgement.verdicts)


def test_a_promise_that_the_rest_cannot_keep_makes_it_a_failure() -> None:
    machine = wanting("rtx4090", "rtx3090").with_wrong_driver("nvidia1", "vfio-pci")
    judgement = judged(machine, GATE, promised={"cuda": 2})
    assert judgement.fit is False
    assert list(judgement.unfit.values()) == [
        "drv.bound_driver: vfio-pci holds it instead of nvidia, though cuda:2 is promised"
    ]


def test_a_driver_override_is_a_wish_too() -> None:
    machine = wanting("rtx4090", "rtx3090").with_wrong_driver("nvidia0", None)
    said = verdicts(machine.with_file(f"{folder_of(machine, NVIDIA)}/driver_override", "vfio-pci\n"), GATE)
    assert [each.status for each in said] == ["WARN", "PASS"]
    assert "driver_override is vfio-pci" in said[0].reason


@pytest.mark.proves(GATE, "FAIL", on="tree")
def test_a_card_without_a_driver_names_the_line_that_keeps_the_driver_out() -> None:
    machine = wanting("rtx4090").with_wrong_driver("nvidia0", None)
    machine = machine.with_file("/etc/modprobe.d/local.conf", "# for the move\ninstall nvidia /bin/false\n")
    wrong = verdict(machine, GATE, promised={"cuda": 1})
    assert wrong.blocks
    assert wrong.reason == "no driver holds it: nvidia is not bound, though cuda:1 is promised"
    assert ("/etc/modprobe.d/local.conf:2", "install nvidia /bin/false") in [
        (each.source, each.found) for each in wrong.evidence
    ]
    assert wrong.fix[0].lines == ("sudo sed -i '2s/^/# /' /etc/modprobe.d/local.conf",)


def test_a_card_without_a_driver_where_nothing_keeps_it_out() -> None:
    wrong = verdict(wanting("rx7900xtx").with_wrong_driver("amd0", None), GATE)
    assert wrong.fix[0].lines == ("sudo modprobe amdgpu",)
    assert "the kernel's log says why it refused this device" in wrong.action


@pytest.mark.parametrize("driver", ["nouveau", "vfio-pci", None])
def test_a_card_that_nobody_wants_is_nobodys_problem(driver: str | None) -> None:
    said = verdict(a_machine().with_gpu("rtx4090", driver=driver), GATE)
    assert said.status == "SKIP"
    assert "nothing here asks for NVIDIA GPUs" in said.reason


def test_a_selected_test_is_no_wish_and_a_promise_is() -> None:
    """A suite's CUDA tests are selected on every laptop, and are skipped there."""
    machine = a_machine().with_gpu("rtx4090", driver="nouveau")
    assert verdict(machine, GATE, needed=frozenset({"nvidia"})).status == "SKIP"
    wrong = verdict(machine, GATE, promised={"nvidia": 1})
    assert wrong.blocks
    assert wrong.reason == "nouveau holds it instead of nvidia, though nvidia:1 is promised"


def test_an_old_card_for_the_display_beside_a_new_one() -> None:
    old = replace(CATALOGUE["rtx3090"], device_id="0x0640", name="GeForce 9500 GT", driver="nouveau")
    said = verdicts(wanting("rtx4090").with_gpu(old), GATE)
    assert {each.status for each in said} == {"PASS", "SKIP"}
    assert any("before Maxwell" in each.reason for each in said)
    alone = verdict(wanting().with_gpu(old), GATE)
    assert alone.status == "WARN"


def test_radeon_drives_what_rocm_never_supports() -> None:
    old = replace(CATALOGUE["rx7900xtx"], device_id="0x6818", name="Radeon HD 7870", driver="radeon", bridges=())
    said = verdict(wanting().with_gpu(old), GATE)
    assert said.status == "WARN"
    assert "older than anything that ROCm supports" in said.reason
    wrong = verdict(wanting().with_gpu(old), GATE, promised={"rocm": 1})
    assert wrong.blocks
    assert wrong.fix[0].lines[0] == "options radeon si_support=0 cik_support=0"


def test_a_virtual_function_that_nobody_uses() -> None:
    machine = wanting("rtx4090").with_wrong_driver("nvidia0", None)
    machine = machine.with_link(f"{folder_of(machine, NVIDIA)}/physfn", "..")
    assert verdict(machine, GATE).status == "SKIP"


def test_an_integrated_gpu_that_cannot_be_used_blocks_nothing() -> None:
    machine = wanting("rx7900xtx", "radeon-780m")
    said = verdicts(machine.with_wrong_driver("amd1", None), GATE)
    assert sorted(each.status for each in said) == ["PASS", "WARN"]


@pytest.mark.proves(GATE, "UNKNOWN", on="recording")
def test_a_tree_that_tells_no_drivers_is_unknown_though_they_are_wanted(shared: Path) -> None:
    host = open_recording(str(shared / "machines/kfd/topo-mi210-xgmi-pcie.tar.xz"))
    said = verdict(host, GATE, promised={"rocm": 8})
    assert said.status == "UNKNOWN"
    assert len(said.devices) == 8


@pytest.mark.parametrize(
    ("recording", "driver"),
    [
        ("lact/lact-amd-rx7900xtx", "amdgpu"),
        ("lact/lact-nvidia-rtx4080", "nvidia"),
        ("lact/lact-intel-b580", "xe"),
        ("lact/lact-intel-cometlake", "i915"),
    ],
)
@pytest.mark.proves(GATE, "PASS", on="recording")
def test_recorded_cards_have_their_own_driver(shared: Path, recording: str, driver: str) -> None:
    said = verdict(open_recording(str(shared / f"machines/{recording}.tar.xz")), GATE)
    assert said.reason == f"{driver} holds it"


def test_a_recorded_old_card_with_radeon_is_healthy(shared: Path) -> None:
    said = verdict(open_recording(str(shared / "machines/lact/lact-amd-hd7870.tar.xz")), GATE)
    assert said.status == "SKIP"
    assert said.reason == "radeon holds it, and nothing here asks for AMD GPUs"


def test_an_intel_display_gpu_without_a_driver_blocks_nothing_unless_it_is_asked_for() -> None:
    """A server that boots with nomodeset, and has Level Zero's loader because hwloc brought it."""
    machine = booted_with(wanting("rtx4090", "uhd770").with_wrong_driver("intel0", None), "nomodeset")
    assert {each.status for each in verdicts(machine, GATE)} == {"PASS", "WARN"}
    assert judged(machine, GATE).fit
    assert not judged(machine, GATE, promised={"intel": 1}).fit


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_a_card_that_a_line_keeps_without_its_driver_is_no_failure_unless_promised() -> None:
    """What `prime-select intel` (nvidia-prime) leaves of a laptop: the software stays, the module is kept out."""
    machine = (
        a_machine()
        .with_gpu("rtx4090", driver=None)
        .with_file("/usr/lib/x86_64-linux-gnu/libcuda.so.1", b"\x7fELF")
        .with_file(
            "/lib/modprobe.d/blacklist-nvidia.conf", "blacklist nvidia\nblacklist nvidia-drm\nalias nvidia off\n"
        )
    )
    said = verdict(machine, GATE)
    assert said.status == "WARN"
    assert said.reason.startswith("no driver holds it: a line keeps nvidia out, though ")
    assert said.action == "nothing, if that is on purpose"
    assert verdict(machine, GATE, promised={"cuda": 1}).blocks
