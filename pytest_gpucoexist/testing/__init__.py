"""Build, load and break machines in tests of your own."""
