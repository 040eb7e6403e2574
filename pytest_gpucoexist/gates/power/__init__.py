"""Power states, temperatures, throttling and power limits."""

UNBUILT: dict[str, str] = {
    "pwr.pin_active": "an action and no check: the session holds a device open; pwr.runtime_status_first records"
    " whether the kernel may suspend it",
}
"""Rows of the catalogue that are not gates, and why."""
