"""From a Host to a Machine: probes make observations, `discover` merges them."""
