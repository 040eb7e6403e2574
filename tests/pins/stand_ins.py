"""Stand-ins for torch and CuPy: the documented calls that the pins use, over a described list of devices.

They are honest about state: which device is current, what the caches hold, which devices got a context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_cupy", "write_torch"]

_TORCH = """
__version__ = "{version}"
_DEVICES = {devices!r}
_current = {current}
_cached = {{}}


class device:
    def __init__(self, type, index=None):
        self.type, self.index = type, index

    def __eq__(self, other):
        return (self.type, self.index) == (other.type, other.index)

    def __repr__(self):
        return f"device(type={{self.type!r}}, index={{self.index}})"


class version:
    cuda = {cuda!r}
    hip = {hip!r}
    xpu = {xpu!r}


class _Uuid:  # torch._C._CUuuid: prints without a prefix
    def __init__(self, text):
        self._text = text

    def __str__(self):
        return self._text


class _Properties:
    def __init__(self, described):
        self.name = described["name"]
        if "uuid" in described:
            self.uuid = _Uuid(described["uuid"])
        for name in ("pci_bus_id", "pci_device_id", "pci_domain_id"):
            if name in described:
                setattr(self, name, described[name])


class cuda:
    @staticmethod
    def device_count():
        return len(_DEVICES)

    @staticmethod
    def get_device_properties(index):
        return _Properties(_DEVICES[index])

    @staticmethod
    def current_device():
        return _current

    @staticmethod
    def set_device(index):
        global _current
        _current = index

    class device:
        def __init__(self, index):
            self.index, self.before = index, None

        def __enter__(self):
            global _current
            self.before, _current = _current, self.index

        def __exit__(self, *exc):
            global _current
            _current = self.before

    @staticmethod
    def allocate(size):
        _cached[_current] = _cached.get(_current, 0) + size

    @staticmethod
    def memory_reserved(index):
        return _cached.get(index, 0)

    @staticmethod
    def empty_cache():
        _cached.pop(_current, None)
"""

_CUPY = """
__version__ = "13.6.0"
_DEVICES = {devices!r}
_pools = {{"device": {{}}, "pinned": 0}}


class cuda:
    current = {current}

    class runtime:
        is_hip = {is_hip}

        @staticmethod
        def getDeviceCount():
            return len(_DEVICES)

        @staticmethod
        def getDeviceProperties(index):
            described = _DEVICES[index]
            properties = {{"name": described["name"].encode()}}
            if "uuid" in described:
                properties["uuid"] = bytes.fromhex(described["uuid"])
            return properties

        @staticmethod
        def deviceGetPCIBusId(index):
            return _DEVICES[index]["pci"]

    class Device:
        def __init__(self, id):
            self.id, self._before = id, []

        def use(self):
            cuda.current = self.id

        def __enter__(self):
            self._before.append(cuda.current)
            cuda.current = self.id
            return self

        def __exit__(self, *exc):
            cuda.current = self._before.pop()


class _Pool:
    def malloc(self, size):
        _pools["device"][cuda.current] = _pools["device"].get(cuda.current, 0) + size

    def total_bytes(self):
        return _pools["device"].get(cuda.current, 0)

    def free_all_blocks(self):
        _pools["device"].pop(cuda.current, None)


class _PinnedPool:
    def malloc(self, size):
        _pools["pinned"] += 1

    def n_free_blocks(self):
        return _pools["pinned"]

    def free_all_blocks(self):
        _pools["pinned"] = 0


_pool, _pinned = _Pool(), _PinnedPool()


def get_default_memory_pool():
    return _pool


def get_default_pinned_memory_pool():
    return _pinned
"""


def write_torch(
    folder: Path,
    devices: list[dict[str, Any]],
    *,
    version: str = "2.8.0",
    cuda: str | None = None,
    hip: str | None = None,
    xpu: str | None = None,
    current: int = 0,
) -> None:
    """Write a package `torch` that enumerates `devices`: name, uuid as torch prints it, pci_* numbers."""
    text = _TORCH.format(devices=devices, version=version, cuda=cuda, hip=hip, xpu=xpu, current=current)
    _write(folder / "torch", text)


def write_cupy(folder: Path, devices: list[dict[str, Any]], *, is_hip: bool = False, current: int = 0) -> None:
    """Write a package `cupy` that enumerates `devices`: name, pci, uuid as 32 hexadecimal digits."""
    _write(folder / "cupy", _CUPY.format(devices=devices, is_hip=is_hip, current=current))


def _write(package: Path, text: str) -> None:
    package.mkdir()
    (package / "__init__.py").write_text(text)
