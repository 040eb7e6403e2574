"""Who registered when, who got the framebuffer, and whether cards kept their numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_gpucoexist.gates.baseline.record import Baseline, to_text
from pytest_gpucoexist.model.codec import decode
from tests.gates.baseline.machines import baseline_path, baseline_text
from tests.gates.kernel_log.logs import AMD, BOOT, INTEL, NVIDIA, about, logged, one, said, says, workstation
from tests.gates.kernel_module.installed import wanting

LATE, HANDOVER, ORDER = "klog.race.late_registration", "klog.race.handover", "klog.race.card_order"
VERSION = "<5>[    0.000000] Linux version 6.8.0 (x)\n"

# pop-os/pop#4047, in seconds from its first line.
COLD_BOOT = VERSION + (
    "<6>[    8.000000] [drm] [nvidia-drm] [GPU ID 0x00000100] Loading driver\n"
    "<6>[   30.000000] [drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 0\n"
    "<6>[   40.000000] nvidia 0000:01:00.0: [drm] fb1: nvidia-drmdrmfb frame buffer device\n"
)


@pytest.mark.proves(LATE, "WARN", on="tree")
def test_a_registration_that_took_22_seconds() -> None:
    verdict = about(said(logged("", boot=COLD_BOOT), LATE), NVIDIA)
    assert verdict.status == "WARN"
    assert verdict.reason == "its driver needed 22.0 s to register it"
    assert verdict.evidence[0].expected == "within 10 s of the driver's first line"


@pytest.mark.proves(LATE, "PASS", on="tree")
def test_the_order_of_all_is_in_the_evidence() -> None:
    judgement = said(logged(""), LATE)
    verdict = about(judgement, AMD)
    assert verdict.status == "PASS"
    assert set(verdict.devices) == {NVIDIA, AMD, INTEL}
    assert verdict.evidence[0].found == (
        "card1 0000:04:00.0 (amdgpu) at 3.302 s; card2 0000:07:00.0 (xe) at 3.702 s;"
        " card0 0000:01:00.0 (nvidia-drm) at 5.102 s"
    )


def test_the_limit_is_the_suite_s() -> None:
    limits = {LATE: {"late_s": 30.0}}
    assert about(said(logged("", boot=COLD_BOOT), LATE, limits=limits), NVIDIA).status == "PASS"


def test_a_driver_that_was_loaded_late_by_hand_is_not_late() -> None:
    boot = VERSION + (
        "<6>[ 3600.000000] [drm] [nvidia-drm] [GPU ID 0x00000100] Loading driver\n"
        "<6>[ 3601.000000] [drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 0\n"
    )
    assert about(said(logged("", boot=boot), LATE), NVIDIA).status == "PASS"


def test_wall_clocks_tell_as_well() -> None:
    boot = (
        "2026-11-30T08:11:23,000000+00:00 Linux version 6.8.0 (x)\n"
        "2026-11-30T08:11:25,000000+00:00 [drm] [nvidia-drm] [GPU ID 0x00000100] Loading driver\n"
        "2026-11-30T08:11:47,840137+00:00 [drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 0\n"
    )
    assert "22.8 s" in about(said(logged("", boot=boot), LATE), NVIDIA).reason


def test_without_times_it_stays_open() -> None:
    boot = "Linux version 6.8.0 (x)\n[drm] [nvidia-drm] [GPU ID 0x00000100] Loading driver\n"
    boot += "[drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 0\n"
    assert says(said(logged("", boot=boot), LATE), "UNKNOWN")


def test_compute_drivers_without_drm_are_skipped() -> None:
    assert says(said(logged("", boot=VERSION), LATE), "SKIP")
    assert says(said(logged("", boot=VERSION), ORDER), "SKIP")


# CachyOS/linux-cachyos#552: the firmware's framebuffer is card0, and NVIDIA's driver does not take it over.
SIMPLEDRM = VERSION + (
    "<6>[    0.744819] [drm] Initialized simpledrm 1.0.0 for simple-framebuffer.0 on minor 0\n"
    "<6>[    0.750004] simple-framebuffer simple-framebuffer.0: [drm] fb0: simpledrmdrmfb frame buffer device\n"
    "<6>[    2.298497] [drm] [nvidia-drm] [GPU ID 0x00000100] Loading driver\n"
    "<6>[    3.636156] [drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 1\n"
)


@pytest.mark.proves(HANDOVER, "WARN", on="tree")
def test_simpledrm_keeps_its_card() -> None:
    boot = SIMPLEDRM.replace("on minor 0", "on minor 3")
    machine = workstation().with_link("/sys/class/drm/card3/device", "../../simple-framebuffer.0")
    verdict = one(said(logged("", machine, boot=boot), HANDOVER), "WARN")
    assert verdict.reason == "simpledrm, the firmware's framebuffer, keeps card3"
    assert "nvidia-drm.fbdev=1" in verdict.action


def test_a_framebuffer_that_went_away_was_handed_over() -> None:
    assert says(said(logged("", boot=SIMPLEDRM), HANDOVER), "PASS")


@pytest.mark.parametrize(
    "text",
    [
        # drivers/gpu/drm/i915 until 5.x; fs/sysfs/dir.c (geerlingguy/raspberry-pi-pcie-devices#764);
        # cosminmocan/vfio-single-amdgpu-passthrough#3.
        "[drm:i915_driver_load [i915]] *ERROR* failed to remove conflicting framebuffer drivers",
        "sysfs: cannot create duplicate filename '/class/graphics/fb0'",
        "vfio-pci 0000:04:00.0: BAR 0: can't reserve [mem 0xd0000000-0xdfffffff 64bit pref]",
    ],
)
def test_a_hand_over_that_failed(text: str) -> None:
    verdict = one(said(logged(text), HANDOVER), "WARN")
    assert verdict.evidence[0].found == text


def test_a_hand_over_of_another_device_is_nobody_s_business() -> None:
    text = "nvme 0000:0c:00.0: BAR 0: can't reserve [mem 0xd0000000-0xdfffffff 64bit pref]"
    assert says(said(logged(text), HANDOVER), "PASS")


@pytest.mark.proves(ORDER, "WARN", on="tree")
def test_a_card_that_has_another_number_now() -> None:
    boot = BOOT.replace("for 0000:04:00.0 on minor 1", "for 0000:04:00.0 on minor 3")
    verdict = about(said(logged("", boot=boot), ORDER), AMD)
    assert verdict.status == "WARN"
    assert verdict.reason == "it registered as card3 and is card1 now"


@pytest.mark.proves(ORDER, "PASS", on="tree")
def test_the_last_registration_counts() -> None:
    text = "<6>[  500.000000] [drm] Initialized amdgpu 3.57.0 for 0000:04:00.0 on minor 1"
    boot = BOOT.replace("for 0000:04:00.0 on minor 1", "for 0000:04:00.0 on minor 3")
    assert about(said(logged(text, boot=boot), ORDER), AMD).status == "PASS"


@pytest.mark.parametrize("gate", [LATE, HANDOVER, ORDER])
def test_no_log_is_unknown(gate: str) -> None:
    assert says(said(workstation(), gate), "UNKNOWN")


@pytest.mark.proves(ORDER, "WARN", on="tree")
def test_cards_in_another_order_than_the_baseline_s() -> None:
    """CachyOS/linux-cachyos#552: the same machine, and card1 is another GPU after each boot."""
    machine = wanting("rtx4090", "rx7900xtx").with_file("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    path, text = baseline_path(machine), baseline_text(machine)
    other = text.replace('"card0"', '"cardX"').replace('"card1"', '"card0"').replace('"cardX"', '"card1"')
    swapped = to_text(replace_digest(from_json(other)))
    verdict = next(
        each for each in said(logged("", machine.with_file(path, swapped)), ORDER).verdicts if each.status == "WARN"
    )
    assert verdict.reason == "the drivers came up in another order than when the baseline was saved"
    assert verdict.evidence[0].expected == f"{AMD}, {NVIDIA}"
    assert {each.status for each in said(logged("", machine.with_file(path, text)), ORDER).verdicts} == {"PASS"}


def from_json(text: str) -> Baseline:
    return decode(Baseline, json.loads(text))


def replace_digest(baseline: Baseline) -> Baseline:
    return replace(baseline, digest=baseline.computed_digest)
