"""Sessions made by hand: what a suite on a dual-vendor workstation, a bare CI runner and a replay leave behind."""

from __future__ import annotations

from pytest_gpucoexist.model.machine import Machine
from pytest_gpucoexist.reports.model import DeviceUse, SessionReport, TestRecord
from tests.reports.machines import workstation

NO_AMD = "needs 1 AMD GPU with ROCm; found 0000:c1:00.0 (user not in group render (gid 105))"
HIDDEN = "needs 2 NVIDIA GPUs with CUDA; found 1, and 1 hidden by CUDA_VISIBLE_DEVICES=0"
CREATED = "2025-11-30T10:00:00+00:00"


def record(nodeid: str, outcome: str = "passed", **changes: object) -> TestRecord:
    return TestRecord(nodeid=nodeid, outcome=outcome, **changes)  # type: ignore[arg-type]


def gpu_record(nodeid: str, *ids: str, outcome: str = "passed", **changes: object) -> TestRecord:
    machine = workstation()
    devices = tuple(DeviceUse.of(gpu) for gpu in machine.gpus if gpu.id in ids)
    values: dict[str, object] = {
        "requirement": "1 NVIDIA GPU with CUDA",
        "devices": devices,
        "gpu_outcome": "ran",
        "duration_s": 0.25,
    }
    return record(nodeid, outcome, **(values | changes))


def unmet(nodeid: str, gpu_outcome: str = "missing", reason: str | None = NO_AMD, **changes: object) -> TestRecord:
    values: dict[str, object] = {"requirement": "1 AMD GPU with ROCm", "gpu_outcome": gpu_outcome, "reason": reason}
    return record(nodeid, "skipped", **(values | changes))


def real_machine() -> Machine:
    """The workstation as it would be found on itself."""
    return Machine.from_json(workstation().to_json() | {"simulated": False})


def session(*tests: TestRecord, **changes: object) -> SessionReport:
    values: dict[str, object] = {"version": "0.1.0", "created": CREATED, "machine": real_machine(), "tests": tests}
    return SessionReport(**(values | changes))  # type: ignore[arg-type]


def workstation_session() -> SessionReport:
    """Something of everything."""
    return session(
        gpu_record("tests/test_kernels.py::test_add[float32]", "nvidia0", numa_node=0, worker="gw0"),
        gpu_record("tests/test_kernels.py::test_add[<b>&amp;]", "nvidia0", worker="gw1"),
        gpu_record("tests/test_kernels.py::test_overflow", "nvidia0", outcome="failed", reason="assert 3 == 4"),
        gpu_record("tests/test_kernels.py::test_fp64", "nvidia0", outcome="xfailed", reason="slow on this card"),
        gpu_record(
            "tests/test_pair.py::test_copy_between_vendors",
            "nvidia0",
            "amd1",
            requirement="1 NVIDIA GPU with CUDA and 1 AMD GPU with ROCm",
        ),
        unmet("tests/test_hip.py::test_hip_add"),
        unmet("tests/test_hip.py::test_hip_mul"),
        unmet("tests/test_masks.py::test_second_card", "masked", HIDDEN),
        record("tests/test_shapes.py::test_reshape"),
        record("tests/test_shapes.py::test_broadcast"),
        record("tests/test_shapes.py::test_strides", "failed", reason="assert False"),
        record("tests/test_docs.py::test_links", "skipped", reason="no network"),
        exit_status=1,
        promised="cuda:2,rocm",
        notes=("2 tests were rerun",),
    )
