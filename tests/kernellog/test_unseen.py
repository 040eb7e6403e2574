"""Lines that the rules were not written from, in every form, with hosts and stamps that look like addresses.

`data/unseen.jsonl`: 265 lines of reports, of other projects' log checkers and of the drivers' own format strings, each
with its source. `data/unseen_benign.txt`: 313 lines of boots of healthy machines and lines that merely sound bad.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pytest_gpucoexist.kernellog.report import findings_in
from tests.kernellog.seen import DATA

Form = Callable[[str, str], str]

# Hosts with colons and digits that look like PCI addresses, from reports and from nastier minds.
HOSTS = ("gpu-node-01", "a1b2:c3d4::1", "00:11:22:33:44:55", "10.0.0.1", "0000-01-00", "01:00.0", "host:8080", "talos")

FORMS: dict[str, Form] = {
    "dmesg": lambda line, host: f"[ 1234.567890] {line}",
    "a thread's number": lambda line, host: f"[   36.764462][  T291] {line}",
    "a thread's number alone": lambda line, host: f"[  T287] {line}",
    "dmesg -x": lambda line, host: f"kern  :err   : [ 1234.567890] {line}",
    "dmesg -x -T": lambda line, host: f"kern  :info  : [Thu Mar  7 18:50:57 2019] {line}",
    "dmesg -x iso": lambda line, host: f"syslog:err   : 2025-05-27T04:18:56,089671+00:00 {line}",
    "dmesg -T": lambda line, host: f"[Tue Feb 10 19:23:20 2026] {line}",
    "dmesg -H": lambda line, host: f"[  +0.000038] {line}",
    "dmesg -H, coloured": lambda line, host: f"\x1b[32m[  +0.000038] \x1b[0m\x1b[33m{line}\x1b[0m",
    "console": lambda line, host: f"<4>[   12.345678] {line}",
    "IGT": lambda line, host: f"<3> [701.306644] {line}",
    "journalctl": lambda line, host: f"Feb 10 19:23:20 {host} kernel: {line}",
    "journalctl, Czech": lambda line, host: f"kvě 25 19:29:48 {host} kernel: {line}",
    "journalctl, French": lambda line, host: f"avril 09 10:06:09 {host} kernel: {line}",
    "journalctl, Norwegian": lambda line, host: f"jan. 29 20:50:17 {host} kernel: {line}",
    "journalctl, Chinese": lambda line, host: f"11月 15 14:15:47 {host} kernel: {line}",
    "journalctl, Japanese, one digit": lambda line, host: f" 3月 15 14:15:47 {host} kernel: {line}",
    "no host": lambda line, host: f"Feb  2 08:03:20 kernel: [37932.038809] {line}",
    "syslog with the kernel's stamp": lambda line, host: f"Feb  2 08:03:20 {host} kernel: [1086487.613071] {line}",
    "a time alone": lambda line, host: f"22:39:31 kernel: {line}",
    "kernel: alone": lambda line, host: f"kernel: [ 2478.486780] {line}",
    "/var/log/dmesg": lambda line, host: f"[    1.379728] kernel: {line}",
    "short-monotonic": lambda line, host: f"[  147.945736] {host} kernel: {line}",
    "short-iso": lambda line, host: f"2026-11-30T14:12:01+0000 {host} kernel: {line}",
    "short-iso-precise": lambda line, host: f"2026-11-30T12:34:56.700000+0100 {host} kernel: {line}",
    "short-precise": lambda line, host: f"Nov 30 12:34:56.712345 {host} kernel: {line}",
    "short-full": lambda line, host: f"Mon 2026-11-30 14:12:01 CET {host} kernel: {line}",
    "short-unix": lambda line, host: f"1748545845.452100 {host} kernel: {line}",
    "iso, no host": lambda line, host: f"2026-11-30T14:12:01.123456789Z {line}",
    "RFC 5424": lambda line, host: f"<4>1 2026-11-30T14:12:01.123456+01:00 {host} kernel - - - {line}",
    "/dev/kmsg": lambda line, host: f"4,1,652513086584,-;{line}",
    "busybox": lambda line, host: f"Nov 30 14:12:01 {host} kern.err kernel: [   12.345678] {line}",
    "carriage return": lambda line, host: f"[   12.345678] {line}\r",
    "journalctl -o json": lambda line, host: json.dumps(
        {"_TRANSPORT": "kernel", "MESSAGE": line, "PRIORITY": "4", "SYSLOG_IDENTIFIER": "kernel", "_HOSTNAME": host}
    ),
    "grep": lambda line, host: f"/var/log/dmesg.0:[    1.379728] kernel: {line}",
    "indented": lambda line, host: f"    [ 1769.027331] {line}",
}


def unseen() -> list[dict[str, object]]:
    with (DATA / "unseen.jsonl").open(encoding="utf-8") as file:
        return [json.loads(text) for text in file]


def benign() -> list[str]:
    text = (DATA / "unseen_benign.txt").read_text(encoding="utf-8")
    return [line for line in text.split("\n") if line and not line.startswith("# ")]


def judged(text: str) -> list[tuple[str, str, str | None, int | None]]:
    return [(found.rule, found.severity, found.pci_address, found.xid) for found in findings_in(text)]


@pytest.mark.parametrize("entry", [pytest.param(entry, id=str(entry["line"])[:60]) for entry in unseen()])
def test_a_line_is_what_its_report_says(entry: dict[str, object]) -> None:
    (found,) = judged(str(entry["line"]))
    assert found[:3] == (entry["rule"], entry["severity"], entry["device"])
    if entry["rule"] == "nv.xid":
        assert found[3] == entry["xid"]


def test_boots_of_healthy_machines_are_nothing() -> None:
    assert {line: judged(line) for line in benign() if judged(line)} == {}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(form: str) -> None:
    wrong = {}
    for place, line in enumerate([*(str(entry["line"]) for entry in unseen()), *benign()]):
        dressed = FORMS[form](line, HOSTS[place % len(HOSTS)])
        if judged(dressed) != judged(line):
            wrong[dressed] = judged(dressed)
    assert wrong == {}


FALLEN = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
"""NVIDIA/NVSentinel#155: no Xid, and only the first line names the GPU."""

