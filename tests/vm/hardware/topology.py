"""The workstation: two NUMA nodes, a switch with two cards, cards at root ports of both nodes, as QEMU's arguments.

node 0, bus 40   root port ── switch ─┬─ rtx0 (two functions)
                                      └─ rtx1
                 root port ── a virtio GPU, whose port and function have AER
node 1, bus 80   root port ── radeon0
                 root port ── radeon1
                 root port ── rtx2
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.vm.hardware.cards import RADEON, RTX, RTX_AUDIO, Configuration
from tests.vm.hardware.proxy import ProxyFunction

if TYPE_CHECKING:
    from tests.vm.hardware.cards import Card

__all__ = ["COMMAND_LINE", "Hardware"]

_CONSOLE = "console=ttyS0 quiet loglevel=3 panic=-1 log_buf_len=4M"
_FAST = "mitigations=off"  # with them an emulated processor needs twice as long
_TESTED = "modprobe.blacklist=amdgpu module_blacklist=radeon"  # what tests of such lines find
COMMAND_LINE = f"{_CONSOLE} {_FAST} {_TESTED}"


@dataclass(slots=True)
class Hardware:
    """All devices of one machine. `arguments` are for QEMU; `functions` serve the cards, by name."""

    arguments: list[str] = field(default_factory=list)
    functions: dict[str, ProxyFunction] = field(default_factory=dict)
    _ports: int = 0

    def __post_init__(self) -> None:
        """Put the machine together."""
        self._board()
        self._device("pxb-pcie", id="node0", bus_nr=0x40, bus="pcie.0", numa_node=0)
        self._device("pxb-pcie", id="node1", bus_nr=0x80, bus="pcie.0", numa_node=1)
        first, second = self._switch(self._port("node0"), 2)
        self._card("rtx0", RTX, first, RTX_AUDIO)
        self._card("rtx1", RTX, second)
        self._device("virtio-gpu-pci", id="virtio", bus=self._port("node0"), aer="on")
        self._card("radeon0", RADEON, self._port("node1"))
        self._card("radeon1", RADEON, self._port("node1"))
        self._card("rtx2", RTX, self._port("node1"))

    def _board(self) -> None:
        # Proxies are told where the guest's memory is: it must be a file that can be shared.
        memory = "memory-backend-memfd,size=1G,share=on,id="
        self.arguments += ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "2G"]
        self.arguments += ["-smp", "4,sockets=2,cores=2,threads=1", "-object", f"{memory}m0", "-object", f"{memory}m1"]
        for settings in (
            "node,nodeid=0,cpus=0-1,memdev=m0",
            "node,nodeid=1,cpus=2-3,memdev=m1",
            "dist,src=0,dst=1,val=21",
        ):
            self.arguments += ["-numa", settings]

    def _device(self, kind: str, **settings: object) -> str:
        self.arguments += ["-device", ",".join([kind, *(f"{name}={value}" for name, value in settings.items())])]
        return str(settings["id"])

    def _port(self, bus: str) -> str:
        self._ports += 1
        number = self._ports
        settings = {"id": f"port{number}", "bus": bus, "chassis": number, "slot": number, "x-speed": 16, "x-width": 16}
        return self._device("pcie-root-port", **settings)

    def _switch(self, port: str, count: int) -> list[str]:
        upstream = self._device("x3130-upstream", id="switch", bus=port)
        downstream = []
        for _ in range(count):
            self._ports += 1
            number = self._ports
            name = self._device("xio3130-downstream", id=f"port{number}", bus=upstream, chassis=number, slot=number)
            downstream.append(name)
        return downstream

    def _card(self, name: str, card: Card, bus: str, *others: Card) -> None:
        for number, function in enumerate((card, *others)):
            configuration = Configuration(function)
            if others and number == 0:
                configuration.more_functions()
            served = ProxyFunction(configuration)
            called = name if number == 0 else f"{name}.{number}"
            self.functions[called] = served
            more = {"multifunction": "on"} if others else {}
            settings = {"id": called, "bus": bus, "addr": f"0.{number}", "fd": served.descriptor, **more}
            self._device("x-pci-proxy-dev", **settings)
