"""Which file `pynvml` and `amdsmi` come from: not installed, shadowed, overwritten."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host.helpers import ask_helpers
from tests.conftest import ROOT
from tests.vendor.machines import RTX_4090, W7900

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.host.base import HelperReply
    from tests.fakes.machine import FakeMachine

STANDARD_LIBRARY = [path for path in sys.path if "site-packages" not in path and os.path.isdir(path)]
INSTALLED = sysconfig.get_paths()["purelib"]


def ask(helper: str, *folders: Path | str) -> HelperReply:
    """Ask a helper that finds packages in these folders and nowhere else."""
    path = [str(ROOT), *(str(folder) for folder in folders), *STANDARD_LIBRARY]
    replies = ask_helpers([helper], {}, environ=dict(os.environ), python_path=path, deadline_s=30)
    return replies[helper]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with nvidia-ml-py as it was installed."""
    distribution = metadata.distribution("nvidia-ml-py")
    folder = tmp_path / "site"
    for file in distribution.files or ():
        source = distribution.locate_file(file)
        if not str(file).startswith("..") and os.path.isfile(str(source)):
            target = folder / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(source), target)
    return folder


def a_package(folder: Path, name: str) -> Path:
    """A stranger that owns the import `name`: it must not even be executed."""
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported the wrong package')\n")
    return package / "__init__.py"


def test_nothing_is_installed(machine: FakeMachine) -> None:
    nvml, amdsmi = ask("nvml"), ask("amdsmi")
    assert (nvml.status, amdsmi.status) == ("absent", "absent")
    assert nvml.detail == "nvidia-ml-py is not installed (pip install 'pytest-gpucoexist[nvidia]')"
    assert amdsmi.detail == "amdsmi is not installed (pip install 'pytest-gpucoexist[amd]')"


def test_the_client_is_taken_from_its_own_distribution(machine: FakeMachine, site: Path) -> None:
    machine.nvidia(RTX_4090)
    reply = ask("nvml", site)
    assert reply.status == "ok", reply.detail
    assert reply.data["client"] == {
        "distribution": "nvidia-ml-py",
        "version": metadata.version("nvidia-ml-py"),
        "path": str(site / "pynvml.py"),
        "shadowed_by": None,
        "library": os.path.realpath(f"{machine.environ['LD_LIBRARY_PATH']}/libnvidia-ml.so.1"),
    }


def test_a_package_that_shadows_the_module_is_passed_by_and_named(machine: FakeMachine, site: Path) -> None:
    machine.nvidia(RTX_4090)
    stranger = a_package(site, "pynvml")  # hip-python-interop: a package beside the module, and it wins the import
    reply = ask("nvml", site)
    assert reply.status == "ok", reply.detail
    assert reply.data["client"]["path"] == str(site / "pynvml.py")
    assert reply.data["client"]["shadowed_by"] == str(stranger)
    assert reply.data["devices"][0]["name"] == {"value": RTX_4090.name}


def test_a_stranger_alone_is_not_asked(machine: FakeMachine, tmp_path: Path) -> None:
    machine.nvidia(RTX_4090)
    stranger = a_package(tmp_path / "site", "pynvml")
    reply = ask("nvml", tmp_path / "site")
    assert reply.status == "broken"
    assert reply.detail == (
        f"pynvml would be imported from {stranger}, which is not nvidia-ml-py; install nvidia-ml-py"
    )


def test_a_module_that_was_overwritten_is_not_asked(machine: FakeMachine, site: Path) -> None:
    machine.nvidia(RTX_4090)
    with open(site / "pynvml.py", "a", encoding="utf-8") as file:
        file.write("# somebody else's\n")
    reply = ask("nvml", site)
    assert reply.status == "broken"
    assert "another distribution overwrote it" in (reply.detail or "")


def test_a_module_that_is_missing(machine: FakeMachine, site: Path) -> None:
    (site / "pynvml.py").unlink()
    reply = ask("nvml", site)
    assert reply.status == "broken"
    assert f"{site / 'pynvml.py'} is missing; reinstall it" in (reply.detail or "")
    stranger = a_package(site, "pynvml")
    assert f"pynvml would be imported from {stranger}" in (ask("nvml", site).detail or "")


def test_a_distribution_without_hashes_passes(machine: FakeMachine, site: Path) -> None:
    """Packages of a Linux distribution have no RECORD."""
    machine.nvidia(RTX_4090)
    (folder,) = site.glob("nvidia_ml_py-*.dist-info")
    (folder / "RECORD").unlink()
    assert ask("nvml", site).status == "ok"


def test_amdsmi_that_needs_what_is_not_there(machine: FakeMachine, tmp_path: Path) -> None:
    package = tmp_path / "site" / "amdsmi"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import a_module_that_nobody_has\n")
    reply = ask("amdsmi", tmp_path / "site")
    assert reply.status == "broken"
    assert "No module named 'a_module_that_nobody_has'" in (reply.detail or "")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('strange')", "cannot be imported: ValueError: strange"),
        ("import os; os.no_such_name", "cannot be imported: AttributeError"),
        ("raise KeyError('libamd_smi.so')", "is installed, but found no libamd_smi.so"),
    ],
)
def test_amdsmi_that_fails_at_import(machine: FakeMachine, tmp_path: Path, code: str, words: str) -> None:
    package = tmp_path / "site" / "amdsmi"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"{code}\n")
    assert words in (ask("amdsmi", tmp_path / "site").detail or "")


def test_amdsmi_of_no_distribution_still_answers(machine: FakeMachine, tmp_path: Path) -> None:
    """ROCm puts the package below /opt/rocm, without metadata."""
    machine.amd(W7900)
    shutil.copytree(os.path.join(INSTALLED, "amdsmi"), tmp_path / "site" / "amdsmi")
    reply = ask("amdsmi", tmp_path / "site")
    assert reply.status == "ok", reply.detail
    assert reply.data["client"]["distribution"] is None
    assert reply.data["client"]["version"] == metadata.version("amdsmi")
    assert reply.data["client"]["path"] == str(tmp_path / "site" / "amdsmi" / "__init__.py")
