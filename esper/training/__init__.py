"""Training a controller: one run from its start to its report."""
