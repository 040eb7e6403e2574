"""A device that vanishes while tests run: it is taken out, the test that it was lost in says so, the rest goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.testing.builder import a_machine
from tests.session.test_gates import FIRST_NVIDIA_FAILS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Session = Callable[..., pytest.RunResult]

BOTH_WAYS = pytest.mark.parametrize("way", [(), ("-n2",)], ids=["serial", "xdist"])

# A machine whose files lie in a folder, as this computer's lie in `/`: what a test does to them is seen at once.
LIVE = """
    import os
    from dataclasses import replace

    import pytest_gpucoexist.session.discovery as discovery
    import pytest_gpucoexist.session.gating as gating
    import pytest_gpucoexist.session.presence as presence
    from pytest_gpucoexist.host import open_recording
    from pytest_gpucoexist.probes import discover

    ROOT = os.environ["BENCH"]


    class Live:
        simulated = False

        def exists(self, path):
            return os.path.exists(ROOT + path)

        def read_bytes(self, path, limit=65536):
            with open(ROOT + path, "rb") as file:
                return file.read(limit)

        def read_text(self, path, limit=65536):
            return self.read_bytes(path, limit).decode().strip()

        def read_link(self, path):
            return os.readlink(ROOT + path)

        def resolve(self, path):
            return os.path.realpath(ROOT + path).removeprefix(os.path.realpath(ROOT))


    def discover_machine(config, options, ask):
        return replace(discover(open_recording(ROOT)), simulated=False, asked=tuple(ask))


    BEFORE = discovery.discover_machine, gating.session_host, presence.session_host
    discovery.discover_machine = discover_machine
    gating.session_host = lambda config, options: None
    presence.session_host = lambda config, options: Live()


    def pytest_unconfigure():
        # A session inside a test shares these modules with the session around it.
        discovery.discover_machine, gating.session_host, presence.session_host = BEFORE
"""

BREAK = """
    import os
    import pytest

    ROOT = os.environ["BENCH"]

    def break_it(gpu):
        path = f"{ROOT}/sys/bus/pci/devices/{gpu.pci_address}/config"
        assert os.path.exists(path)
        with open(path, "wb") as file:
            file.write(b"\\xff" * 256)
"""


@pytest.fixture
def bench(pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    machine = a_machine("bench").with_gpu("rtx4090").with_gpu("rtx4090").with_gpu("rx7900xtx")
    # Not below the suite: its links go in circles, and pytest follows them.
    monkeypatch.setenv("BENCH", machine.write_tree(str(tmp_path / "machine")))
    pytester.makeconftest(LIVE)
    return pytester.path


LATER = (
    BREAK
    + """
    @pytest.mark.cuda
    def test_it_breaks(each_gpu):
        if each_gpu.id == "nvidia1":
            break_it(each_gpu)
            raise OSError(5, "Input/output error")

    @pytest.mark.cuda
    def test_one(gpu):
        assert gpu.id == "nvidia0"

    @pytest.mark.cuda(count=2)
    def test_two(gpus): pass

    @pytest.mark.cuda
    def test_each(each_gpu): pass

    @pytest.mark.rocm
    def test_other_vendor(gpu): pass
