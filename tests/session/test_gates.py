"""Gates in a session: once, before the first GPU test; what is unfit is not used, and what only it could do fails."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine

if TYPE_CHECKING:
    from collections.abc import Callable

    Session = Callable[..., pytest.RunResult]

BOTH_WAYS = pytest.mark.parametrize("way", [(), ("-n2",)], ids=["serial", "xdist"])

SUITE = """
    import pytest

    @pytest.mark.cuda
    @pytest.mark.parametrize("number", range(3))
    def test_cuda(cuda_gpu, number): print("ON", cuda_gpu.id)

    @pytest.mark.cuda(count=2)
    def test_two(gpus): pass

    @pytest.mark.rocm
    def test_rocm(rocm_gpu): pass

    def test_plain(): pass
"""

JUDGE = """
    from pytest_gpucoexist.gates import Gate, failed, gate, passed, warned
    from pytest_gpucoexist.model.verdicts import Evidence, Fix

    WORDS = dict(group="driver", title="a gate of this suite", reads="nothing", criterion="all is well",
                 why="to see", action="mend it", source="this suite")
"""

FIRST_NVIDIA_FAILS = (
    JUDGE
    + """
    @gate("suite.first", severity="fail", blocking=True, vendors=("nvidia",), **WORDS)
    def first(subject):
        first, *others = subject.gpus("nvidia")
        yield failed("the first card smells of smoke", Evidence(source="nose", found="smoke"), on=[first])
        yield passed("the others do not", on=others)

    def pytest_gpucoexist_gates(config):
        with open("asked.txt", "a") as file:
            file.write("asked")
        return [first]
