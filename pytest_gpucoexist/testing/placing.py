"""Give every part of a machine its PCI function: address, chain of bridges, place in `/sys/devices`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.identity import normal_pci_address, pci_sort_key
from pytest_gpucoexist.testing.parts import GpuPart, MachineParts, SwitchPart

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PlacedFunction", "place"]

Link = tuple[float, int, float, int]
"""Current speed (GT/s) and width, highest speed and width."""

_HOST_BRIDGE = "0x1022:0x1480"
_ROOT_PORT = "0x1022:0x1483"
_INTERNAL_PORT = "0x1022:0x1484"
_SWITCH = "0x1000:0xc010"
_BMC_BRIDGE = "0x1a03:0x1150"
_BRIDGE_CLASS = "0x060400"


@dataclass(slots=True, kw_only=True)
class PlacedFunction:
    """A PCI function. `port` and `secondary` are of bridges; `gpu` of GPUs (not of their audio functions)."""

    address: str
    path: str
    ids: str
    class_id: str
    numa_node: int
    subsystem: str = "0x0000:0x0000"
    driver: str | None = None
    link: Link | None = None
    port: str | None = None
    secondary: int = 0
    subordinate: int = 0
    gpu: GpuPart | None = None

    @property
    def bus(self) -> int:
        """Its bus number."""
        return pci_sort_key(self.address)[1]


def place(parts: MachineParts) -> list[PlacedFunction]:
    """Return all functions in bus order. Raises ValueError for parts that contradict each other."""
    placer = _Placer(parts)
    for node in range(len(parts.nodes)):
        placer.fill(node)
    functions = sorted(placer.functions, key=lambda function: pci_sort_key(function.address))
    for bridge in functions:
        if bridge.port is not None:
            below = [each.bus for each in functions if each.path.startswith(f"{bridge.path}/")]
            bridge.subordinate = max([bridge.secondary, *below])
    return functions


class _Placer:
    def __init__(self, parts: MachineParts) -> None:
        self._parts = parts
        self.functions: list[PlacedFunction] = []
        self._used: set[str] = set()
        self._explicit = {pci_sort_key(_checked(gpu.address))[:2] for gpu in parts.gpus if gpu.address}
        self._step = 256 // max(len(parts.nodes), 1)
        self._buses = {node: self._free_buses(node) for node in range(len(parts.nodes))}
        self._slots = {node: itertools.count(1) for node in range(len(parts.nodes))}
        names = [switch.name for switch in parts.switches]
        for gpu in parts.gpus:
            if gpu.under is not None and gpu.under not in names:
                raise ValueError(f"no switch named {gpu.under!r}; there are: {', '.join(names) or 'none'}")
            if not 0 <= gpu.numa_node < len(parts.nodes):
                raise ValueError(f"NUMA node {gpu.numa_node} of {gpu.model.name}: there are {len(parts.nodes)} nodes")

    def fill(self, node: int) -> None:
        """Place everything of one NUMA node behind its host bridge."""
        root = self._step * node
        top = f"/sys/devices/pci0000:{root:02x}"
        self._add(f"0000:{root:02x}:00.0", top, ids=_HOST_BRIDGE, class_id="0x060000", numa_node=node)
        for switch in self._parts.switches:
            if switch.numa_node == node:
                self._switch(switch, root, top)
        for gpu in self._parts.gpus:
            if gpu.under is None and gpu.numa_node == node:
                self._gpu(gpu, root, top)

    def _switch(self, switch: SwitchPart, root: int, top: str) -> None:
        node = switch.numa_node
        link = (switch.speed_gtps, switch.width, switch.speed_gtps, switch.width)
        port = self._root_port(root, top, node, link)
        upstream = self._bridge(self._address(port.secondary), port.path, "up", _SWITCH, node, link)
        for number, gpu in enumerate(each for each in self._parts.gpus if each.under == switch.name):
            address = f"0000:{upstream.secondary:02x}:{number:02x}.0"
            down = self._bridge(address, upstream.path, "down", _SWITCH, node, _slot_link(gpu), gpu)
            self._card(gpu, down, node)

    def _gpu(self, gpu: GpuPart, root: int, top: str) -> None:
        node = gpu.numa_node
        model = gpu.model
        domain, bus = pci_sort_key(gpu.address)[:2] if gpu.address else (0, None)
        if domain:
            # Another domain has a root of its own, as behind a VMD controller.
            root, top = 0, f"/sys/devices/pci{domain:04x}:00"
        if model.place == "processor" and model.vendor_id == "0x8086":
            self._endpoint(gpu, gpu.address or f"0000:{root:02x}:02.0", top, None)
        elif model.place == "processor":
            link = (model.speed_gtps, model.width, model.speed_gtps, model.width)
            address = f"{domain:04x}:{root:02x}:08.1"
            port = self._bridge(address, top, "root", _INTERNAL_PORT, node, link, gpu)
            self._endpoint(gpu, gpu.address or self._address(port.secondary), port.path, link)
        elif model.place == "bmc":
            port = self._root_port(root, top, node, (5.0, 1, 5.0, 1))
            bridge = self._bridge(self._address(port.secondary), port.path, "pci", _BMC_BRIDGE, node, None, gpu)
            self._endpoint(gpu, gpu.address or self._address(bridge.secondary), bridge.path, None)
        else:
            only = None if model.bridges else bus
            port = self._root_port(root, top, node, _slot_link(gpu), gpu, secondary=only, domain=domain)
            self._card(gpu, port, node)

    def _card(self, gpu: GpuPart, port: PlacedFunction, node: int) -> None:
        """Place a card in the slot below `port`, with the switch that it may carry."""
        model = gpu.model
        slot = _slot_link(gpu)
        if model.bridges:
            up, down = model.bridges
            upstream = self._bridge(self._address(port.secondary, port), port.path, "up", up, node, slot)
            port = self._bridge(
                self._address(upstream.secondary, port), upstream.path, "down", down, node, _own_link(gpu), gpu
            )
        self._endpoint(gpu, gpu.address or self._address(port.secondary, port), port.path, _own_link(gpu))

    def _endpoint(self, gpu: GpuPart, address: str, parent: str, link: Link | None) -> None:
        model = gpu.model
        functions = [(address, model.device_id, model.class_id, gpu.driver)]
        if model.audio_id is not None:
            functions.append((f"{address[:-1]}1", model.audio_id, "0x040300", "snd_hda_intel"))
        for where, device_id, class_id, driver in functions:
            function = self._add(
                where,
                parent,
                ids=f"{model.vendor_id}:{device_id}",
                class_id=class_id,
                numa_node=gpu.numa_node,
                subsystem=model.subsystem_id,
                link=link,
            )
            function.driver = driver
            function.gpu = gpu if where == address else None

    def _root_port(
        self,
        root: int,
        top: str,
        node: int,
        link: Link,
        gpu: GpuPart | None = None,
        *,
        secondary: int | None = None,
        domain: int = 0,
    ) -> PlacedFunction:
        address = f"{domain:04x}:{root:02x}:{self._slot(node):02x}.1"
        return self._bridge(address, top, "root", _ROOT_PORT, node, link, gpu, secondary=secondary)

    def _bridge(
        self,
        address: str,
        parent: str,
        port: str,
        ids: str,
        node: int,
        link: Link | None,
        gpu: GpuPart | None = None,
        *,
        secondary: int | None = None,
    ) -> PlacedFunction:
        """Place a bridge. Where it is the last before a GPU with an address of its own, that names its bus."""
        if secondary is None and gpu is not None and gpu.address and (port != "root" or gpu.model.place == "processor"):
            secondary = pci_sort_key(gpu.address)[1]
        bridge = self._add(address, parent, ids=ids, class_id=_BRIDGE_CLASS, numa_node=node, link=link)
        bridge.driver = "pcieport" if port != "pci" else None
        bridge.port = port
        bridge.secondary = next(self._buses[node]) if secondary is None else secondary
        return bridge

    def _add(
        self,
        address: str,
        parent: str,
        *,
        ids: str,
        class_id: str,
        numa_node: int,
        subsystem: str = "0x0000:0x0000",
        link: Link | None = None,
    ) -> PlacedFunction:
        if address in self._used:
            raise ValueError(f"two functions at {address}")
        self._used.add(address)
        function = PlacedFunction(
            address=address,
            path=f"{parent}/{address}",
            ids=ids,
            class_id=class_id,
            numa_node=numa_node,
            subsystem=subsystem,
            link=link,
        )
        self.functions.append(function)
        return function

    def _address(self, bus: int, above: PlacedFunction | None = None) -> str:
        domain = above.address.partition(":")[0] if above is not None else "0000"
        return f"{domain}:{bus:02x}:00.0"

    def _slot(self, node: int) -> int:
        number = next(self._slots[node])
        return number if number < 8 else number + 1  # 08.1 is the processor's own

    def _free_buses(self, node: int) -> Iterator[int]:
        for bus in range(self._step * node + 1, min(self._step * (node + 1), 256)):
            if (0, bus) not in self._explicit:
                yield bus
        raise ValueError(f"no PCI bus is left on NUMA node {node}")


def _own_link(gpu: GpuPart) -> Link:
    model = gpu.model
    speed, width = gpu.link or (model.speed_gtps, model.width)
    return speed, width, model.speed_gtps, model.width


def _slot_link(gpu: GpuPart) -> Link:
    """Return the link between slot and card. What a card with a switch says about itself is not the slot's link."""
    own = _own_link(gpu)
    if gpu.model.bridges and own[3] == 1:
        return 16.0, 8, 16.0, 8
    return own


def _checked(address: str) -> str:
    if normal_pci_address(address) != address:
        raise ValueError(f"not a PCI address as sysfs writes it: {address!r} (0000:41:00.0)")
    return address
