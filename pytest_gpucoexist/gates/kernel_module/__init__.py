"""Gates of kernel modules: which are loaded, which should be, what is built for this kernel, what tells modprobe."""

from __future__ import annotations

UNBUILT: dict[str, str] = {}
