"""Whether the vendors' runtimes load and initialise, each in a process of its own, without making a context."""

UNBUILT: dict[str, str] = {}
"""Rows of the catalogue that are not gates, and why."""
