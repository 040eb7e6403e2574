"""Errors of memory: ECC, remapped rows, retired and bad pages, of the GPUs and of the host."""

UNBUILT: dict[str, str] = {}
"""Rows of the catalogue that are not gates, and why."""
