"""Gates of the levels `transfer` and `full`: described, so that ids and limits are settled; their checks copy data."""