"""
)


def test_the_test_says_so_and_later_ones_go_elsewhere_or_are_unfit(bench: Path, session: Session) -> None:
    (bench / "test_it.py").write_text("".join(line.removeprefix("    ") for line in LATER.splitlines(keepends=True)))
    result = session("--gpu-report=r.json", on=None)
    result.assert_outcomes(passed=4, failed=1, errors=2)
    words = (
        "pcie.config_space: nvidia1 (0000:02:00.0) does not answer on the bus any more although nvidia still holds it"
    )
    result.stdout.fnmatch_lines(["*Input/output error*", "*GPU coexistence*", words])
    result.stdout.fnmatch_lines(["*ERROR at setup of test_two*", f"needs 2 NVIDIA GPUs*({words})"])
    result.stdout.fnmatch_lines(["*ERROR at setup of test_each[[]nvidia1]*", f"*({words})"])
    result.stdout.fnmatch_lines([f"ERROR: nvidia1 (0000:02:00.0) was lost during the session. {words}"])
    report = json.loads((bench / "r.json").read_text())
    told = {test["nodeid"].partition("::")[2]: test for test in report["tests"]}
    assert {name for name, test in told.items() if test["gpu_outcome"] == "unfit"} == {
        "test_it_breaks[nvidia1]",
        "test_two",
        "test_each[nvidia1]",
    }
    assert told["test_it_breaks[nvidia1]"]["reason"] == words
    assert [gpu["id"] for gpu in report["machine"]["gpus"] if not gpu["fit"]] == ["nvidia1"]


def test_every_worker_hears_of_it(bench: Path, session: Session) -> None:
    source = BREAK + (
        """
    @pytest.mark.cuda
    def test_it_breaks(gpu):
        break_it(gpu)
        assert 0

    @pytest.mark.cuda
    @pytest.mark.parametrize("number", range(20))
    def test_after(gpu, number): pass

    @pytest.mark.cuda(count=2)
    @pytest.mark.parametrize("number", range(4))
    def test_two(gpus, number): pass
"""
    )
    (bench / "test_it.py").write_text("".join(line.removeprefix("    ") for line in source.splitlines(keepends=True)))
    result = session("-n2", "--gpu-report=r.json", on=None)
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] >= 1
    assert outcomes["failed"] + outcomes["passed"] + outcomes["errors"] == 25
    report = json.loads((bench / "r.json").read_text())
    (lost,) = [gpu for gpu in report["machine"]["gpus"] if not gpu["fit"]]
    after = [test for test in report["tests"] if "test_after" in test["nodeid"]]
    assert {test["outcome"] for test in after} == {"passed"}, "another card is there for each of them"
    two = [test for test in report["tests"] if "test_two" in test["nodeid"]]
    assert {test["gpu_outcome"] for test in two if test["outcome"] != "passed"} <= {"unfit"}
    assert sum(test["outcome"] != "passed" for test in two) >= 3, "those that began after it was lost"
    assert any(lost["pci_address"] in note for note in result.outlines if note.startswith("ERROR: "))


@pytest.mark.parametrize("option", ["--gpu-gates=off", "--gpu-gate-policy=warn"])
def test_whoever_wants_no_gates_gets_none(bench: Path, session: Session, option: str) -> None:
    (bench / "test_it.py").write_text("".join(line.removeprefix("    ") for line in LATER.splitlines(keepends=True)))
    result = session(option, on=None)
    result.assert_outcomes(passed=6, failed=1)
    result.stdout.no_fnmatch_line("*does not answer*")


def test_a_device_of_a_wider_fixture_is_named(bench: Path, session: Session) -> None:
    source = BREAK + (
        """
    @pytest.mark.cuda
    def test_it_breaks(module_gpu):
        break_it(module_gpu)
        assert 0

    @pytest.mark.cuda
    def test_same_device(module_gpu): pass
"""
    )
    (bench / "test_it.py").write_text("".join(line.removeprefix("    ") for line in source.splitlines(keepends=True)))
    result = session(on=None)
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(["*uses module_gpu, whose 0000:0?:00.0 is unfit since an earlier test: pcie.config*"])


def test_a_promise_is_not_kept_by_a_card_that_is_unfit(
    pytester: pytest.Pytester, bench: Path, session: Session
) -> None:
    """Every test passes on the other card, and the runner has less than it promised."""
    pytester.makeconftest(LIVE.replace("options: None", "options: open_recording(ROOT)") + FIRST_NVIDIA_FAILS)
    pytester.makepyfile(test_it="import pytest\n@pytest.mark.cuda\ndef test_it(gpu): assert gpu.id == 'nvidia1'")
    result = session(on=None)
    result.assert_outcomes(passed=1)
    result = session("--gpu-require=cuda:1", on=None)
    result.assert_outcomes(passed=1)
    result = session("--gpu-require=cuda:2", on=None)
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["cuda:2 is promised: needs 2 NVIDIA GPUs with CUDA; found *(suite.first: *"])
