"""A vendor's library: opened for itself alone, its functions bound by a table, its codes turned into errors with names.

`RTLD_LOCAL` keeps the names of one vendor's stack away from the other's. A function that the library lacks is an error
of the call that needs it, not of the opening: old drivers do everything else.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import EngineError
from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.transfer.signatures import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.transfer.signatures import Table

__all__ = ["Runtime"]

_TO_DO = {
    "memory": "free memory of the device, or, where host memory was to be pinned, raise the limit of locked memory "
    "(ulimit -l)",
    "registered": "somebody in this process has pinned this memory: unregister it there, or use other memory",
    "not-registered": "register the memory first, by its first address",
    "lost": "the device or its context is of no use to this process any more: end the process, look at the kernel log",
}


class Runtime:
    """One library. Raises EngineError "library" when no candidate can be loaded."""

    def __init__(self, table: Table, library: str | None = None) -> None:
        self.table = table
        self.library, self._handle = _opened(table, [library] if library else list(_candidates(table)))
        self._functions: dict[str, Any] = {}
        # HIP keeps the last error of a thread, "not ready" too, and torch would take it for that of its next kernel.
        self._forget = self._bound("forget") if "forget" in table.functions else None

    def code(self, operation: str, *arguments: Any) -> Any:
        """Call the function of an operation and return its answer. Raises EngineError where the library lacks it."""
        try:
            function = self._functions[operation]
        except KeyError:
            function = self._functions[operation] = self._bound(operation)
        answer = function(*arguments)
        if answer and self._forget is not None:
            self._forget()
        return answer

    def call(self, doing: str, operation: str, *arguments: Any) -> None:
        """Call a function that must succeed; `doing` is what an error says was tried."""
        code = self.code(operation, *arguments)
        if code:
            raise self.error(doing, operation, code)

    def error(self, doing: str, operation: str, code: int, hint: str = "") -> EngineError:
        """Make the error of an answer, with the vendor's name and text for it."""
        call, kind = self.table.functions[operation].name, KINDS.get(code, "other")
        name, text = self._text("error_name", code) or f"code {code}", self._text("error_text", code)
        answer = f"{name} ({code}{f': {text}' if text and text != name else ''})"
        to_do = hint or _TO_DO.get(kind, "")
        message = f"{self.table.title}: {doing}: {call} answered {answer}{f'; {to_do}' if to_do else ''}"
        return EngineError(message, call=call, code=code, name=name, kind=kind)

    def initialise(self) -> None:
        """Initialise the library. Raises EngineError: no device, no driver, driver and library differ."""
        self.call(f"initialising {self.library}", "initialise", 0)

    def device(self, pci_address: str) -> int:
        """Return the number that the runtime gives the device of an address. Raises EngineError "no-device"."""
        number = ctypes.c_int(-1)
        code = self.code("by_pci", ctypes.byref(number), pci_address.encode())
        if code == 0 and _slot(self.address_of(number.value)) == _slot(pci_address):
            return number.value
        masks = [f"{name}={os.environ[name]}" for name in self.table.masks if name in os.environ]
        seen = ", ".join(f"{number} {address}" for number, address in self.devices()) or "none"
        hint = f"it sees {seen}; {'masks: ' + ', '.join(masks) if masks else 'no mask hides any'}"
        error = self.error(f"looking for {pci_address}", "by_pci", code or 101, hint)
        error.kind = (
            "no-device"  # an address that it does not know is INVALID_VALUE for one, INVALID_DEVICE for another
        )
        raise error

    def devices(self) -> list[tuple[int, str]]:
        """List the devices that the runtime sees: its number and the PCI address. Raises EngineError."""
        count = ctypes.c_int(0)
        if self.code("count", ctypes.byref(count)):
            return []
        return [(number, self.address_of(number) or "no address") for number in range(count.value)]

    def address_of(self, number: int) -> str | None:
        """Read the PCI address of a device by the runtime's number, as sysfs writes it."""
        text = ctypes.create_string_buffer(64)
        if self.code("pci", text, len(text), number):
            return None
        return normal_pci_address(text.value.decode(errors="replace"))

    def _bound(self, operation: str) -> Any:
        described = self.table.functions[operation]
        try:
            function = getattr(self._handle, described.name)
        except AttributeError:
            message = f"{self.table.title}: {self.library} has no {described.name}; a newer driver has it"
            raise EngineError(message, call=described.name, kind="library") from None
        function.argtypes = list(described.arguments)
        function.restype = described.returns
        return function

    def _text(self, operation: str, code: int) -> str:
        described = self.table.functions[operation]
        try:
            if described.returns is ctypes.c_char_p:
                raw = self.code(operation, code)
            else:
                text = ctypes.c_char_p()
                raw = text.value if self.code(operation, code, ctypes.byref(text)) == 0 else None
        except EngineError:
            return ""
        return raw.decode(errors="replace") if raw else ""


def _slot(pci_address: str | None) -> str:
    # HIP prints function 0 for every device, also for a virtual function.
    return (pci_address or "").rpartition(".")[0]


def _candidates(table: Table) -> Iterator[str]:
    yield from table.sonames
    roots = [root for root in map(os.environ.get, table.folders) if root] + (["/opt/rocm"] if table.folders else [])
    for root in dict.fromkeys(roots):
        yield from (os.path.join(root, "lib", name) for name in table.sonames)


def _opened(table: Table, names: list[str]) -> tuple[str, ctypes.CDLL]:
    for name in names:
        try:
            return name, ctypes.CDLL(name, mode=ctypes.RTLD_LOCAL)
        except OSError as error:
            # The file that is missing may be one that the library needs: that is another fault.
            if not str(error).startswith(f"{name}: cannot open shared object file: No such file"):
                message = f"{table.title}: {name} cannot be loaded: {error}"
                raise EngineError(message, call="dlopen", kind="library") from None
    message = f"{table.title}: not installed: {', '.join(names)}; it comes with the driver"
    raise EngineError(message, call="dlopen", kind="library")
