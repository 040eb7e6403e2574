"""`gpu_process` in sessions: who may have one, what is reported, and that a breach fails the test."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("execnet", reason="needs execnet")

import pytest_gpucoexist.processes.isolation
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.machines import amd, dual, machine, nvidia
from tests.processes.conftest import children, descriptors
from tests.processes.test_isolation import CUDA_BINDINGS, install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_gpucoexist.model.machine import Machine
    from tests.fakes.machine import FakeMachine

FUNCTIONS = """
    import os, sys

    def mask():
        print("said by", os.getpid())
        return {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}

    def skip():
        import pytest
        pytest.skip("no torch there")

    def skip_of_unittest():
        import unittest
        raise unittest.SkipTest("no case there")

    def fail():
        import pytest
        pytest.fail("not like this")

    def boom():
        raise ValueError("on purpose")

    def change_mask():
        os.environ["HIP_VISIBLE_DEVICES"] = "0"

    def load(name):
        import ctypes
        ctypes.CDLL(name)

    def import_bindings():
        import cuda.bindings.driver

    def see(name):
        import ctypes
        library, count = ctypes.CDLL(name), ctypes.c_int()
        assert library.cuInit(0) == 0 and library.cuDeviceGetCount(ctypes.byref(count)) == 0
        return count.value

    def stop():
        import signal
        os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = children(), len(descriptors())
    yield
    assert (children(), len(descriptors())) == before


@pytest.fixture
def simulated(pytester: pytest.Pytester, session: Callable[..., pytest.RunResult]) -> Callable[..., pytest.RunResult]:
    """Run a test file on simulated devices of `dual`."""

    def run(source: str, *args: str) -> pytest.RunResult:
        pytester.makepyfile(functions=FUNCTIONS, test_it=f"import functions, pytest\n{source}")
        return session("--gpu-simulate", "--gpu-gates=off", "-rA", *args)

    return run


@pytest.fixture
def on_fakes(
    pytester: pytest.Pytester,
    session: Callable[..., pytest.RunResult],
    fake_gpus: FakeMachine,
    fake_cuda: dict[str, str],
    fake_hip: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., pytest.RunResult]:
    """Run a test file as on a computer with the devices of `fake_gpus` and both vendors' libraries."""
    both = os.pathsep.join([fake_cuda["LD_LIBRARY_PATH"], fake_hip["LD_LIBRARY_PATH"]])
    for name, value in {**fake_cuda, **fake_hip, "LD_LIBRARY_PATH": both}.items():
        monkeypatch.setenv(name, value)

    def run(source: str, *args: str) -> pytest.RunResult:
        pytester.makepyfile(functions=FUNCTIONS, test_it=f"import functions, pytest\n{source}")
        return session("--gpu-gates=off", "-rA", *args, on=of_fakes(), real=True)

    return run


def of_fakes() -> Machine:
    """Describe the devices of `fake_gpus`."""
    given: dict[str, Any] = {"upstream": None, "features": {}}
    return machine(
        *(nvidia(n, pci_address=each.pci_address, uuid=each.uuid, **given) for n, each in enumerate(NVIDIA_GPUS)),
        *(amd(n, pci_address=each.pci_address, uuid=each.uuid, **given) for n, each in enumerate(AMD_GPUS)),
    )


def test_a_process_sees_its_device_alone(simulated: Callable[..., pytest.RunResult]) -> None:
    result = simulated(
        """
def test_both(gpu_pair, gpu_process):
    nvidia, amd = gpu_pair
    one, other = gpu_process(nvidia), gpu_process(amd)
    assert one.pid != other.pid and one.devices == (nvidia,) and other.vendor == "amd"
    assert one.run(functions.mask)["HIP_VISIBLE_DEVICES"] == "-1"
    assert other.run(functions.mask)["CUDA_VISIBLE_DEVICES"] == "-1"
"""
    )
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([r"-+ Captured stdout of functions.mask on nvidia0 \(.*\) call -+", r"said by \d+"])


def test_outcomes_of_the_function_are_those_of_the_test(simulated: Callable[..., pytest.RunResult]) -> None:
    result = simulated(
        """
def test_skip(cuda_gpu, gpu_process):
    gpu_process(cuda_gpu).run(functions.skip)

def test_skip_of_unittest(cuda_gpu, gpu_process):
    gpu_process(cuda_gpu).run(functions.skip_of_unittest)

def test_fail(cuda_gpu, gpu_process):
    gpu_process(cuda_gpu).run(functions.fail)

def test_boom(cuda_gpu, gpu_process):
    gpu_process(cuda_gpu).run(functions.boom)

def test_late(cuda_gpu, gpu_process):
    gpu_process(cuda_gpu).run(functions.stop, deadline_s=0.5)
"""
    )
    result.assert_outcomes(skipped=2, failed=3)
    result.stdout.fnmatch_lines(
        [
            "*Failed: not like this",
            "*in fail",
            "*functions.boom raised builtins.ValueError: on purpose",
            "*in boom",
            "*VendorDeadlineError: functions.stop did not return within 0.5 s: process * was killed*",
            "SKIPPED * test_it.py:*: no torch there",
            "SKIPPED * test_it.py:*: no case there",
        ]
    )
    result.stdout.no_fnmatch_line("*processes/process.py*")