"""
)


def two_and_one() -> MachineBuilder:
    return a_machine("bench").with_gpu("rtx4090").with_gpu("rtx4090").with_gpu("rx7900xtx")


@pytest.fixture
def bench(pytester: pytest.Pytester) -> str:
    pytester.makepyfile(test_it=SUITE)
    return two_and_one().write_archive(str(pytester.path / "bench.tar.gz"))


def on(machine: str) -> tuple[str, ...]:
    return (f"--gpu-machine={machine}", "--gpu-simulate")


@BOTH_WAYS
def test_all_is_well_in_one_line(session: Session, bench: str, way: tuple[str, ...]) -> None:
    result = session(*on(bench), *way, on=None)
    result.assert_outcomes(passed=6)
    (line,) = [line for line in result.outlines if "gates:" in line]
    assert "passed" in line
    assert "failed" not in line
    assert line.endswith(" s")


@BOTH_WAYS
def test_an_unfit_device_is_not_used_and_what_only_it_could_do_fails(
    pytester: pytest.Pytester, session: Session, bench: str, way: tuple[str, ...]
) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    result = session(*on(bench), *way, "-rP", on=None)
    result.assert_outcomes(passed=5, errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("*ON nvidia0*")
    for line in (
        "*FAIL *suite.first*nvidia0*blocks*",
        "* the first card smells of smoke*",
        "*nose: smoke*",
        "*mend it*",
    ):
        result.stdout.fnmatch_lines([line])
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_two*",
            "needs 2 NVIDIA GPUs with CUDA; found *(suite.first: the first card smells of smoke)*",
            "1 test (unfit): needs 2 NVIDIA GPUs*",
        ]
    )
    assert (pytester.path / "asked.txt").read_text() == "asked", "once, whatever the number of workers"


@BOTH_WAYS
def test_a_run_for_each_device_keeps_the_unfit_one(
    pytester: pytest.Pytester, session: Session, bench: str, way: tuple[str, ...]
) -> None:
    """Left out of the list, it would be a test fewer, and green."""
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    pytester.makepyfile(test_it="def test_it(each_gpu): pass")
    result = session(*on(bench), *way, "-rA", on=None)
    result.assert_outcomes(passed=2, errors=1)
    for line in ("ERROR *test_it[[]nvidia0] *", "PASSED *test_it[[]nvidia1]*", "PASSED *test_it[[]amd0]*"):
        result.stdout.fnmatch_lines([line])


@BOTH_WAYS
def test_gates_of_a_device_that_a_running_test_asks_for_are_heard(
    pytester: pytest.Pytester, session: Session, bench: str, way: tuple[str, ...]
) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    pytester.makepyfile(
        test_it="""
        def test_before(gpu_machine): print([gpu.fit for gpu in gpu_machine.gpus])
        def test_late(request): print("ON", request.getfixturevalue("cuda_gpu").id)
        """
    )
    result = session(*on(bench), *way, "-rP", on=None)
    result.assert_outcomes(passed=2)
    if not way:  # there the other worker may have asked first
        result.stdout.fnmatch_lines(["[[]True, True, True]"])
    result.stdout.fnmatch_lines(["ON nvidia1"])
    result.stdout.fnmatch_lines(["*FAIL *suite.first*nvidia0*", "*the first card smells of smoke*"])


@pytest.mark.parametrize("way", [(), ("-n1",)], ids=["serial", "xdist"])
def test_the_machine_that_a_test_sees_has_been_judged(
    pytester: pytest.Pytester, session: Session, bench: str, way: tuple[str, ...]
) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    pytester.makepyfile(
        test_it="""
        def fit(machine): return [gpu.id for gpu in machine.gpus if gpu.fit]
        def test_before(gpu_machine): assert fit(gpu_machine) == ["nvidia1", "amd0"]
        def test_gpu(gpu): pass
        def test_after(gpu_machine): assert fit(gpu_machine) == ["nvidia1", "amd0"]
        """
    )
    session(*on(bench), *way, on=None).assert_outcomes(passed=3)


def test_no_gate_is_asked_without_a_gpu_test(pytester: pytest.Pytester, session: Session, bench: str) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    session(*on(bench), "-k", "plain", on=None).assert_outcomes(passed=1, deselected=5)
    assert not (pytester.path / "asked.txt").exists()


def test_a_single_unfit_gpu_never_ends_green(pytester: pytest.Pytester, session: Session) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    pytester.makepyfile(test_it="import pytest\n@pytest.mark.cuda\ndef test_it(gpu): pass")
    machine = a_machine().with_gpu("rtx4090").write_archive(str(pytester.path / "one.tar.gz"))
    result = session(*on(machine), on=None)
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_off_asks_nothing(pytester: pytest.Pytester, session: Session, bench: str) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    result = session(*on(bench), "--gpu-gates=off", on=None)
    result.assert_outcomes(passed=6)
    result.stdout.no_fnmatch_line("*gates: *")
    assert not (pytester.path / "asked.txt").exists()


@BOTH_WAYS
def test_warn_only_says_so(pytester: pytest.Pytester, session: Session, bench: str, way: tuple[str, ...]) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    result = session(*on(bench), *way, "--gpu-gate-policy=warn", on=None)
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*used all the same*", "*FAIL *suite.first*"])


def test_stop_ends_the_run_before_the_first_test(pytester: pytest.Pytester, session: Session, bench: str) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    result = session(*on(bench), "--gpu-gate-policy=stop", "--junitxml=j.xml", on=None)
    assert result.ret == 75
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the machine is unfit: suite.first: the first card smells of smoke*"])
    (case,) = ET.parse(pytester.path / "j.xml").iter("testcase")
    assert case.find("error") is not None


def test_stop_ends_a_distributed_run(pytester: pytest.Pytester, session: Session, bench: str) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    pytester.makepyfile(
        test_it="import pytest\n@pytest.mark.cuda\n@pytest.mark.parametrize('n', range(40))\ndef test_it(gpu, n): pass"
    )
    result = session(*on(bench), "-n2", "--gpu-gate-policy=stop", "--junitxml=j.xml", "--gpu-report=r.json", on=None)
    assert result.ret == 75
    assert json.loads((pytester.path / "r.json").read_text())["exit_status"] == 75
    result.stdout.fnmatch_lines(["*the machine is unfit: suite.first: the first card smells of smoke*"])
    assert "passed" not in result.parseoutcomes()
    cases = list(ET.parse(pytester.path / "j.xml").iter("testcase"))
    assert any("gpu-gate-policy" in str(case.get("classname")) + str(case.get("name")) for case in cases)
    assert len(cases) <= 3, "what a worker was given already does not run: one test of each that asked, and the words"


@pytest.mark.parametrize("way", [(), ("-n1",)], ids=["serial", "xdist"])
def test_stop_ends_a_run_in_which_a_running_test_asks(
    pytester: pytest.Pytester, session: Session, bench: str, way: tuple[str, ...]
) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    pytester.makepyfile(
        test_it="""
        def test_late(request): request.getfixturevalue("cuda_gpu")
        def test_never(): pass
        """
    )
    result = session(*on(bench), *way, "--gpu-gate-policy=stop", "--junitxml=j.xml", on=None)
    assert result.ret == 75
    assert "passed" not in result.parseoutcomes()
    names = [case.get("name") for case in ET.parse(pytester.path / "j.xml").iter("testcase")]
    assert names == ["test_late", "--gpu-gate-policy=stop"]


def test_an_ignored_gate_is_shown_with_its_reason_and_counts_for_nothing(
    pytester: pytest.Pytester, session: Session, bench: str
) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    pytester.makeini("[pytest]\ngpu_gates_ignore = suite.*: a new carpet")
    result = session(*on(bench), on=None)
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*1 ignored*", "*FAIL *suite.first: ignored (a new carpet): the first card smells*"])
    result.stdout.no_fnmatch_line("*no gate matches*")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gpu_gates_ignore = pcie.width", "*'pcie.width' is not GATE: REASON*"),
        ("gpu_gates_ignore = pcie.width:", "*is not GATE: REASON*"),
        ("gpu_gate_limits = nonsense", "*'nonsense' is not GATE.LIMIT = NUMBER*"),
        ("gpu_gate_limits = dev.nofile.base = many", "*is not GATE.LIMIT = NUMBER*"),
        ("gpu_gate_limits = no.such.gate = 4", "*there is no gate 'no.such'*"),
        (
            "gpu_gate_limits = dev.nofile.maximum = 4",
            "*dev.nofile has no limit 'maximum'; it has: base, per_further_gpu*",
        ),
        ("gpu_gate_unknown = maybe", "*'maybe' is not one of warn, fail*"),
    ],
)
def test_ini_keys_that_mean_nothing_are_refused(
    pytester: pytest.Pytester, session: Session, bench: str, line: str, said: str
) -> None:
    pytester.makeini(f"[pytest]\n{line}")
    result = session(*on(bench), on=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])


def test_a_distributed_run_refuses_them_before_it_starts(
    pytester: pytest.Pytester, session: Session, bench: str
) -> None:
    pytester.makeini("[pytest]\ngpu_gates_ignore = pcie.width")
    result = session(*on(bench), "-n2", on=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *'pcie.width' is not GATE: REASON*"])


def test_a_distributed_run_fails_every_gpu_test_when_it_cannot_be_judged(
    pytester: pytest.Pytester, session: Session, bench: str
) -> None:
    """Only the controller knows, and it does so late: the second worker must not run on what nobody judged."""
    pytester.makeini("[pytest]\ngpu_gate_limits = no.such.gate = 4")
    result = session(*on(bench), "-n2", on=None)
    result.assert_outcomes(passed=1, errors=5)
    result.stdout.fnmatch_lines(["gpu_gate_limits: there is no gate 'no.such'*"])


def test_ini_keys_are_read_from_toml_too(pytester: pytest.Pytester, session: Session, bench: str) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    pytester.makepyprojecttoml(
        """
        [tool.pytest.ini_options]
        gpu_gates_ignore = ["suite.*: a new carpet, not smoke: really", "pcie.*: a riser"]
        gpu_gate_unknown = "warn"
        """
    )
    result = session(*on(bench), on=None)
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*suite.first: ignored (a new carpet, not smoke: really): *"])


@pytest.mark.parametrize(
    ("option", "good"),
    [("--gpu-gates=deep", "quick, off, standard"), ("--gpu-gate-policy=panic", "quarantine, stop, warn")],
)
def test_options_that_mean_nothing_are_refused(session: Session, bench: str, option: str, good: str) -> None:
    result = session(*on(bench), option, on=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*is not one of {good}*"])


def test_a_pattern_that_matches_nothing_is_said(pytester: pytest.Pytester, session: Session, bench: str) -> None:
    pytester.makeini("[pytest]\ngpu_gates_ignore = pcie.widht: a riser")
    result = session(*on(bench), on=None)
    result.stdout.fnmatch_lines(["gpu_gates_ignore: no gate matches 'pcie.widht'*"])


def test_limits_reach_the_gate(pytester: pytest.Pytester, session: Session, bench: str) -> None:
    pytester.makeconftest(
        JUDGE
        + """
    @gate("suite.limit", limits={"most": 5.0}, **WORDS)
    def limit(subject):
        yield warned(f"the limit is {subject.limit('suite.limit', 'most', 5.0):g}")

    def pytest_gpucoexist_gates(config):
        return [limit]
