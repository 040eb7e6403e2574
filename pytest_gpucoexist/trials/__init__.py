"""Trying the devices: verified and timed copies within a budget, for the gates of levels transfer and full."""
