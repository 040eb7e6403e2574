"""No wolf in unusual places: nothing fails or breaks on them, and each warning is one that a person would expect."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.probes.container import container_evidence
from pytest_gpucoexist.testing.builder import MachineBuilder
from tests.gates.places import clouds, containers, desktops, distributions, laptops, life, servers

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.verdicts import Judgement, Level

PLACES = {
    name: make
    for family in (laptops, desktops, servers, clouds, containers, distributions, life)
    for name, make in family.PLACES.items()
}
SEEN_BY_NVML = {"drv.nv.persistence"}
"""Nobody switched persistence mode on: bare metal and virtual machines whose GPU shows no desktop."""

WARNINGS: dict[str, set[str]] = {
    "prime-select-intel": {"drv.bound_driver", "kmod.blacklist_conflict"},
    "compositor-on-the-card": {"topo.boot_display", "proc.nv.graphics", "proc.nv.compute"},
    "gt710-legacy-driver": SEEN_BY_NVML,
    "geforce-and-radeon": SEEN_BY_NVML | {"topo.igpu_visible"},
    "ryzen-7000-desktop": {"topo.boot_display"},
    "proxmox-one-each": SEEN_BY_NVML | {"drv.bound_driver"},
    "docker-device-1": {"ctr.shm"},
    "gke-pod": {"ctr.shm"},
    "eks-pod": {"ctr.shm"},
    "rootless-podman-cdi": {"ctr.shm"},
    "devcontainer": {"ctr.shm"},
    "arch-before-reboot": SEEN_BY_NVML | {"kmod.vermagic"},
    "tuned-by-admin": SEEN_BY_NVML | {"env.blocking", "pwr.nv.limits"},
    **dict.fromkeys(
        ("hgx-8-h100", "grace-gb200", "aws-g5", "gcp-t4", "azure-nc", "vgpu-guest", "vm-without-places", "slurm-step"),
        SEEN_BY_NVML,
    ),
    **dict.fromkeys(("nixos", "silverblue", "rhel-secure-boot", "debian-dkms", "ubuntu-hwe"), SEEN_BY_NVML),
    **dict.fromkeys(
        ("shared-workstation", "rebooted-after-xid", "noisy-log", "corrected-errors", "remapped-row"), SEEN_BY_NVML
    ),
    **dict.fromkeys(
        ("crashes-of-others", "wheel-and-toolkit", "two-pythons", "vgpu-host", "one-gpu-excluded"), SEEN_BY_NVML
    ),
}


def host_of(name: str) -> Host:
    place = PLACES[name]()
    return place.host() if isinstance(place, MachineBuilder) else place


def judged_at(name: str, level: Level, *, asked: bool) -> Judgement:
    """Judge a place as a session does (`asked` False: libraries were not asked at discovery) or as doctor does."""
    host = host_of(name)
    machine = discover(host, ask=("amd", "nvidia") if asked else ())
    return judge(Subject(host=host, machine=machine, level=level, deadline_s=60.0))


@pytest.mark.parametrize(("level", "asked"), [("quick", False), ("standard", False), ("standard", True)])
@pytest.mark.parametrize("name", PLACES)
def test_a_place_is_well(name: str, level: Level, asked: bool) -> None:
    judgement = judged_at(name, level, asked=asked)
    wrong = [
        f"{verdict.id}: {verdict.status}: {verdict.reason}"
        for verdict in judgement.verdicts
        if verdict.status in {"FAIL", "ERROR"} or verdict.blocks
    ]
    assert wrong == []
    assert judgement.fit is not False
    warned = {verdict.id: verdict.reason for verdict in judgement.verdicts if verdict.status == "WARN"}
    expected = WARNINGS.get(name, set())
    assert set(warned) <= expected, warned
    if level == "standard":
        assert set(warned) == expected


@pytest.mark.parametrize(
    ("name", "promised"),
    [
        ("slurm-step", {"cuda": 1}),
        ("slurm-step-rocm", {"rocm": 1}),
        ("docker-device-1", {"cuda": 1}),
        ("gke-pod", {"cuda": 1}),
        ("eks-pod", {"cuda": 4}),
        ("mig-pod", {"cuda": 1}),
        ("rocm-pod", {"rocm": 1}),
        ("apptainer-nv", {"cuda": 2}),
        ("apptainer-rocm", {"rocm": 2}),
        ("incus-gpu", {"cuda": 1}),
        ("wsl2", {"cuda": 1}),
        ("jetson-orin", {"cuda": 1}),
        ("proxmox-one-each", {"cuda": 1}),
        ("prime-on-demand", {"cuda": 1}),
        ("hgx-8-h100", {"cuda": 8}),
        ("geforce-and-radeon", {"cuda": 1, "rocm": 1}),
        ("shared-workstation", {"cuda": 2}),
    ],
)
@pytest.mark.parametrize("level", ["quick", "standard"])
def test_what_is_promised_and_here_is_not_missed(name: str, promised: dict[str, int], level: Level) -> None:
    host = host_of(name)
    needed = frozenset({"nvidia", "amd"})
    subject = Subject(host=host, machine=discover(host), level=level, promised=promised, needed=needed, deadline_s=60.0)
    assert [f"{each.id}: {each.reason}" for each in judge(subject).verdicts if each.status in {"FAIL", "ERROR"}] == []


@pytest.mark.parametrize(
    ("name", "usable"),
    [
        ("slurm-step", ["nvidia1"]),
        ("slurm-step-rocm", ["amd1"]),
        ("docker-device-1", ["nvidia1"]),
        ("gke-pod", ["nvidia0"]),
        ("incus-gpu", ["nvidia1"]),
        ("proxmox-one-each", ["nvidia1"]),
        ("wsl2", ["nvidia0"]),
    ],
)
def test_what_is_usable_there(name: str, usable: list[str]) -> None:
    machine = discover(host_of(name))
    assert [gpu.id for gpu in machine.gpus if gpu.granted and (gpu.usable.cuda or gpu.usable.rocm)] == usable


def test_advice_fits_the_place() -> None:
    """No option of docker on bare metal or in Kubernetes, no groups and no modprobe.d inside of containers."""
    for name in PLACES:
        judgement = judged_at(name, "standard", asked=True)
        inside = name in containers.PLACES and not name.startswith(("slurm", "github"))
        for verdict in judgement.verdicts:
            if verdict.status not in {"WARN", "FAIL"}:
                continue
            lines = " ".join(line for fix in verdict.fix for line in fix.lines)
            if not inside or name.endswith("pod"):
                assert "docker run" not in lines, (name, verdict.id)
                assert "podman run" not in lines, (name, verdict.id)
            if inside:
                assert "usermod" not in lines, (name, verdict.id)
                assert not any((fix.path or "").startswith("/etc/modprobe.d") for fix in verdict.fix), (
                    name,
                    verdict.id,
                )


@pytest.mark.parametrize("name", [name for name in containers.PLACES if not name.startswith("slurm")])
def test_a_container_whose_environment_was_cleaned_stays_one(name: str) -> None:
    """`tox` and `sudo` pass few variables on: a pod then shows itself by its mounts alone."""
    machine = containers.PLACES[name]()
    assert isinstance(machine, MachineBuilder)
    host = MachineBuilder(parts=replace(machine.parts, environ={"PATH": "/usr/bin:/bin"})).host()
    judgement = judge(Subject(host=host, machine=discover(host), level="standard", deadline_s=60.0))
    assert [f"{each.id}: {each.reason}" for each in judgement.verdicts if each.status in {"FAIL", "ERROR"}] == []
    if name != "github-runner":
        assert container_evidence(host) is not None