"""
    )
    pytester.makeini("[pytest]\ngpu_gate_limits = suite.limit.most = 7")
    session(*on(bench), "-v", on=None).stdout.fnmatch_lines(["*the limit is 7*"])


UNREADABLE = (
    JUDGE
    + """
    from pytest_gpucoexist.gates import unknown

    @gate("suite.blind", severity="fail", blocking=True, **WORDS)
    def blind(subject):
        yield unknown("too dark to see", on=subject.gpus("nvidia"))

    def pytest_gpucoexist_gates(config):
        return [blind]
"""
)


def test_gates_that_a_distributed_run_does_not_hear_are_named(
    pytester: pytest.Pytester, session: Session, bench: str
) -> None:
    """The controller judges, and knows no conftest below the folders that it was given."""
    folder = pytester.mkdir("below") / "deep"
    folder.mkdir()
    (folder / "conftest.py").write_text(textwrap.dedent(FIRST_NVIDIA_FAILS))
    (folder / "test_deep.py").write_text("def test_deep(cuda_gpu): pass")
    result = session(*on(bench), "-n1", "below", on=None)
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*pytest_gpucoexist_gates in *deep*conftest.py was not asked: under pytest-xdist*"])
    session(*on(bench), "below", on=None).assert_outcomes(passed=1)


def test_unknown_is_no_pass_and_fails_where_asked(pytester: pytest.Pytester, session: Session, bench: str) -> None:
    pytester.makeconftest(UNREADABLE)
    result = session(*on(bench), on=None)
    result.assert_outcomes(passed=6)
    pytester.makeini("[pytest]\ngpu_gate_unknown = fail")
    result = session(*on(bench), on=None)
    result.stdout.fnmatch_lines(["*FAIL *suite.blind*", "*too dark to see*"])
    assert result.parseoutcomes()["errors"] >= 4


def test_a_gate_that_breaks_does_not_break_the_run(pytester: pytest.Pytester, session: Session, bench: str) -> None:
    pytester.makeconftest(
        JUDGE
        + """
    @gate("suite.broken", severity="fail", blocking=True, **WORDS)
    def broken(subject):
        yield passed("so far")
        raise KeyError("a typing error")

    @gate("suite.silent", **WORDS)
    def silent(subject):
        return ()

    @gate("suite.odd", **WORDS)
    def odd(subject):
        yield "fine"

    def pytest_gpucoexist_gates(config):
        return [broken, silent, odd]
