"""Training of a controller: one run from its start to its report."""
