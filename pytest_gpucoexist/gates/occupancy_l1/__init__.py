"""Who uses the GPUs, as the drivers tell it: processes and memory of others."""

UNBUILT: dict[str, str] = {}
"""Rows of the catalogue that are not gates, and why."""