"""
    )
    result = session(*on(bench), on=None)
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*3 broken gates*", "*ERROR *suite.broken*", "*KeyError: 'a typing error'*"])
    result.stdout.fnmatch_lines(["*ERROR *suite.silent*", "*said nothing*"])
    result.stdout.fnmatch_lines(["*ERROR *suite.odd*", "*'fine', which is no Finding*"])


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("return ['no gate']", "*returned 'no gate': return a list of Gate*"),
        ("return [first, first]", "*there is a gate suite.first already*"),
        ("return first", "*pytest_gpucoexist_gates in * failed: TypeError: 'Gate' object is not iterable*"),
        ("return 1 / 0", "*pytest_gpucoexist_gates in * failed: ZeroDivisionError: division by zero*"),
    ],
)
def test_hooks_that_give_something_else_are_refused(
    pytester: pytest.Pytester, session: Session, bench: str, hook: str, said: str
) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS.replace("return [first]", hook))
    result = session(*on(bench), on=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])


DIRTY = (
    JUDGE
    + r"""
    @gate("suite.dirty", severity="fail", blocking=True, vendors=("nvidia",), **WORDS)
    def dirty(subject):
        text = "\x1b[31mred \x00 \udcff </script> | & \u2620 " + "x" * 50_000
        evidence = [Evidence(source=text, found=text, expected=text)] * 100
        yield failed(text, *evidence, on=subject.gpus("nvidia"), action=text, fix=[Fix(lines=(text,), path=text)])

    def pytest_gpucoexist_gates(config):
        return [dirty]
