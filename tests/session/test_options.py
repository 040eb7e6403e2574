"""Options: precedence, bad values, help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.session import discovery
from pytest_gpucoexist.session.options import read_options
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Callable

    Session = Callable[..., pytest.RunResult]


def test_command_line_then_environment_then_ini(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\ngpu_missing = fail\ngpu_simulate = yes\ngpu_machine = demo\ngpu_helper_deadline = 2.5")

    def options(*args: str) -> tuple[bool, bool]:
        read = read_options(pytester.parseconfig("-p", "gpucoexist", *args))
        return read.fail_missing, read.simulate

    assert options() == (True, True)
    monkeypatch.setenv("PYTEST_GPU_MISSING", "skip")
    monkeypatch.setenv("PYTEST_GPU_SIMULATE", "0")
    assert options() == (False, False)
    assert options("--gpu-missing=fail", "--gpu-simulate") == (True, True)


def test_defaults_and_values(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    read = read_options(pytester.parseconfig("-p", "gpucoexist"))
    assert (read.mask_style, read.helper_deadline_s, read.expect_skips, read.given) == ("auto", 5.0, None, {})
    assert not read.keeps_accounts
    monkeypatch.setenv("PYTEST_GPU_HELPER_DEADLINE", "0.5")
    read = read_options(
        pytester.parseconfig("-p", "gpucoexist", "--gpu-require=cuda:2,rocm,cuda", "--gpu-expect-skips=0")
    )
    assert read.promises == (("cuda", 2), ("rocm", 1))
    assert (read.expect_skips, read.helper_deadline_s) == (0, 0.5)
    assert list(read.given.items()) == [("require", "cuda:2,rocm,cuda"), ("expect-skips", "0")]
    assert read.keeps_accounts


@pytest.mark.parametrize(
    ("args", "ini", "complaint"),
    [
        (["--gpu-missing=maybe"], "", "--gpu-missing: 'maybe' is not one of skip, fail"),
        (["--gpu-mask-style=hex"], "", "--gpu-mask-style: 'hex' is not one of auto, index, uuid"),
        (["--gpu-require=cuda:0"], "", "--gpu-require: 'cuda:0' is not one of gpu, cuda, rocm, nvidia, amd, intel"),
        (["--gpu-require=cuda,,rocm"], "", "--gpu-require: '' is not one of gpu, cuda"),
        (["--gpu-report=out.txt"], "", "--gpu-report: 'out.txt' must end in one of .json, .html, .md"),
        (["--gpu-simulate"], "", "--gpu-simulate needs a replayed machine: add --gpu-machine=demo"),
        (["--gpu-machine=nowhere.tar.gz"], "", "'nowhere.tar.gz' is no recording here; good values are demo, a folder"),
        (["--gpu-expect-skips=nowhere.txt"], "", "give a number from 0 or a file of --gpu-write-skips"),
        (["--gpu-expect-skips=."], "", ": Is a directory; give a number from 0"),
        (["--gpu-machine=."], "", "no known layout"),
        (["--gpu-machine=tox.ini"], "", "; `gpucoexist record FILE` makes an archive that replays"),
        ([], "gpu_missing = perhaps", "gpu_missing: 'perhaps' is not one of skip, fail"),
        ([], "gpu_plan = maybe", "gpu_plan: 'maybe' is not one of true, false"),
        ([], "gpu_helper_deadline = soon", "gpu_helper_deadline: 'soon' is not a number of seconds"),
        ([], "gpu_helper_deadline = 0", "gpu_helper_deadline: '0' is not a number of seconds"),
    ],
)
def test_a_bad_value_is_a_usage_error_that_lists_the_good_ones(
    session: Session, pytester: pytest.Pytester, args: list[str], ini: str, complaint: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}")
    pytester.makepyfile("def test_it(): pass")
    result = session(*args, on=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert complaint in result.stderr.str()


def test_a_bad_value_in_the_environment_names_the_variable(
    session: Session, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_GPU_MISSING", "perhaps")
    pytester.makepyfile("def test_it(): pass")
    assert "PYTEST_GPU_MISSING: 'perhaps' is not one of skip, fail" in session(on=None).stderr.str()


@pytest.mark.parametrize("content", ["{}", "not json", '{"name": 3}'])
def test_a_file_that_is_no_machine_is_a_usage_error(session: Session, pytester: pytest.Pytester, content: str) -> None:
    (pytester.path / "m.json").write_text(content)
    pytester.makepyfile("def test_it(): pass")
    result = session("--gpu-machine=m.json", on=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "holds no machine as `gpucoexist show --json` prints" in result.stderr.str()


def test_a_folder_that_is_no_recording_is_a_usage_error(session: Session, pytester: pytest.Pytester) -> None:
    pytester.mkdir("empty")
    pytester.makepyfile("def test_it(): pass")
    result = session("--gpu-machine=empty", on=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "empty" in result.stderr.str()


def test_help_has_a_group_of_its_own(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "discover_machine", lambda *_: pytest.fail("discovered"))
    result = session("--help", "--gpu-require=cuda", on=None)
    result.stdout.fnmatch_lines(["GPU coexistence:", "*--gpu-require=LIST*"])
    text = result.stdout.str()
    for name in ("missing", "expect-skips", "write-skips", "machine", "simulate", "plan", "observe", "report"):
        assert f"--gpu-{name}" in text
        assert f"gpu_{name.replace('-', '_')}" in text
    assert session("--version", on=None).ret == 0


def test_loading_the_plugin_twice_does_no_harm(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    session("-p", "gpucoexist", on=None).assert_outcomes(passed=1)


def test_every_option_in_force_shows_itself(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpu_mask_style = uuid")
    pytester.makepyfile("def test_it(gpu): pass")
    result = session("--gpu-simulate", "--gpu-missing=fail")
    result.stdout.fnmatch_lines(
        [
            "gpucoexist: missing=fail, machine=*machine.json, simulate, mask-style=uuid",
            "gpucoexist: SIMULATED machine *",
            "GPUs of testbox (SIMULATED): 2 NVIDIA (nvidia0, nvidia1), 1 AMD (amd0)",
            "  a replayed machine: tests that need a GPU run on stand-ins in host memory",
            "  mask style: uuid",
            "  1 selected test needs a GPU",
        ]
    )


def test_a_session_without_gpu_tests_says_nothing(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = session(on=None)
    assert "gpucoexist:" not in result.stdout.str()
    assert "GPU" not in result.stdout.str()


def test_quiet_output_still_says_simulated(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(gpu): pass")
    result = session("-q", "--gpu-simulate")
    assert "SIMULATED machine: testbox" in result.outlines
    assert "needs a GPU" not in session("-q", on=machine(), real=True).outlines[0]


@pytest.mark.filterwarnings("ignore:Passing a value that is not a string")
def test_an_array_of_toml_is_a_list_of_promises(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\ngpu_require = ["cuda:2", "rocm"]')
    assert read_options(pytester.parseconfig("-p", "gpucoexist")).promises == (("cuda", 2), ("rocm", 1))
