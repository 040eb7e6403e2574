"""What a baseline holds: each GPU's identity, place, link, driver and memory, and the firmware's version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist._version import __version__
from pytest_gpucoexist.errors import DataError
from pytest_gpucoexist.gates.pcie.path import walk
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.model.codec import decode, encode
from pytest_gpucoexist.probes.reader import read_text

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["FORMAT", "SEEN", "Baseline", "BaselineGpu", "baseline_of", "from_text", "to_text"]

FORMAT = "pytest-gpucoexist baseline"
SEEN = ("uuid", "driver_version", "vbios_version", "memory_total_bytes")
"""Fields that a driver's files and a vendor's library can tell in different words."""

_OF_PARTS = {"driver_version", "vbios_version"}
_VERSION = 1
_BIOS = "/sys/class/dmi/id/bios_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineGpu:
    """One PCI function (or a GPU without one). None: it was not known when the baseline was saved.

    `max_width` and `max_speed_gtps` are what the narrowest link on the way can do; `width` is what was negotiated at
    the card. `seen` holds, for what several sources tell each in its own words, the value of each source: `files`,
    `nvml`, `amdsmi`. Only the same source is compared.
    """

    key: str
    vendor: str
    compute: bool = True
    vendor_id: str | None = None
    device_id: str | None = None
    subsystem_id: str | None = None
    uuid: str | None = None
    name: str | None = None
    numa_node: int | None = None
    driver: str | None = None
    driver_version: str | None = None
    vbios_version: str | None = None
    memory_total_bytes: int | None = None
    width: int | None = None
    max_width: int | None = None
    max_speed_gtps: float | None = None
    card: str | None = None
    seen: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A machine, by a hash of its machine id. `digest` is over all the rest, so that a damaged file is noticed."""

    machine_id: str
    saved_at: float
    bios_version: str | None = None
    gpus: tuple[BaselineGpu, ...] = ()
    format: str = FORMAT
    version: int = _VERSION
    saved_by: str = __version__
    digest: str = ""

    @property
    def computed_digest(self) -> str:
        """SHA-256 over the content."""
        data = {key: value for key, value in encode(self).items() if key != "digest"}
        return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def baseline_of(host: Host, machine: Machine, machine_id: str, *also: Machine) -> Baseline:
    """Take down a machine as it is now. `also` are other looks at it: from files alone, say."""
    bios = (read_text(host, _BIOS).text or "").strip()[:128] or None
    subject = Subject(host=host, machine=machine)
    found: dict[str, BaselineGpu] = {}
    for gpu in machine.gpus:
        key = gpu.pci_address or gpu.key
        if key not in found:
            others = [other.gpu(gpu.key) for other in also]
            found[key] = _gpu(subject, key, gpu, [each for each in (gpu, *others) if each is not None])
    baseline = Baseline(machine_id=machine_id, saved_at=host.time(), bios_version=bios, gpus=tuple(found.values()))
    return replace(baseline, digest=baseline.computed_digest)


def to_text(baseline: Baseline) -> str:
    """Write it as JSON for people, too."""
    return json.dumps(encode(baseline), indent=1, ensure_ascii=False) + "\n"


def from_text(text: str) -> Baseline:
    """Read what `to_text` wrote. Raises DataError that says what is wrong with it."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is no JSON ({error})") from error
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise DataError("it is no baseline of pytest-gpucoexist")
    if data.get("version") != _VERSION:
        raise DataError(f"it has version {data.get('version')!r:.20}; this release reads version {_VERSION}")
    baseline = decode(Baseline, data)
    if baseline.digest != baseline.computed_digest:
        raise DataError("its content does not match its digest: it was edited, or cut off")
    return baseline


def _gpu(subject: Subject, key: str, gpu: Gpu, looks: list[Gpu]) -> BaselineGpu:
    path = walk(subject, gpu)
    hops = [] if path.card is None else [*path.above, path.card]
    # The UUID and the memory of a partition are not those of its GPU.
    whole = gpu.partition is None
    return BaselineGpu(
        key=key,
        vendor=gpu.vendor,
        compute=gpu.is_compute,
        vendor_id=gpu.vendor_id,
        device_id=gpu.device_id,
        subsystem_id=gpu.subsystem_id,
        uuid=gpu.uuid if whole else None,
        name=gpu.name,
        numa_node=gpu.numa_node,
        driver=gpu.driver,
        driver_version=gpu.driver_version,
        vbios_version=gpu.vbios_version,
        memory_total_bytes=gpu.memory_total_bytes if whole else None,
        width=path.card.width if path.card is not None else None,
        max_width=min((hop.max_width for hop in hops if hop.max_width), default=None),
        max_speed_gtps=min((hop.max_speed_gtps for hop in hops if hop.max_speed_gtps), default=None),
        card=gpu.drm.card if gpu.drm is not None else None,
        seen={name: values for name in SEEN if (whole or name in _OF_PARTS) and (values := _seen(looks, name))},
    )


def _seen(looks: list[Gpu], name: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for gpu in looks:
        fact, value = gpu.facts.get(name), getattr(gpu, name)
        if fact is not None and fact.status == "ok" and value is not None:
            values["files" if fact.source.startswith("/") else fact.source] = str(value)
    return values