"""
)


@BOTH_WAYS
def test_what_gates_quote_breaks_no_report(
    pytester: pytest.Pytester, session: Session, bench: str, way: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    pytester.makeconftest(DIRTY)
    for suffix in ("json", "html", "md"):
        result = session(*on(bench), *way, f"--gpu-report=r.{suffix}", "--junitxml=j.xml", on=None)
        result.assert_outcomes(passed=2, errors=4)
        assert "\x1b" not in result.stdout.str()
        assert "\x1b" not in (pytester.path / f"r.{suffix}").read_text(encoding="utf-8")
        assert "</script>" not in (pytester.path / f"r.{suffix}").read_text(encoding="utf-8") or suffix == "json"
    assert len(list(ET.parse(pytester.path / "j.xml").iter("testcase"))) == 6
    assert len((pytester.path / "summary.md").read_text(encoding="utf-8")) < 60_000
    assert len(result.outlines) < 150


@BOTH_WAYS
def test_reports_have_the_judgement(
    pytester: pytest.Pytester, session: Session, bench: str, way: tuple[str, ...]
) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    session(*on(bench), *way, "--gpu-report=r.json", "--junitxml=j.xml", on=None)
    report = json.loads((pytester.path / "r.json").read_text())
    (verdict,) = [
        each for each in report["judgement"]["verdicts"] if each["id"] == "suite.first" and each["status"] == "FAIL"
    ]
    assert verdict["reason"] == "the first card smells of smoke"
    assert report["judgement"]["fit"] is False
    (key,) = report["judgement"]["unfit"]
    (gpu,) = [each for each in report["machine"]["gpus"] if not each["fit"]]
    assert gpu["id"] == "nvidia0"
    assert gpu["pci_address"] == key
    cases = {case.get("name"): case for case in ET.parse(pytester.path / "j.xml").iter("testcase")}
    properties = {(each.get("name"), each.get("value")) for each in cases["test_rocm"].iter("property")}
    assert ("gpu_gate_failed", "suite.first: the first card smells of smoke") in properties
    assert any(name == "gpu_gates" and "1 failed" in str(value) for name, value in properties)
    assert not list(cases["test_plain"].iter("property"))


def test_a_plan_shows_what_is_unfit(pytester: pytest.Pytester, session: Session, bench: str) -> None:
    pytester.makeconftest(FIRST_NVIDIA_FAILS)
    result = session(*on(bench)[:1], "--gpu-plan", "--gpu-gate-policy=stop", on=None)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["--gpu-gate-policy=stop would stop this run: *"])
    result.stdout.fnmatch_lines(["*test_two *unfit: needs 2 NVIDIA GPUs*", "*(suite.first: the first card*"])


def test_a_wrong_driver_under_installed_software_is_unfit(pytester: pytest.Pytester, session: Session) -> None:
    """A machine that was set up for CUDA and came up with nouveau: skipping would look like success."""
    pytester.makepyfile(test_it="import pytest\n@pytest.mark.cuda\ndef test_it(gpu): pass")
    machine = (
        a_machine()
        .with_gpu("rtx4090")
        .with_wrong_driver("nvidia0", "nouveau")
        .with_file("/usr/lib/x86_64-linux-gnu/libcuda.so.1", b"\x7fELF")
    )
    path = machine.write_archive(str(pytester.path / "nouveau.tar.gz"))
    result = session(*on(path), on=None)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*drv.bound_driver*nouveau*"])


def test_github_gets_annotations_and_a_summary(
    pytester: pytest.Pytester, session: Session, bench: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    pytester.makeconftest(FIRST_NVIDIA_FAILS.replace("of smoke", "of 100% smoke, badly"))
    result = session(*on(bench), on=None)
    assert (
        "::error title=GPU gate suite.first (nvidia0)::the first card smells of 100%25 smoke, badly%0Amend it"
        in result.outlines
    )
    summary = (pytester.path / "summary.md").read_text()
    assert "**Unfit: nvidia0**" in summary
    assert "| FAIL | `suite.first` | nvidia0 | the first card smells of 100% smoke, badly | mend it |" in summary


def test_a_summary_that_cannot_be_written_is_a_note(
    pytester: pytest.Pytester, session: Session, bench: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "nowhere" / "summary.md"))
    result = session(*on(bench), on=None)
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["GITHUB_STEP_SUMMARY: cannot write *: No such file or directory"])


@BOTH_WAYS
def test_a_library_that_hung_at_discovery_is_no_missing_card(
    pytester: pytest.Pytester, session: Session, way: tuple[str, ...]
) -> None:
    """A driver that hangs is broken. A session of level quick asks no library for its gates; discovery did."""
    pytester.makepyfile(test_it="import pytest\n@pytest.mark.cuda\ndef test_it(gpu): pass")
    machine = a_machine().with_gpu("rtx4090").hang("nvml").write_archive(str(pytester.path / "hung.tar.gz"))
    result = session(*on(machine), *way, on=None)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["needs 1 NVIDIA GPU with CUDA; found 0000:01:00.0 (drv.query_timeout: *no answer*)"])
    result.stdout.fnmatch_lines(["*FAIL *drv.query_timeout*"])
    result = session(*on(machine), *way, "--gpu-gates=off", on=None)
    result.assert_outcomes(skipped=1)
