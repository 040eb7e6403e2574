"""Lines that drivers log as errors on machines that are well, none of which says anything about computing.

Each is about a display, a firmware part that a board does not have, or a control channel of USB-C. They are known to
their drivers' sources, and to the logs of people whose machines work: elFarto/nvidia-vaapi-driver#41 (modeset
ownership), MrChromebox/firmware#74 (FIFO underrun), i915's intel_dp.c (source OUI), NVIDIA's README on `nvidia-gpu`.
"""

from __future__ import annotations

import re

__all__ = ["is_harmless"]

_LINES = (
    # Displays of Intel's drivers.
    r"FIFO underrun",
    r"Failed to (?:read|write) source OUI",
    r"\bAUX [\w/ ]+: (?:not done|did not complete|timeout)",
    r"[Aa]tomic update failure on pipe",
    r"GSC proxy component didn't bind",
    r"LSPCON|lspcon",
    # Displays of amdgpu and radeon.
    r"BIOS signature incorrect",
    r"SECUREDISPLAY: query securedisplay TA failed|Secure display: Generic Failure",
    r"REG_WAIT timeout .* dcn\d+_|REG_WAIT timeout .* - \w*(?:otg|dpp|hubp|optc|dccg|compbuf|link)\w*",
    r"dpcd_set_link_settings|displayport link status failed|clock recovery (?:failed|reached max)",
    r"\bEDID\b",
    r"SMU driver if version not matched",
    r"optional \w+ ta ucode is not available",
    r"Failed to retrieve minimum clocks",
    # Displays and control channels of NVIDIA's cards.
    r"Failed to grab modeset ownership",
    r"Failed detecting connected display devices",
    r"left-over mappings in IOVAS",
    r"nvidia-gpu [0-9a-f:.]+: i2c timeout error|i2c_transfer failed",
    r"Persistence mode is deprecated",
    r"Cannot find any crtc or sizes|No compatible format found",
    # A sound function of a card.
    r"azx_get_response timeout",
)
_HARMLESS = re.compile("|".join(_LINES))


def is_harmless(message: str) -> bool:
    """Whether a line is known to be logged by machines that are well.

    >>> is_harmless("i915 0000:00:02.0: [drm] *ERROR* CPU pipe A FIFO underrun")
    True
    """
    return _HARMLESS.search(message) is not None
