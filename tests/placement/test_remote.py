"""Workers on other machines: Python under another host name, and a real ssh server on loopback."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.session.remote import look_there, place_there
from tests.fixtures.machines import AMD0, NVIDIA0, NVIDIA1
from tests.fixtures.running import needs_xdist
from tests.placement.hosts import HOSTS, RECORDER, make_under, on, run, seen, write_host

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs_xdist

SICK = """
from pytest_gpucoexist.gates import failed, gate, passed

@gate(
    "suite.rule", group="driver", title="a rule of this suite", reads="the host's name", criterion="it is well",
    why="to see", action="mend it", source="this suite", severity="fail", blocking=True,
)
def rule(subject):
    name = platform.node()
    yield failed(f"{name} smells of smoke", on=subject.gpus()) if name == "sick" else passed("well", on=subject.gpus())

def pytest_gpucoexist_gates(config):
    return [rule]
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_GPU_HOME", "PYTEST_GPU_HOME_DETAILS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def under(pytester: pytest.Pytester) -> str:
    return make_under(pytester.path)


def homes_of(entries: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {each["PYTEST_XDIST_WORKER"]: (each["PYTEST_GPU_HOME"], each["CUDA_VISIBLE_DEVICES"]) for each in entries}


def test_each_worker_has_the_devices_of_its_own_host(
    pytester: pytest.Pytester, under: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All collect what the controller has, decide by what their hosts have, and lease there; reports name the host."""
    write_host(pytester.path, "nodea", "nvidia0")
    write_host(pytester.path, "nodeb", "nvidia1", "amd0")
    write_host(pytester.path, socket.gethostname(), "nvidia0", "nvidia1")
    pytester.makeconftest(HOSTS)
    pytester.makepyfile(
        """
        import platform

        def test_nvidia(cuda_gpu):
            assert cuda_gpu.key == {"nodea": "0000:41:00.0", "nodeb": "0000:42:00.0"}[platform.node()]

        def test_amd(rocm_gpu):
            assert platform.node() == "nodeb"

        def test_temporary(tmp_path): pass

        def test_each(each_gpu):
            assert each_gpu.key == {"nodea": "0000:41:00.0", "nodeb": "0000:42:00.0"}[platform.node()]
        """
    )
    # On another host the controller's folder for temporary files is not there.
    hidden = pytester.mkdir("hidden")
    monkeypatch.setenv("HIDE", str(hidden))
    files = ("--gpu-report=report.json", "--junitxml=junit.xml", f"--basetemp={hidden / 'base'}")
    result = run(pytester, "--dist=each", on(under, "nodea"), on(under, "nodeb"), *files)
    result.assert_outcomes(passed=7, skipped=3)
    text = result.stdout.str()
    assert "nodea, where nodea runs: GPUs of nodea: 1 NVIDIA (nvidia0)" in text
    assert "nodeb, where nodeb runs: GPUs of nodeb: 1 NVIDIA (nvidia1), 1 AMD (amd0)" in text
    assert "needs 1 AMD GPU with ROCm; found no AMD GPU (on nodea)" in text
    assert "namely 0000:42:00.0; found 0000:41:00.0 (not 0000:42:00.0) (on nodea)" in text
    report = json.loads((pytester.path / "report.json").read_text())
    used = {device["id"] for test in report["tests"] for device in test["devices"]}
    assert used
    assert used <= {"nodea:nvidia0", "nodeb:nvidia1", "nodeb:amd0"}
    cases = ET.parse(pytester.path / "junit.xml").getroot().iter("testcase")
    places = set()
    for case in cases:
        said = {each.get("name"): each.get("value", "") for each in case.iter("property")}
        if "gpu_device" in said:
            places.add((case.get("name"), said["gpu_host"], said["gpu_device"].split()[0]))
    assert places == {
        ("test_nvidia", "nodea", NVIDIA0),
        ("test_nvidia", "nodeb", NVIDIA1),
        ("test_amd", "nodeb", AMD0),
        ("test_each[nvidia0]", "nodea", NVIDIA0),
        ("test_each[nvidia1]", "nodeb", NVIDIA1),
    }


def test_homes_on_other_hosts(pytester: pytest.Pytester, under: str) -> None:
    """Two workers on one other host share its devices fairly, and one here replays another machine.

    A replacement for one that crashed has its home.
    """
    there = write_host(pytester.path, "there", "nvidia0", "nvidia1")
    here = write_host(pytester.path, "here", "nvidia1", "amd0")
    pytester.makeconftest(RECORDER)
    pytester.makepyfile(
        """
        import os, platform
        import pytest

        @pytest.mark.parametrize("n", range(3))
        def test_gpu(cuda_gpu, n):
            assert cuda_gpu.key == os.environ["PYTEST_GPU_HOME"].split(",")[0]

        def test_crash():
            if os.environ["PYTEST_XDIST_WORKER"] == "one":
                os._exit(3)

        def test_end(cuda_gpu): pass
        """
    )
    simulated = "env:PYTEST_GPU_SIMULATE=1"
    result = run(
        pytester,
        "--dist=each",
        on(under, "there", f"env:PYTEST_GPU_MACHINE={there}", simulated).replace("id=there", "id=one"),
        on(under, "there", f"env:PYTEST_GPU_MACHINE={there}", simulated).replace("id=there", "id=two"),
        f"--tx=popen//id=three//env:PYTEST_GPU_MACHINE={here}//{simulated}",
        "--gpu-workers=narrow",
        "-p",
        "no:randomly",
    )
    assert result.parseoutcomes()["failed"] == 1
    for line in ("one nvidia0 on there", "two nvidia1 on there", "three nvidia1 amd0 on *"):
        result.stdout.fnmatch_lines([f"gpucoexist: --gpu-workers=narrow, home: {line}"])
    entries = seen(pytester.path)
    homes = homes_of(entries)
    (replacement,) = set(homes) - {"one", "two", "three"}
    assert homes == {
        "one": (NVIDIA0, "0"),
        "two": (NVIDIA1, "1"),
        "three": (f"{NVIDIA1},{AMD0}", "0"),
        replacement: (NVIDIA0, "0"),
    }
    assert {entry["host"] for entry in entries if entry["PYTEST_XDIST_WORKER"] in {"one", "two", replacement}} == {
        "there"
    }


def test_a_machine_that_cannot_be_discovered_gives_no_home(pytester: pytest.Pytester, under: str) -> None:
    pytester.makepyfile("import os\ndef test_one(): assert 'PYTEST_GPU_HOME' not in os.environ")
    result = run(
        pytester, "--dist=load", on(under, "there", "env:PYTEST_GPU_MACHINE=absent.json"), "--gpu-workers=narrow"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*ERROR: there has no home: its machine could not be discovered: RecordingError:*absent.json*"]
    )


def test_gates_of_another_host_end_the_run(pytester: pytest.Pytester, under: str) -> None:
    """`--gpu-gate-policy=stop` where the worker's own machine is unfit, and this one is not."""
    write_host(pytester.path, "sick", "nvidia0")
    pytester.makeconftest(HOSTS + SICK)
    pytester.makepyfile(
        """
        import time
        import pytest

        @pytest.mark.parametrize("n", range(20))
        def test_gpu(cuda_gpu, n): pass
        """
    )
    result = run(pytester, "--dist=load", on(under, "sick"), "--gpu-gate-policy=stop")
    assert result.ret == 75
    result.stdout.fnmatch_lines(
        ["*sick: --gpu-gate-policy=stop: the machine is unfit: suite.rule: sick smells of smoke*"]
    )
    assert "INTERNALERROR" not in result.stdout.str()


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[str]:
    """Serve ssh on loopback, under another host name; return the `ssh=…` of a --tx."""
    server, client, keygen = (shutil.which(name) for name in ("sshd", "ssh", "ssh-keygen"))
    if server is None or client is None or keygen is None:
        pytest.skip("needs OpenSSH: sshd, ssh and ssh-keygen are not all installed")
    if os.getuid() != 0:
        pytest.skip("needs root: an ssh server under a host name of its own")
    for name in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\n"
        "StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\nLogLevel ERROR\n"
    )
    (tmp_path / "config").write_text(
        f"Host sshnode\nHostName 127.0.0.1\nPort {port}\nUser root\nIdentityFile {tmp_path}/user\n"
        f"StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\nIdentitiesOnly yes\n"
    )
    separation = Path("/run/sshd")  # sshd wants it; packages make it when the service starts
    made = not separation.exists()
    separation.mkdir(mode=0o755, exist_ok=True)
    inner = f"hostname sshnode && exec {server} -D -e -f {shlex.quote(str(tmp_path / 'sshd_config'))}"
    process = subprocess.Popen(["unshare", "--uts", "sh", "-c", inner], stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None:
                    assert process.stderr is not None
                    pytest.skip(f"needs an ssh server that starts here: {process.stderr.read().strip()}")
                time.sleep(0.05)
        yield f"ssh=sshnode//ssh_config={tmp_path / 'config'}//python={sys.executable}"
    finally:
        process.terminate()
        process.wait(timeout=10)
        assert process.stderr is not None
        process.stderr.close()
        if made:
            separation.rmdir()


def test_over_ssh(pytester: pytest.Pytester, ssh: str) -> None:
    """The suite is copied there; homes are set over the gateway, before pytest starts."""
    there = write_host(pytester.path, "there", "nvidia0", "nvidia1")
    suite = pytester.mkdir("suite")
    (suite / "conftest.py").write_text(RECORDER + "from pytest_gpucoexist import current_gpu\n")
    (suite / "test_there.py").write_text(
        "import os\nfrom pytest_gpucoexist import current_gpu\nHERE = current_gpu()\n"
        "def test_gpu(cuda_gpu, tmp_path):\n    assert cuda_gpu.key == HERE.key == os.environ['PYTEST_GPU_HOME']\n"
    )
    leases = os.environ["PYTEST_GPU_LEASE_DIR"]
    variables = f"env:PYTEST_GPU_MACHINE={there}//env:PYTEST_GPU_SIMULATE=1//env:PYTEST_GPU_LEASE_DIR={leases}"
    specs = [f"--tx={ssh}//chdir={pytester.path / 'remote'}//id={name}//{variables}" for name in ("one", "two")]
    result = run(pytester, "--dist=each", *specs, f"--rsyncdir={suite}", "--gpu-workers=rotate", str(suite))
    result.assert_outcomes(passed=2)
    entries = seen(pytester.path / "remote" / "suite")
    homes = homes_of(entries)
    assert homes == {"one": (NVIDIA0, "0,1"), "two": (NVIDIA1, "1,0")}
    assert {entry["host"] for entry in entries} == {"sshnode"}


class _Gateway:
    """A gateway whose interpreter fails, or answers at once."""

    spec = "popen//python=broken"

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def remote_exec(self, source: str) -> _Gateway:
        return self

    class RemoteError(Exception):
        """As execnet's channels have it."""

    class TimeoutError(Exception):  # noqa: A001
        """As execnet's channels have it."""

    def send(self, item: object) -> None:
        """Take whatever is sent."""

    def receive(self) -> object:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def waitclose(self, timeout: float) -> None:
        """Be closed already."""


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_Gateway.RemoteError("Traceback\nImportError: no platform"), "does not answer: ImportError: no platform"),
        (EOFError(), "does not answer: EOFError"),
    ],
)
def test_a_gateway_that_fails_is_an_error_of_ours(answer: Exception, words: str) -> None:
    with pytest.raises(GpuCoexistError, match=words):
        place_there(_Gateway(answer))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            (1, "", "Traceback\nNo module named pytest_gpucoexist\n"),
            "No module named pytest_gpucoexist. Is",
        ),
        ((-1, "", "timed out after 65 s"), "timed out after 65 s"),
        ((1, "", ""), "exit status 1"),
        ((0, "Welcome to node17!", ""), "'Welcome to node17!' is not JSON"),
    ],
)
def test_a_machine_that_does_not_tell_is_an_error_of_ours(answer: object, words: str) -> None:
    gateway = _Gateway(answer)
    gateway.spec = SimpleNamespace(popen=False)  # type: ignore[assignment]
    options = SimpleNamespace(gates="quick", gate_policy="quarantine", helper_deadline_s=5.0)
    with pytest.raises(GpuCoexistError, match=words):
        look_there(gateway, options)  # type: ignore[arg-type]
