"""The machine under a run: devices, ranks, precision, random streams, signals, and the folder that a run writes."""
