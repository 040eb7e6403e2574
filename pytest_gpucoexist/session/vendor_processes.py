"""The fixture `gpu_process`: processes of one vendor for devices that a test holds, judged and ended with the test."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import GpuCoexistError, UserError, VendorCallError, VendorProcessError
from pytest_gpucoexist.session.current import in_use
from pytest_gpucoexist.session.state import GPU_SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.processes.opening import OpenedProcess
    from pytest_gpucoexist.processes.records import CallResult
    from pytest_gpucoexist.session.state import GpuSession
    from pytest_gpucoexist.staging.endpoint import Endpoint

__all__ = ["GATE", "GpuProcess", "GpuProcesses", "processes_of"]

GATE = "proc.isolation"
"""The id under which a breach is reported."""

EXTRA = "pip install 'pytest-gpucoexist[transfer]'"

# pytest's own exceptions of outcomes call themselves so (_pytest/outcomes.py sets `__module__`).
_OUTCOMES = {
    f"{module}.{name}": name for module in ("builtins", "_pytest.outcomes") for name in ("Skipped", "XFailed", "Failed")
} | {"unittest.case.SkipTest": "Skipped"}


class GpuProcess:
    """A running process that sees its `devices`, which are of one vendor, and no other GPU."""

    def __init__(
        self, devices: tuple[Gpu, ...], opened: OpenedProcess, owner: GpuProcesses, *, simulated: bool
    ) -> None:
        """`GpuProcesses` makes it. `simulated`: host memory stands for the devices."""
        self.devices = devices
        self.opened = opened
        self.simulated = simulated
        self._owner = owner
        self._endpoints: dict[str, Endpoint] = {}

    @property
    def vendor(self) -> str:
        """The vendor of its devices."""
        return str(self.opened.vendor)

    @property
    def pid(self) -> int:
        """The process."""
        return self.opened.process.pid

    def run(self, function: Callable[..., Any], *args: Any, deadline_s: float = 60.0) -> Any:
        """Call a module-level function there and return its result.

        Arguments and results are builtins and NumPy arrays; a buffer of `gpu_transfer` on one of its devices arrives
        as the array that it was borrowed from, or as an object with `__cuda_array_interface__`. What the function
        prints is in the test's report. A `pytest.skip` there skips the test.

        Raises VendorCallError with the traceback when the function raised, VendorDeadlineError after `deadline_s`
        seconds, VendorEndedError when the process ended, VendorPayloadError for what cannot travel.
        """
        __tracebackhide__ = True
        endpoint = self._endpoint_of(args)
        if endpoint is not None:
            return self._heard(lambda: endpoint.run(function, *args, deadline_s=deadline_s))
        return self.call(function, *args, deadline_s=deadline_s).value

    def call(self, function: Callable[..., Any], *args: Any, deadline_s: float = 60.0) -> CallResult:
        """Call a function as `run` does and return its result with what it wrote: `.value`, `.stdout`, `.stderr`."""
        __tracebackhide__ = True
        result: CallResult = self._heard(lambda: self.opened.call(function, *args, deadline_s=deadline_s))
        return result

    def endpoint(self, gpu: Gpu | None = None) -> Endpoint:
        """Return one of its devices (default: the first) as an end of copies, opened when it is first asked for."""
        from pytest_gpucoexist.staging.endpoint import open_endpoint

        device = self.devices[0] if gpu is None else gpu
        if device.key not in {each.key for each in self.devices}:
            raise UserError(f"{device.id} is no device of this process, which has {_names(self.devices)}")
        if device.key not in self._endpoints:
            self._endpoints[device.key] = open_endpoint(self.opened, device, simulated=self.simulated)
        return self._endpoints[device.key]

    def _endpoint_of(self, args: tuple[Any, ...]) -> Endpoint | None:
        if not self._endpoints:
            return None
        from pytest_gpucoexist.staging.endpoint import DeviceBuffer

        buffers = [each for each in args if isinstance(each, DeviceBuffer)]
        return self._endpoints.get(buffers[0].endpoint.key) if buffers else None

    def _heard(self, ask: Callable[[], Any]) -> Any:
        __tracebackhide__ = True
        try:
            return ask()
        except VendorProcessError as error:
            # The news is what happened there, not how this package asked.
            failure = error.with_traceback(None)
        finally:
            self._owner.report(self)
        if isinstance(failure, VendorCallError):
            outcome = _OUTCOMES.get(failure.remote_type)
            if outcome == "Skipped":  # at the test, not at this line
                raise pytest.skip.Exception(failure.remote_text, _use_item_location=True)
            if outcome == "XFailed":
                pytest.xfail(failure.remote_text)
            if outcome == "Failed":
                pytest.fail(f"{failure.remote_text}\n\n{failure.remote_traceback}".rstrip())
        failure.__cause__, failure.__context__ = None, None
        raise failure

    def __repr__(self) -> str:
        """Name the devices and the process."""
        return f"<GpuProcess {self.pid} of {_names(self.devices)}>"


class GpuProcesses:
    """What the fixture gives: call it with devices that the test holds."""

    def __init__(self, item: pytest.Item, session: GpuSession) -> None:
        """Begin with no process."""
        self.item = item
        self.session = session
        self.open: list[GpuProcess] = []
        self._told: dict[int, int] = {}

    def __call__(self, *devices: Gpu, python: str | None = None, numa: bool = False) -> GpuProcess:
        """Start a process of the vendor of these devices, which sees them alone, in this order.

        `python` is its interpreter (default: the ini key `gpu_python_VENDOR`, else pytest's own). `numa` binds it to
        the CPUs and the memory of the first device's node. Ends with the test.

        Raises UserError for devices that the test does not hold, VendorLaunchError when the interpreter does not start.
        """
        __tracebackhide__ = True
        try:
            import execnet  # noqa: F401
        except ImportError:
            raise UserError(f"gpu_process needs execnet, which is not installed: {EXTRA}") from None
        from pytest_gpucoexist.host import local_host
        from pytest_gpucoexist.processes.opening import open_process

        machine = self.session.machine()
        self._check(devices)
        vendor: Any = devices[0].vendor
        opened = open_process(
            devices,
            machine,
            vendor,
            host=local_host(),  # of now: a fixture may have changed the environment since the session began
            python=python or self.session.config.getini(f"gpu_python_{vendor}") or None,
            style=self.session.options.mask_style,  # type: ignore[arg-type]
            node=_node(devices[0], machine) if numa else None,
        )
        process = GpuProcess(devices, opened, self, simulated=machine.simulated)
        self.open.append(process)
        self.item.user_properties.append(("gpu_process", _described(process)))
        return process

    def report(self, process: GpuProcess) -> None:
        """Put what its last calls wrote on the test's report."""
        records = process.opened.process.records
        for record in records[self._told.get(process.pid, 0) :]:
            for stream, text in (("stdout", record.stdout), ("stderr", record.stderr)):
                if text:
                    self.item.add_report_section(
                        "call", f"{stream} of {record.function} on {_names(process.devices)}", text
                    )
        self._told[process.pid] = len(records)

    def close(self) -> list[str]:
        """Judge and end every process; return what was wrong, in words."""
        wrong: list[str] = []
        with contextlib.ExitStack() as stack:  # whatever happens to one, the others are ended too
            for process in self.open:
                stack.callback(self._end, process, wrong)
            for process in self.open:
                used = bool(process.opened.process.records) and not process.opened.process.is_ending
                wrong += _breaches(process) if used else []
        return wrong

    def _end(self, process: GpuProcess, wrong: list[str]) -> None:
        ending = process.opened.close()
        self.report(process)
        if ending.stuck is not None:
            words = f"a process of {process.vendor} cannot be ended: {ending.stuck.describe()}"
            self.session.take_out({gpu.key: words for gpu in process.devices})
            wrong.append(f"{words}; {_names(process.devices)} is not used any more in this run")

    def _check(self, devices: tuple[Gpu, ...]) -> None:
        __tracebackhide__ = True
        if not devices:
            raise UserError("gpu_process needs a device: gpu_process(cuda_gpu), gpu_process(*gpus)")
        from pytest_gpucoexist.model.machine import Gpu

        others = [each for each in devices if not isinstance(each, Gpu)]
        if others:
            raise UserError(f"gpu_process takes devices as fixtures give them, such as cuda_gpu, and not {others[0]!r}")
        if len({each.key for each in devices}) < len(devices):
            raise UserError(f"a process has each device once, and these are {_names(devices)}")
        vendors = {each.vendor for each in devices}
        if len(vendors) > 1:
            raise UserError(f"a process is of one vendor, and these devices are of {' and '.join(sorted(vendors))}")
        held = in_use(self.session)
        foreign = [each for each in devices if each.key not in held]
        if foreign:
            raise UserError(
                f"{self.item.nodeid} does not hold {_names(foreign)}: ask for devices by a fixture or a mark, such as "
                "gpu_pair or cuda_gpu, and pass what it gives"
            )


@contextlib.contextmanager
def processes_of(request: pytest.FixtureRequest) -> Iterator[GpuProcesses]:
    """Give the factory for a test, and fail the test when a process was not of its vendor alone."""
    from pytest_gpucoexist.host import local_host
    from pytest_gpucoexist.processes.isolation import opened_devices

    session = request.config.stash[GPU_SESSION]
    processes = GpuProcesses(request.node, session)
    before = {each.subject for each in opened_devices(local_host())}
    try:
        yield processes
    finally:
        wrong = processes.close()
    opened = opened_devices(local_host()) if processes.open else ()
    wrong += [
        f"pytest itself: {each.sentence}, which belongs into a vendor's process"
        for each in opened
        if each.kind == "device" and each.subject not in before
    ]
    if wrong:
        for each in wrong:
            request.node.user_properties.append(("gpu_gate_failed", f"{GATE}: {each}"))
        pytest.fail("\n".join(f"{GATE} FAIL: {each}" for each in wrong), pytrace=False)


def _breaches(process: GpuProcess) -> list[str]:
    """Return in what a process is not what it should be, in words."""
    found = [each.sentence for each in process.opened.breaches()]
    if process.simulated or not all(each.pci_address for each in process.devices):
        return found
    from pytest_gpucoexist.staging.endpoint import visible_devices

    try:
        visible = visible_devices(process.opened)
    except (GpuCoexistError, OSError) as error:
        return [*found, f"what the process of {process.vendor} sees cannot be told: {error}"]
    wanted = {_slot(each.pci_address) for each in process.devices}
    seen = None if visible is None else {_slot(each) for each in visible}
    if seen is not None and seen != wanted:
        shown = ", ".join(visible or ()) or "no device"
        found.append(f"the process of {process.vendor} sees {shown} and should see {_names(process.devices)}")
    return found


def _slot(pci_address: str | None) -> str:
    return (pci_address or "").lower().rpartition(".")[0]  # HIP prints function 0 for every device


def _node(gpu: Gpu, machine: Machine) -> Any:
    return next((node for node in machine.numa_nodes if node.id == gpu.numa_node), None)


def _names(gpus: Any) -> str:
    return ", ".join(f"{gpu.id} ({gpu.pci_address})" if gpu.pci_address else gpu.id for gpu in gpus)


def _described(process: GpuProcess) -> str:
    """Say in one line what a process is and what was changed for it."""
    opened = process.opened
    changes = "; ".join(each.describe() for each in opened.scoped.changes) or "environment as it was"
    notes = "".join(f"; {note}" for note in opened.notes)
    return f"{_names(process.devices)}: {opened.process.order.python} {opened.process.version}: {changes}{notes}"