OTHERS = "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\n".join(FALLEN), id="no stamps"),
        pytest.param(f"[ 1843.308145] {FALLEN[0]}\n               {FALLEN[1]}\n               {FALLEN[2]}", id="dmesg"),
        pytest.param("\n".join(f"[ 1843.30814{n}] {line}" for n, line in enumerate(FALLEN)), id="stamped each"),
        pytest.param(f"Jun 30 11:07:05 gpu-0 kernel: {'#012'.join(FALLEN)}", id="rsyslog"),
        pytest.param("3,1234,1843308145,-;" + r"\x0a".join(FALLEN), id="kmsg"),
        pytest.param(
            f"[ 9.1] {FALLEN[0]}\n[ 9.2] {OTHERS}\n[ 9.3] {FALLEN[1]}\n[ 9.4] {OTHERS}\n[ 9.5] {FALLEN[2]}",
            id="other drivers in between",
        ),
    ],
)
def test_the_gpu_of_a_message_of_several_lines(text: str) -> None:
    assert judged(text) == [("nv.fallen_off_bus", "fail", "0000:b3:00.0", None)]


def test_two_gpus_that_fall_together_keep_their_names() -> None:
    second = [line.replace("b3", "c4") for line in FALLEN]
    found = judged("\n".join(f"[ 1843.308145] {line}" for line in (*FALLEN, *second)))
    assert [address for _, _, address, _ in found] == ["0000:b3:00.0", "0000:c4:00.0"]


@pytest.mark.parametrize(
    "line",
    [
        "Feb 14 05:03:41 node1 gpud[123]: detected NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus",
        "Feb 14 05:03:41 node1 sudo[99]: me : COMMAND=/usr/bin/grep NVRM: Xid (PCI:0000:01:00): 79, /var/log/syslog",
        "[   12.345678] systemd[1]: Starting a watcher of amdgpu ring gfx timeout, GPU reset begin...",
        '{"_TRANSPORT":"stdout","SYSLOG_IDENTIFIER":"gpud","_PID":"9","MESSAGE":"NVRM: Xid (PCI:0000:01:00): 79,"}',
    ],
)
def test_a_program_that_tells_of_a_drivers_line_is_not_the_driver(line: str) -> None:
    assert judged(line) == []


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("Feb 14 05:03:41 node1 nvidia-smi[5]: Failed to initialize NVML: Unknown Error", "user.nvml_unknown"),
        ("Feb 14 05:03:41 n modprobe[31]: FATAL: Module nvidia not found in directory /lib/modules/6.8", "mod.missing"),
        (
            "Feb 14 05:03:41 n systemd-modules-load[3]: Failed to insert module 'nvidia': Key was rejected by service",
            "mod.key_rejected",
        ),
        (
            "Feb 14 05:03:41 n kernel: python3[77]: segfault at 0 ip 07f1c sp 07ffd error 4 in libcuda.so.1[7f1+1a]",
            "sys.nccl_segv",
        ),
    ],
)
def test_what_programs_say_themselves_counts(line: str, rule: str) -> None:
    assert [found for found, *_ in judged(line)] == [rule]


def test_a_log_of_one_kind_costs_what_another_costs() -> None:
    """Each of these asks whether something came right later; asked line by line that took minutes."""
    missing = "[{n}.0] amdgpu 0000:{bus:02x}:00.0: Direct firmware load for amdgpu/x.bin failed with error -2\n"
    up = "[{n}.5] [drm] Initialized amdgpu 3.64.0 for 0000:{bus:02x}:00.0 on minor 1\n"
    text = "".join(missing.format(n=n, bus=n % 64) + up.format(n=n, bus=n % 64) for n in range(2000))
    assert {severity for _, severity, _, _ in judged(text)} == {"warn"}


def test_a_healthy_card_beside_a_sick_one_is_not_taken_for_it() -> None:
    hang = "[   90.100000] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=309\n"
    healthy = "[   90.000000] amdgpu 0000:12:00.0: [drm] Cannot find any crtc or sizes\n"
    sick = "[   90.200000] amdgpu 0000:03:00.0: amdgpu: GPU reset begin!\n"
    assert judged(healthy + hang)[0][2] is None
    assert judged(healthy + hang + sick)[0][2] == "0000:03:00.0"
