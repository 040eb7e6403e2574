"""Programs that anybody's workstation may run beside a test, by the names that the kernel gives: 15 bytes at most."""

from __future__ import annotations

__all__ = ["DESKTOP", "MONITORS", "MPS", "PROFILERS", "is_known_program"]


def _kernel_names(*names: str) -> frozenset[str]:
    return frozenset(name[:15] for name in names)


DESKTOP = _kernel_names(
    "X", "Xorg", "Xvfb", "Xwayland", "Hyprland", "budgie-wm", "cinnamon", "compiz", "cosmic-comp", "gamescope",
    "gdm-wayland-session", "gnome-session-binary", "gnome-shell", "kwin_wayland", "kwin_x11", "labwc",
    "lightdm-gtk-greeter", "marco", "mate-session", "mutter", "niri", "picom", "plasmashell", "river", "sddm-greeter",
    "sway", "systemd-logind", "wayfire", "weston", "xfce4-session", "xfwm4",
)  # fmt: skip
"""What draws a desktop."""

MPS = _kernel_names("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
"""CUDA's Multi-Process Service."""

MONITORS = _kernel_names(
    "amd-metrics-exporter", "amd-smi", "amdgpu_top", "dcgm-exporter", "gpuagent", "gpud", "gpustat", "intel_gpu_top",
    "nv-hostengine", "nvidia-persistenced", "nvidia-smi", "nvidia_gpu_exporter", "nvitop", "nvtop", "rdcd", "rocm-smi",
    "xpu-smi", "xpumd",
)  # fmt: skip
"""What watches GPUs."""

PROFILERS = _kernel_names(
    "iaprof", "ncu", "nsys", "nsys-launcher", "nv-nsight-cu-cli", "nvprof", "nvvp", "omniperf", "omnitrace", "rocprof",
    "rocprof-compute", "rocprof-sys-run", "rocprofv2", "rocprofv3", "unitrace", "vtune",
)  # fmt: skip
"""What locks counters and clocks while it measures."""


def is_known_program(name: str) -> bool:
    """Whether a name is one of these, which says nothing about the person who runs it."""
    return name[:15] in DESKTOP or name[:15] in MPS or name[:15] in MONITORS or name[:15] in PROFILERS
