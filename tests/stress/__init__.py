"""Several sessions and users on the devices of one machine, while things go wrong: never two holders."""
