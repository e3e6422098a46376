"""From the words of a command line to running processes: entry points, sweeps, ranks."""
