"""`gpucoexist doctor` as a person uses it."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist import cli
from pytest_gpucoexist.model.verdicts import Judgement
from pytest_gpucoexist.testing.builder import a_machine
from tests.reports.schemas import problems

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(["doctor", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def refused(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    code, out, err = run(*arguments, capsys=capsys)
    assert (code, out) == (2, "")
    assert err.startswith("gpucoexist: ")
    assert err.count("\n") == 1
    return err


@pytest.fixture
def unfit(tmp_path: Path) -> str:
    """Two cards, of which one is gone from the bus though its folder is there."""
    machine = a_machine("bench").with_gpu("rtx4090").with_gpu("rtx4090").lose("nvidia1")
    return machine.write_archive(str(tmp_path / "bench.tar.gz"))


def test_the_demo_is_fit(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("--machine", "demo", capsys=capsys)
    assert (code, err) == (0, "")
    first, second, *_, last = out.splitlines()
    assert first == "demo · 4 GPUs: 2 NVIDIA, 2 AMD · gates of level standard"
    assert second == "SIMULATED: a replayed machine is judged, not this one."
    assert last == "fit"


def test_a_lost_card_is_unfit_and_the_words_name_it(unfit: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--machine", unfit, "--level", "quick", capsys=capsys)
    assert code == 1
    assert "  FAIL    pcie.config_space  nvidia1 (0000:02:00.0)  blocks" in out.splitlines()
    assert out.splitlines()[-1] == "UNFIT: nvidia1"


def test_json_is_the_judgement(unfit: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--machine", unfit, "--level", "quick", "--json", capsys=capsys)
    assert code == 1
    document = json.loads(out)
    assert problems("judgement", document) == []
    judgement = Judgement.from_json(document)
    assert judgement.fit is False
    assert list(judgement.unfit) == ["0000:02:00.0"]
    (pair,) = judgement.matrix
    assert {pair.a, pair.b} == {"0000:01:00.0", "0000:02:00.0"}


def test_verbose_shows_what_passed_and_what_it_rests_on(unfit: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, short, _ = run("--machine", unfit, "--level", "quick", capsys=capsys)
    _, long, _ = run("--machine", unfit, "--level", "quick", "-v", capsys=capsys)
    assert "PASS" not in short
    assert "  PASS    drv.bound_driver" in long
    assert "  SKIP    " in long


def test_single_gates_can_be_asked(unfit: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--machine", unfit, "--gate", "drv.bound_driver", "--json", capsys=capsys)
    assert code == 0
    assert {verdict["id"] for verdict in json.loads(out)["verdicts"]} == {"drv.bound_driver"}


def test_what_is_promised_and_missing_is_unfit(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--machine", "demo", "--level", "quick", "--require", "cuda:3", capsys=capsys)
    assert code == 1
    assert "cuda:3 is promised: needs 3 NVIDIA GPUs with CUDA" in out
    code, _, _ = run("--machine", "demo", "--level", "quick", "--require", "cuda:2,rocm", capsys=capsys)
    assert code == 0


def test_a_promise_is_not_kept_by_a_card_that_is_unfit(unfit: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("--machine", unfit, "--level", "quick", "--require", "nvidia:2", capsys=capsys)
    assert "nvidia:2 is promised" in out


def test_nothing_to_judge_by_is_neither_fit_nor_unfit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tree that tells of a card and nothing else."""
    folder = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    for name, text in {"vendor": "0x10de", "device": "0x2684", "class": "0x030000"}.items():
        (folder / name).write_text(text + "\n")
    code, out, _ = run("--machine", str(tmp_path), "--level", "quick", "--gate", "pcie.config_space", capsys=capsys)
    assert code == 2
    assert out.splitlines()[-1].startswith("could not judge")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gate", "no.such"), "no gate matches 'no.such'"),
        (("--gate", "bw.h2d"), "bw.h2d is of level transfer"),
        (("--explain", "drv.bound_drivr"), "did you mean drv.bound_driver"),
        (("--explain", "zzz"), "see gpucoexist doctor --list"),
        (("--level", "deep"), "invalid choice: 'deep'"),
        (("--require", "cuda:many"), "--require: 'cuda:many' is not one of gpu, cuda"),
        (("--kernel-log", "/no/such/file"), "cannot read /no/such/file: No such file or directory"),
        (("--machine", "x.json"), "it holds results, not the files that gates read"),
        (("--list", "--explain", "drv.bound_driver"), "not allowed with argument"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(*arguments, capsys=capsys)


def test_the_list_names_every_gate(capsys: pytest.CaptureFixture[str]) -> None:
    from pytest_gpucoexist.gates.catalogue import all_gates

    code, out, _ = run("--list", capsys=capsys)
    assert code == 0
    assert all(f"  {gate.id} " in out for gate in all_gates())
    code, out, _ = run("--list", "--json", "--gate", "pcie.*", capsys=capsys)
    assert {gate["group"] for gate in json.loads(out)} == {"pcie-link"}


def test_a_gate_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--explain", "drv.bound_driver", capsys=capsys)
    assert code == 0
    for part in ("reads", "must hold", "why", "what to do", "source", "takes its devices out"):
        assert part in out


def test_a_check_that_is_not_built_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    from pytest_gpucoexist.gates.describe import unbuilt

    name, reason = next(iter(unbuilt().items()))
    said = refused("--explain", name, capsys=capsys)
    assert f"{name} is not built: {reason}" in said


LOG = """\
[    3.141593] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.07  Fri Mar 14 13:12:07 UTC 2025
[  812.100000] NVRM: Xid (PCI:0000:44:00): 79, pid=7992, GPU has fallen off the bus.
[  812.200000] NVRM: Xid (PCI:0000:44:00): 79, pid=7992, GPU has fallen off the bus.
"""


def test_a_saved_kernel_log_is_judged_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dmesg.txt"
    path.write_text(LOG)
    code, out, _ = run("--kernel-log", str(path), capsys=capsys)
    assert code == 1
    assert "FAIL    nv.xid 79  0000:44:00.0  2 times" in out
    assert out.splitlines()[-1] == "2 failures, 0 warnings, 1 informative"
    code, out, _ = run("--kernel-log", str(path), "--json", capsys=capsys)
    assert code == 1
    findings = json.loads(out)["findings"]
    assert [found["severity"] for found in findings] == ["info", "fail", "fail"]
    assert set(findings[0]) == {"line", "rule", "severity", "vendor", "pci_address", "xid", "meaning", "action"}
    assert findings[1]["line"] == LOG.splitlines()[1]


def test_a_kernel_log_comes_through_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def given(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    given(b"\xff\xfe garbage \x00\n")
    assert run("--kernel-log", "-", capsys=capsys)[0] == 0
    given(b"[ 1.0] usb 1-1: new high-speed USB device\n")
    code, out, _ = run("--kernel-log", "-", capsys=capsys)
    assert (code, out) == (0, "0 failures, 0 warnings, 0 informative\n")
    given(b"\n")
    assert "standard input is empty" in refused("--kernel-log", "-", capsys=capsys)


def test_a_container_is_named_below_the_title(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = a_machine("pod").with_gpu("rtx4090").with_file("/.dockerenv", "")
    path = machine.write_archive(str(tmp_path / "pod.tar.gz"))
    _, out, _ = run("--machine", path, "--level", "quick", capsys=capsys)
    assert out.splitlines()[1] == "judged from inside a container (docker)"


def test_a_replayed_machine_is_judged_at_level_transfer_and_nothing_is_copied(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run("--machine", "demo", "--level", "transfer", capsys=capsys)
    assert (code, err) == (0, "")
    assert "gates of level transfer" in out
    assert "Nothing was copied: a replayed machine has no devices." in out
