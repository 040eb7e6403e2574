"""The door to the operating system: this machine, or a recorded one."""
