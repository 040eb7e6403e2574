"""Drivers as their libraries see them: whether they answer, count the same devices, and want something done."""

UNBUILT: dict[str, str] = {}
"""Rows of the catalogue that are not gates, and why."""
