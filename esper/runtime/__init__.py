"""Runtime environment of a run: devices, ranks, precision, random streams, signals, and the run folder."""
