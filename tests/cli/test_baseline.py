"""`gpucoexist baseline` as a person uses it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["baseline", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")


@pytest.fixture
def saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    path = str(tmp_path / "demo.json")
    code, out, err = run(capsys, "save", path, "--machine", "demo")
    assert (code, out, err) == (0, f"{path}: 5 GPUs saved\n", "")
    return path


def test_show_draws_what_was_saved(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", saved)
    assert code == 0
    assert out.startswith(f"{saved}, saved 2026-01-01 00:00 UTC\n")
    assert "16 GT/s x16" in out
    assert "nvidia 570.133.07" in out
    code, out, _ = run(capsys, "show", saved, "--json")
    assert next(gpu["key"] for gpu in json.loads(out)["gpus"]) == "0000:03:00.0"


def test_diff_of_the_same_machine(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ((), ("--no-vendor",)):
        code, out, _ = run(capsys, "diff", saved, "--machine", "demo", *more)
        assert code == 0
        assert out.endswith("  nothing has changed\n")


def test_diff_of_another_machine(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pytest_gpucoexist.testing.builder import a_machine

    other = a_machine().with_gpu("rtx4090").write_tree(str(tmp_path / "tree"))
    code, out, _ = run(capsys, "diff", saved, "--machine", other)
    assert code == 1
    assert "  missing: 0000:83:00.0 (Radeon RX 7900 XTX) is missing\n" in out
    code, out, _ = run(capsys, "diff", saved, "--machine", other, "--json")
    assert code == 1
    assert {each["kind"] for each in json.loads(out)["differences"]} >= {"missing"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("save", "--machine", "demo"), "needs a name"),
        (("diff", "--machine", "demo"), "no baseline was saved on this machine"),
        (("diff", "nowhere.json", "--machine", "demo"), "cannot read the baseline nowhere.json"),
        (("show", "nowhere.json"), "No such file"),
        (("save", "--machine", "results.json"), "it holds results"),
        (("undo",), "invalid choice"),
        ((), "required"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("gpucoexist: ")
    assert words in err
    assert err.count("\n") == 1


def test_a_damaged_file_says_what_to_do(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open(saved, "a", encoding="utf-8") as file:
        file.write("}")
    code, _, err = run(capsys, "show", saved)
    assert code == 2
    assert "it is no JSON" in err
