"""Read a kernel log as text and say what in it matters to a GPU: no file, device or clock is touched here."""
