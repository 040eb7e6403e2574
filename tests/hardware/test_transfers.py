"""What arrives is what was sent: to a device and back, and from device to device, at every size that is awkward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.hardware.asking import RATED_BYTES

np = pytest.importorskip("numpy", reason="needs numpy")

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu
    from tests.hardware.measured import Numbers

pytestmark = pytest.mark.hardware

SIZES = (1, 3, 4095, 4097, 65535, 65537, 1 << 20, RATED_BYTES // 4 + 8)


def _to_and_from(gpu_transfer: Any, gpu: Gpu, sizes: tuple[int, ...]) -> None:
    """Compare by NumPy's own generator and equality: nothing of the package's verification."""
    generator = np.random.default_rng(17)
    for size in sizes:
        sent = generator.integers(0, 256, size, dtype=np.uint8)
        buffer = gpu_transfer.device_buffer(size, gpu)
        gpu_transfer.from_host(sent, buffer)
        assert np.array_equal(gpu_transfer.to_host(buffer), sent), f"{size} bytes"
        buffer.close()


def _rows(gpu_transfer: Any, source: Gpu, target: Gpu, size: int) -> list[dict[str, Any]]:
    one, other = gpu_transfer.device_buffer(size, source), gpu_transfer.device_buffer(size, target)
    rows = []
    for _ in range(3):
        copied = gpu_transfer.copy(one, other)
        rows.append({
            "route": copied.route, "size_bytes": copied.size_bytes, "elapsed_s": copied.elapsed_s,
            "gbps": copied.size_bytes / copied.elapsed_s / 1e9, "pages": copied.pages, "node": copied.node,
            "notes": "; ".join(copied.notes),
        })  # fmt: skip
    one.close()
    other.close()
    return rows


def test_to_a_device_and_back(each_gpu: Gpu, gpu_transfer: Any, numbers: Numbers) -> None:
    _to_and_from(gpu_transfer, each_gpu, SIZES)
    numbers.add(device=each_gpu.id, sizes=list(SIZES))


@pytest.mark.parametrize("back", [False, True], ids=["to AMD", "to NVIDIA"])
def test_between_vendors(gpu_pair: tuple[Gpu, Gpu], gpu_transfer: Any, numbers: Numbers, back: bool) -> None:
    source, target = reversed(gpu_pair) if back else gpu_pair
    verified = gpu_transfer.verify(source, target, SIZES)
    assert verified.wrong == ()
    assert verified.sizes == SIZES
    numbers.add(source=source.id, target=target.id, copies=_rows(gpu_transfer, source, target, RATED_BYTES))


@pytest.mark.parametrize(
    "vendor", [pytest.param(vendor, marks=pytest.mark.gpu(vendor=vendor, count=2)) for vendor in ("nvidia", "amd")]
)
def test_between_two_of_a_vendor(gpus: tuple[Gpu, ...], gpu_transfer: Any, numbers: Numbers, vendor: str) -> None:
    first, second = gpus
    for source, target in ((first, second), (second, first)):
        assert gpu_transfer.verify(source, target, SIZES).wrong == ()
    numbers.add(source=first.id, target=second.id, copies=_rows(gpu_transfer, first, second, RATED_BYTES))
