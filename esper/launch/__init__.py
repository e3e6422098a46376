"""Launching: from the arguments of a command line to running processes, with entry points, sweeps and ranks."""
