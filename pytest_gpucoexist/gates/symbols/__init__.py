"""What the interpreter in use would load, by reading ELF files; nothing is loaded."""
