"""What the header says of leases: where they are kept and what they do not protect against, and what was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpucoexist.errors import UserError
from pytest_gpucoexist.leases.places import Place
from pytest_gpucoexist.session.header import _unprotected

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.session.state import GpuSession

    Session = Callable[..., pytest.RunResult]


class Leased:
    """A session whose leaser has a place."""

    def __init__(self, place: Place | None) -> None:
        self._place = place

    @property
    def leaser(self) -> Any:
        if self._place is None:
            raise UserError("gpu_lease_dir: leases cannot be kept in /nowhere")
        return type("Leaser", (), {"place": self._place})


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (Place(kind="folder", folder="/run/gpucoexist"), None),
        (Place(kind="folder", folder="/srv/leases", notes=("Anybody may remove its table.",)), "Anybody may remove*"),
        (Place(kind="user", folder="/tmp/gpucoexist-7"), "*/tmp/gpucoexist-7; other users and containers are not*"),
        (
            Place(kind="user", folder="/tmp/gpucoexist-7", functions="/sys/bus/pci/devices"),
            "leases: PCI functions*; other users and containers are not held back, except at PCI functions*",
        ),
        (Place(kind="process", folder=None, locks="process"), "leases: this process; other processes are not held*"),
        (None, "gpu_lease_dir: leases cannot be kept in /nowhere"),
    ],
)
def test_the_place_is_said_where_it_does_not_protect_against_everybody(place: Place | None, line: str | None) -> None:
    from fnmatch import fnmatchcase

    told = _unprotected(cast("GpuSession", Leased(place)))
    assert told is None if line is None else fnmatchcase(str(told), line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--gpu-busy=share"], "*share devices with processes that use them without a lease (--gpu-busy=share)"),
        (["--gpu-lease=off"], "*no lease is taken (--gpu-lease=off): other sessions may use the same devices*"),
        (["-o", "gpu_default_memory=2 GiB"], "*a test that says no memory leases 2 GiB of a device"),
    ],
)
def test_what_was_asked_for_is_said(
    session: Session, pytester: pytest.Pytester, arguments: list[str], line: str
) -> None:
    pytester.makepyfile("def test_it(gpu): pass")
    result = session("--gpu-simulate", *arguments)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([line])
    session(*arguments).stdout.no_fnmatch_line(line)  # nothing is leased for tests that are skipped


def test_a_folder_that_cannot_be_used_is_said_before_the_first_test(
    session: Session, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_GPU_LEASE_DIR", str(pytester.path / "nowhere"))
    pytester.makepyfile("def test_it(gpu): pass")
    result = session("--gpu-simulate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "leases cannot be kept in" in result.stderr.str()
    pytester.makepyfile("def test_plain(): pass")
    assert session().ret == 0, "nobody asks for a device"
    result = session("-n1", "--gpu-simulate", "-k", "plain")
    assert result.ret == 0
