"""`--gpu-workers` with real xdist workers: what their environment is before anything is imported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.machines import AMD0, NVIDIA0, NVIDIA1
from tests.fixtures.running import Suite, loaded, needs_xdist

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_xdist

# What a conftest sees while it is imported, which is before pytest is set up, and each test later.
RECORDER = """
import json
import os
import pytest
from pytest_gpucoexist import current_gpu, current_gpus
from pytest_gpucoexist.errors import GpuCoexistError

NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
DEVICE = current_gpu()
SEEN = {name: os.environ.get(name) for name in NAMES}
HOME = os.environ.get("PYTEST_GPU_HOME")
HOMES = ",".join(gpu.key for gpu in current_gpus())

with open(os.path.join(os.path.dirname(__file__), "started"), "a") as file:
    # Not PYTEST_XDIST_WORKER: a controller that the test of a worker starts has that one's.
    file.write(f"{os.environ.get('PYTEST_GPU_HOME') and os.environ['PYTEST_XDIST_WORKER']} {HOME}\\n")

@pytest.fixture(autouse=True)
def record(request):
    try:
        held = [gpu.key for gpu in current_gpus()]
    except GpuCoexistError:
        held = []
    yield
    entry = {
        "test": request.node.name, "worker": os.environ.get("PYTEST_XDIST_WORKER"), "home": HOME, "import": SEEN,
        "now": {name: os.environ.get(name) for name in NAMES}, "device": DEVICE.key, "homes": HOMES, "held": held,
    }
    with open(os.path.join(os.path.dirname(__file__), "seen"), "a") as file:
        file.write(json.dumps(entry) + "\\n")
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, unmasked: None) -> Suite:
    return Suite(pytester, conftest=RECORDER)


def with_specs(suite: Suite, spec: str, *args: str) -> pytest.RunResult:
    common = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-ra", "--gpu-machine=machine.json"]
    return suite.pytester.runpytest_subprocess(*loaded(), *common, "--dist=load", f"--tx={spec}", *args)


def seen(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "seen").read_text().splitlines()]


MANY = """
    import os, signal, time
    import pytest
    from conftest import DEVICE
    from pytest_gpucoexist import current_gpu
    from pytest_gpucoexist.errors import GpuCoexistError

    HERE = current_gpu()

    @pytest.mark.parametrize("n", range(6))
    def test_one(cuda_gpu, gpus, n):
        time.sleep(0.05)  # so that each worker gets some
        assert cuda_gpu.key == DEVICE.key == HERE.key == current_gpu().key

    def test_both(gpu_pair, gpus):
        assert [gpu.key for gpu in gpu_pair] == os.environ["PYTEST_GPU_HOME"].split(",")[:2]

    def test_each(each_gpu, gpus):
        assert current_gpu().key == each_gpu.key

    @pytest.mark.cuda(count=2)
    def test_two(gpus):
        assert [gpu.key for gpu in gpus][0] == DEVICE.key

    def test_cpu():
        with pytest.raises(GpuCoexistError, match="no GPU is leased here"):
            current_gpu()
    """

CRASH = """
    def test_crash(cuda_gpu):
        os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.parametrize("n", range(8))
    def test_after(cuda_gpu, gpus, n):
        assert cuda_gpu.key == DEVICE.key
        for _ in range(600):  # until the replacement has started
            with open(os.path.join(os.path.dirname(__file__), "started")) as file:
                if "gw2" in file.read():
                    break
            time.sleep(0.05)
    """


