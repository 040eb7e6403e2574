"""The demo machine: a small workstation in which NVIDIA's and AMD's drivers live in one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["demo_host", "demo_machine"]


def demo_machine() -> MachineBuilder:
    """Describe it: two NVIDIA behind a switch on node 0, one AMD on node 1, an AMD iGPU, a server's BMC."""
    return (
        a_machine("demo")
        .with_numa_nodes(2, cpus=8, memory_bytes=64 * 2**30)
        .with_switch("switch", numa_node=0)
        .with_gpu("rtx4090", under="switch")
        .with_gpu("rtx6000ada", under="switch")
        .with_gpu("radeon-780m", numa_node=0)
        .with_gpu("aspeed", numa_node=0, boot_vga=True)
        .with_gpu("rx7900xtx", numa_node=1)
        .with_running_system()
    )


def demo_host() -> Host:
    """Build it, in memory."""
    return demo_machine().host()
