"""From a configuration to the parts of an experiment, and the checks that come before any of them is built."""