def test_narrow(suite: Suite) -> None:
    """Each sees its home alone; what needs more is masked there, with what to do; a replacement has the same home."""
    suite.pytester.makepyfile(MANY + CRASH)
    result = suite.run("--gpu-workers=narrow", workers=2)
    counts = result.parseoutcomes()
    assert counts["failed"] == 1  # the test that crashed
    result.stdout.fnmatch_lines(
        [
            "*--gpu-workers=narrow, homes: gw0 nvidia0 amd0 intel0; gw1 nvidia1 amd0 intel0*",
            "*masked*needs 2 NVIDIA GPUs*hidden by CUDA_VISIBLE_DEVICES=?*",
        ]
    )
    assert "--gpu-workers=rotate shows all devices, and --gpu-dist=auto runs the test" in result.stdout.str()
    entries = seen(suite.pytester.path)
    started = (suite.pytester.path / "started").read_text().splitlines()
    homes = {worker: home.split(",")[0] for worker, home in (line.split() for line in started)}
    assert homes.keys() == {"None", "gw0", "gw1", "gw2"}  # None: the controller, which imports the conftest too
    assert homes["gw0"] == NVIDIA0
    assert homes["gw1"] == NVIDIA1
    (crashed,) = re.findall(r"replacing crashed worker (\w+)", result.stdout.str())
    assert homes["gw2"] == homes[crashed]
    for entry in entries:
        first = entry["home"].split(",")[0]
        assert entry["import"] == entry["now"]
        assert entry["import"]["CUDA_VISIBLE_DEVICES"] == ("0" if first == NVIDIA0 else "1")
        assert entry["import"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert entry["import"]["HIP_VISIBLE_DEVICES"] == "0"
        assert entry["import"]["ZE_AFFINITY_MASK"] == "0"
        assert entry["device"] == first
        assert entry["homes"] == entry["home"]
        assert set(entry["held"]) <= set(entry["home"].split(","))
    # Each test once, or skipped: the collections were the same on both.
    ran = [entry["test"] for entry in entries]
    assert len(ran) == len(set(ran))
    assert {"test_both", "test_cpu"} <= set(ran)
    assert "test_two" not in ran


def test_rotate(suite: Suite) -> None:
    """All are seen, the home first; tests of more than one device run."""
    suite.pytester.makepyfile(MANY)
    suite.run("--gpu-workers=rotate", "--gpu-mask-style=uuid", workers=3).assert_outcomes(passed=13)
    entries = seen(suite.pytester.path)
    assert len({entry["worker"] for entry in entries}) == 3
    for entry in entries:
        mask = entry["import"]["CUDA_VISIBLE_DEVICES"].split(",")
        first = entry["home"].split(",")[0]
        assert [uuid[-2:] for uuid in mask] == (["41", "42"] if first == NVIDIA0 else ["42", "41"])
        if entry["test"].startswith("test_one"):
            assert entry["held"] == [first]
        if entry["test"] == "test_two":
            assert entry["held"] == [first, NVIDIA1 if first == NVIDIA0 else NVIDIA0]


def test_a_spec_says_otherwise(suite: Suite) -> None:
    """`env:` of --tx wins, with a note; the home is what it leaves, and the other vendors are as ever."""
    suite.pytester.makepyfile(MANY.replace("range(6)", "range(2)"))
    result = with_specs(suite, "popen//id=mine//env:CUDA_VISIBLE_DEVICES=1", "--gpu-workers=narrow")
    result.stdout.fnmatch_lines(
        ["*homes: mine nvidia1 amd0 intel0", "*mine: env:CUDA_VISIBLE_DEVICES=1 of its --tx stays as it is*"]
    )
    entries = seen(suite.pytester.path)
    assert {entry["worker"] for entry in entries} == {"mine"}
    for entry in entries:
        assert entry["home"].split(",")[:2] == [NVIDIA1, AMD0]
        assert entry["import"]["CUDA_VISIBLE_DEVICES"] == "1"
        assert entry["import"]["HIP_VISIBLE_DEVICES"] == "0"


def test_off_leaves_the_environment_alone(suite: Suite) -> None:
    suite = Suite(suite.pytester)
    suite.pytester.makepyfile(
        """
        import os

        def test_environment():
            names = ("PYTEST_GPU_HOME", "PYTEST_GPU_HOME_DETAILS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
            assert not [name for name in names if name in os.environ]
        """
    )
    suite.run(workers=1).assert_outcomes(passed=1)
    assert suite.discoveries == 0


def test_serially_all_devices_are_the_home(suite: Suite) -> None:
    """The same conftest works without workers; the environment is the caller's."""
    suite.pytester.makepyfile(
        """
        import os
        import pytest
        from conftest import DEVICE, HOMES
        from pytest_gpucoexist import current_gpu
        from pytest_gpucoexist.errors import GpuCoexistError

        HERE = current_gpu()

        def test_gpu(cuda_gpu):
            assert DEVICE.key == HERE.key == "0000:41:00.0"
            assert HOMES == "0000:41:00.0,0000:42:00.0,0000:c1:00.0,0000:c4:00.0"
            assert "CUDA_VISIBLE_DEVICES" not in os.environ

        def test_cpu():
            with pytest.raises(GpuCoexistError, match="no GPU is leased here"):
                current_gpu()
        """
    )
    suite.run("--gpu-workers=narrow").assert_outcomes(passed=2)


def test_a_child_of_a_test_finds_the_home_and_the_callers_masks(suite: Suite) -> None:
    suite.pytester.makepyfile(
        """
        import os, subprocess, sys
        from conftest import DEVICE
        from pytest_gpucoexist import caller_environ

        CODE = "import pytest_gpucoexist as p, os; print(p.current_gpu().key, os.environ.get('CUDA_VISIBLE_DEVICES'))"

        def test_child():
            said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
            assert said.split() == [DEVICE.key, "0,1"]

        def test_the_way_back():
            environ = caller_environ()
            ours = {"PYTEST_GPU_HOME", "PYTEST_GPU_HOME_DETAILS", "HIP_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
            assert environ.keys().isdisjoint(ours)
            assert set(os.environ) - set(environ) >= ours
            assert environ["PATH"] == os.environ["PATH"]
        """
    )
    suite.run("--gpu-workers=narrow", workers=1).assert_outcomes(passed=2)


def test_gates_end_the_run_before_a_worker_starts(suite: Suite) -> None:
    suite.pytester.makeconftest(
        """
        from pytest_gpucoexist.gates import failed, gate

        @gate("suite.rule", group="driver", title="a rule", reads="nothing", criterion="none", why="to see",
              action="mend it", source="this suite", severity="fail", blocking=True)
        def rule(subject):
            yield failed("smells of smoke", on=subject.gpus())

        def pytest_gpucoexist_gates(config):
            return [rule]
        """
    )
    suite.pytester.makepyfile("def test_one(): pass")
    result = suite.pytester.runpytest_subprocess(
        *loaded(), "-n1", "--gpu-machine=demo", "--gpu-workers=narrow", "--gpu-gate-policy=stop", "--gpu-simulate"
    )
    assert result.ret == 75
    result.stdout.fnmatch_lines(["*--gpu-gate-policy=stop: the machine is unfit: suite.rule: smells of smoke*"])


def test_another_host_is_surveyed_in_a_process_of_its_own(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """It judges, too: an unfit device is nobody's home there."""
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.placement.homes import usable_devices
    from pytest_gpucoexist.session.there import survey
    from pytest_gpucoexist.testing import a_machine

    path = str(suite.pytester.path / "there.tar.gz")
    machine = a_machine(name="there").with_gpu("rtx4090").with_gpu("rtx4090").with_wrong_driver("nvidia1", "nouveau")
    machine.write_archive(path)
    found = survey("quick", "quarantine", 5.0, path)
    usable = usable_devices(Machine.from_json(found["machine"]))
    assert {vendor: [gpu.id for gpu in gpus] for vendor, gpus in usable.items()} == {"nvidia": ["nvidia0"]}
    assert isinstance(found["environ"], dict)
    monkeypatch.setenv("PYTEST_GPU_MACHINE", "absent.tar.gz")
    asked = json.dumps({"level": "quick", "policy": "quarantine", "deadline_s": 5.0})
    done = subprocess.run(
        [sys.executable, "-m", "pytest_gpucoexist.session.there"],
        input=asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("RecordingError: ")


def test_within_the_callers_masks(suite: Suite) -> None:
    """Of three cards the caller shows two, by UUID: homes are among them, and are written as he wrote."""
    from pytest_gpucoexist.probes import discover
    from pytest_gpucoexist.testing import a_machine

    cards = a_machine(name="masked").with_gpu("rtx4090").with_gpu("rtx4090").with_gpu("rtx4090")
    first, second, third = (str(gpu.uuid) for gpu in discover(cards.host(), ask=("nvidia",)).gpus)
    cards.with_environ(CUDA_VISIBLE_DEVICES=f"{third},{second}").write_archive(str(suite.pytester.path / "it.tar.gz"))
    suite.pytester.makeconftest(RECORDER)
    suite.pytester.makepyfile(
        """
        import time
        import pytest

        @pytest.mark.parametrize("n", range(8))
        def test_one(cuda_gpu, n):
            time.sleep(0.05)

        def test_each(each_gpu): pass
        """
    )
    result = suite.pytester.runpytest_subprocess(
        *loaded(), "-n2", "--gpu-machine=it.tar.gz", "--gpu-simulate", "--gpu-workers=rotate", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=10)
    masks = {entry["import"]["CUDA_VISIBLE_DEVICES"] for entry in seen(suite.pytester.path)}
    assert masks == {f"{second},{third}", f"{third},{second}"}
    assert first not in "".join(masks)