BROKEN_OFF = """
import signal

@pytest.fixture
def alarm():
    def ring(*_):
        raise {raised}("too long")
    former = signal.signal(signal.SIGALRM, ring)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.3)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)

def test_it(alarm, cuda_gpu, gpu_process):
    process = gpu_process(cuda_gpu)
    process.run(functions.mask)
    alarm()
    process.run(functions.stop)

def test_next(cuda_gpu):
    pass
"""


def test_ctrl_c_leaves_no_process(simulated: Callable[..., pytest.RunResult]) -> None:
    with pytest.raises(KeyboardInterrupt):  # pytester raises it again
        simulated(BROKEN_OFF.format(raised="KeyboardInterrupt"))


def test_a_call_that_is_broken_off_leaves_no_process_and_no_breach(
    simulated: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_gpucoexist.processes.watchdog import Watchdog

    notify, late = Watchdog._notify, []

    def notify_late(self: Watchdog) -> None:  # a process that takes its time to die
        late.append(threading.Timer(0.5, notify, [self]))
        late[-1].start()

    monkeypatch.setattr(Watchdog, "_notify", notify_late)
    result = simulated(BROKEN_OFF.format(raised="pytest.fail.Exception"))
    result.assert_outcomes(failed=1, passed=1)
    for each in late:
        each.join()
    result.stdout.fnmatch_lines(["*too long*"])
    result.stdout.no_fnmatch_line("*proc.isolation*")


def test_devices_that_the_test_does_not_hold(simulated: Callable[..., pytest.RunResult]) -> None:
    result = simulated(
        """
def test_other(cuda_gpu, gpu_process, gpu_machine):
    gpu_process(next(each for each in gpu_machine.gpus if each.vendor == "amd"))

def test_none(cuda_gpu, gpu_process):
    gpu_process()

def test_name(cuda_gpu, gpu_process):
    gpu_process("cuda:0")

def test_twice(cuda_gpu, gpu_process):
    gpu_process(cuda_gpu, cuda_gpu)

@pytest.mark.cross_vendor
def test_mixed(gpus, gpu_process):
    gpu_process(*gpus)

def test_later(gpu_process, gpu_leases):
    with gpu_leases.acquire("cuda") as (gpu,):
        gpu_process(gpu).run(functions.mask)
"""
    )
    result.assert_outcomes(passed=1, failed=5)
    result.stdout.fnmatch_lines(
        [
            "*test_other does not hold amd0 (*): ask for devices by a fixture or a mark*",
            "*gpu_process needs a device*",
            "*gpu_process takes devices as fixtures give them, such as cuda_gpu, and not 'cuda:0'",
            "*a process has each device once, and these are nvidia0 (*), nvidia0 (*)",
            "*a process is of one vendor, and these devices are of amd and nvidia",
        ]
    )


def test_the_interpreter_of_a_vendor(simulated: Callable[..., pytest.RunResult], pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpu_python_amd = /nowhere/python\n")
    result = simulated(
        """
def test_it(gpu_pair, gpu_process):
    nvidia, amd = gpu_pair
    gpu_process(nvidia).run(functions.mask)
    gpu_process(amd)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*VendorLaunchError: there is no interpreter /nowhere/python*"])


def test_in_workers(simulated: Callable[..., pytest.RunResult]) -> None:
    result = simulated(
        """
@pytest.mark.parametrize("number", range(4))
def test_it(number, gpu_pair, gpu_process):
    for gpu in gpu_pair:
        gpu_process(gpu).run(functions.mask)
""",
        "-n2",
    )
    result.assert_outcomes(passed=4)


BREACHES = {
    "variable": (
        "gpu_process(cuda_gpu).run(functions.change_mask)",
        "proc.isolation FAIL: HIP_VISIBLE_DEVICES is '0' in the process and should be '-1'",
    ),
    "library": (
        "gpu_process(cuda_gpu).run(functions.load, {hip!r})",
        "proc.isolation FAIL: the process of nvidia has a library of amd mapped: {hip}*",
    ),
    "module": (
        "gpu_process(cuda_gpu).run(functions.import_bindings)",
        "proc.isolation FAIL: the process of nvidia imported cuda.bindings.driver of hip-python-interop, which *",
    ),
    "context": (
        "opened.append(open({device!r})); gpu_process(cuda_gpu)",
        "proc.isolation FAIL: pytest itself: process self has {device} open: it has made a context on a device of *",
    ),
}


@pytest.mark.parametrize("kind", BREACHES)
def test_a_breach_fails_the_test(
    on_fakes: Callable[..., pytest.RunResult],
    fake_hip: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    line, words = BREACHES[kind]
    (hip,) = [name for name in sorted(os.listdir(fake_hip["LD_LIBRARY_PATH"])) if name.startswith("libamdhip64.so")][:1]
    device = tmp_path / "nvidia0"
    device.touch()
    patterns = pytest_gpucoexist.processes.isolation._DEVICES
    import re

    monkeypatch.setitem(patterns, "nvidia", re.compile(re.escape(str(device))))
    site = tmp_path / "site"
    install(site, "cuda-bindings", CUDA_BINDINGS)
    install(site, "hip-python-interop", {"cuda/bindings/driver.py": "REAL = 0\n"})
    monkeypatch.setenv("PYTHONPATH", str(site))
    names = {"hip": os.path.join(fake_hip["LD_LIBRARY_PATH"], hip), "device": str(device)}
    result = on_fakes(
        f"""
opened = []

def test_it(cuda_gpu, gpu_process):
    {line.format(**names)}

def test_next(cuda_gpu, gpu_process):
    while opened:
        opened.pop().close()
    assert gpu_process(cuda_gpu).run(functions.mask)["HIP_VISIBLE_DEVICES"] == "-1"
"""
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines([words.format(**names)])


def test_what_is_inherited_of_another_vendor_is_taken_away_and_said(
    on_fakes: Callable[..., pytest.RunResult], fake_hip: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fake_hip["LD_LIBRARY_PATH"]
    hip = os.path.join(folder, next(name for name in os.listdir(folder) if name.startswith("libamdhip64.so")))
    monkeypatch.setenv("LD_PRELOAD", hip)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    result = on_fakes(
        """
def test_it(cuda_gpu, gpu_process, request):
    assert gpu_process(cuda_gpu).run(functions.mask)["HIP_VISIBLE_DEVICES"] == "-1"
    (said,) = [words for name, words in request.node.user_properties if name == "gpu_process"]
    assert "LD_PRELOAD" in said and "HIP_VISIBLE_DEVICES" in said
"""
    )
    result.assert_outcomes(passed=1)


def test_the_runtime_shows_the_leased_device_alone(on_fakes: Callable[..., pytest.RunResult]) -> None:
    result = on_fakes(
        """
def test_one(cuda_gpu, gpu_process):
    assert gpu_process(cuda_gpu).run(functions.see, "libcuda.so.1") == 1

@pytest.mark.cuda(count=2)
def test_two(gpus, gpu_process):
    assert gpu_process(*gpus).run(functions.see, "libcuda.so.1") == 2
"""
    )
    result.assert_outcomes(passed=2)


def test_a_device_that_is_seen_and_should_not_be(
    on_fakes: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a wrong mask would do, without one: the runtime is asked, not the variable."""
    from pytest_gpucoexist.staging import endpoint

    monkeypatch.setattr(endpoint, "visible_devices", lambda *_: ("0000:41:00.0", "0000:c1:00.0"))
    result = on_fakes(
        """
def test_it(cuda_gpu, gpu_process):
    gpu_process(cuda_gpu).run(functions.mask)
"""
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["proc.isolation FAIL: the process of nvidia sees 0000:41:00.0, 0000:c1:00.0 and should see nvidia0 (*)"]
    )


def test_a_process_that_cannot_be_ended_makes_its_device_unfit(
    simulated: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_gpucoexist.processes.kin import Stuck
    from pytest_gpucoexist.processes.opening import OpenedProcess

    close = OpenedProcess.close

    def stuck(self: OpenedProcess, reason: str = "") -> object:
        ending = close(self)
        return replace(ending, stuck=Stuck(pid=self.process.pid, state="D", wchan="os_acquire_rwlock"))

    monkeypatch.setattr(OpenedProcess, "close", stuck)
    result = simulated(
        """
def test_it(cuda_gpu, gpu_process):
    gpu_process(cuda_gpu)

def test_again(cuda_gpu):
    assert cuda_gpu.id != "nvidia0"

@pytest.mark.cuda(count=2)
def test_two(gpus):
    pass

@pytest.mark.gpu(vendor="amd")
def test_other(gpu):
    pass
"""
    )
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(
        [
            "proc.isolation FAIL: a process of nvidia cannot be ended: *os_acquire_rwlock*is not used any more*",
            "1 test (unfit): needs 2 NVIDIA GPUs with CUDA; found 0000:41:00.0 (a process of nvidia cannot be ended: *",
            "*test_it.py::test_two",
        ]
    )


def test_without_execnet(simulated: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "execnet", None)
    result = simulated(
        """
def test_it(cuda_gpu, gpu_process):
    gpu_process(cuda_gpu)
""",
        "-p",
        "no:xdist",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*gpu_process needs execnet, which is not installed: pip install 'pytest-gpucoexist*"])


def test_the_dual_machine_is_what_these_tests_think() -> None:
    assert {gpu.vendor for gpu in dual().gpus} == {"nvidia", "amd"}
