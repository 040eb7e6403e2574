"""Programs that anybody's workstation may run beside a test, by the names that the kernel gives: 15 bytes at most."""

from __future__ import annotations

__all__ = ["DESKTOP", "MONITORS", "MPS", "PROFILERS", "is_known_program"]


def _kernel_names(*names: str) -> frozenset[str]:
    return frozenset(name[:15] for name in names)


DESKTOP = _kernel_names(
    "Hyprland", "X", "Xorg", "Xvfb", "Xwayland", "budgie-wm", "cage", "cinnamon", "compiz", "cosmic-comp",
    "gamescope", "gdm-wayland-session", "gdm-x-session", "gnome-control-center", "gnome-remote-desktop-daemon",
    "gnome-session-binary", "gnome-shell", "kmscon", "ksmserver", "kwin_wayland", "kwin_x11", "labwc",
    "lightdm-gtk-greeter", "marco", "mate-session", "muffin", "mutter", "niri", "nvidia-settings", "picom",
    "plasmashell", "river", "sddm-greeter", "sway", "systemd-logind", "wayfire", "weston", "xdg-desktop-portal",
    "xdg-desktop-portal-gnome", "xfce4-session", "xfwm4",
)  # fmt: skip
"""What draws a desktop, shows it elsewhere, or sets it up."""

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
