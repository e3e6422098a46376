"""Building of an experiment's parts from a configuration, and the checks before that."""
