"""What a report says of devices, on its way from an xdist worker to the controller."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.fixtures.running import needs_xdist

if TYPE_CHECKING:
    import pytest

pytestmark = needs_xdist


def test_a_controller_reads_what_a_worker_said_of_its_devices(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import json
        import pytest

        def pytest_configure(config):
            global IS_WORKER
            IS_WORKER = hasattr(config, "workerinput")

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_report_to_serializable():
            data = yield
            if "gpucoexist" in data:
                assert type(data["gpucoexist"]) is str
            return data

        @pytest.hookimpl(trylast=True)
        def pytest_runtest_logreport(report):
            if not IS_WORKER:
                with open("seen", "a") as file:
                    said = getattr(report, "gpucoexist", None)
                    ours = sorted(name for name in vars(report) if "gpucoexist" in name)
                    print(json.dumps([report.when, said, ours, report.user_properties]), file=file)
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpu
        @pytest.mark.parametrize("n", range(6))
        def test_it(gpu, n): pass

        def test_plain(): pass
        """
    )
    options = ("-p", "gpucoexist", "-p", "xdist", "--gpu-machine=demo", "--gpu-simulate", "--gpu-dist=auto", "-n2")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=7)
    seen = [json.loads(line) for line in (pytester.path / "seen").read_text().splitlines()]
    told = [(when, said, names, dict(properties)) for when, said, names, properties in seen if said is not None]
    assert len(seen) == 21
    assert len(told) == 18
    for when, said, names, properties in told:
        assert names == ["gpucoexist"], "what only the plan is told does not stay on reports"
        assert [device["simulated"] for device in said["devices"]] == [True]
        assert ("gpu_device" in properties) == (when != "setup")
