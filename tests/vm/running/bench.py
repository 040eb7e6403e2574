"""What a hand can do to the machine while it runs: the guest asks for it, because no guest can unplug its own card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.vm.running.qmp import MonitorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.vm.hardware.topology import Hardware
    from tests.vm.running.qmp import Monitor

__all__ = ["Bench"]


class Bench:
    """Faults of the cards of one machine."""

    def __init__(self, hardware: Hardware, monitor: Monitor) -> None:
        self._hardware = hardware
        self._monitor = monitor

    def do(self, request: dict[str, Any]) -> dict[str, str]:
        """Do what the guest asks for: `{"do": "train", "card": "rtx1", …}`. Returns `ok` or `error` with words."""
        actions: dict[str, Callable[..., None]] = {
            "train": self._train,
            "fall_off": self._fall_off,
            "come_back": self._come_back,
            "unplug": self._unplug,
        }
        request = dict(request)
        name = str(request.pop("do", None))
        try:
            actions[name](**request)
        except (KeyError, TypeError, ValueError, MonitorError) as error:
            return {"error": f"{name}: {error!r}"}
        return {"ok": name}

    def _train(self, card: str, speed_gtps: float, width: int) -> None:
        self._hardware.functions[card].configuration.train(speed_gtps, width)

    def _fall_off(self, card: str) -> None:
        self._hardware.functions[card].gone = True

    def _come_back(self, card: str) -> None:
        self._hardware.functions[card].gone = False

    def _unplug(self, card: str) -> None:
        """Press the button at the card's slot: the kernel lets its driver go and switches the slot off."""
        self._monitor.execute("device_del", id=card)
