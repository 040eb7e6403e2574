"""Pure values and rules. Nothing here does I/O; only the standard library is imported."""
