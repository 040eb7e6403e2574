"""Who holds which device."""
