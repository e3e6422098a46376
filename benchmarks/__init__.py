"""Benchmarks of Esper's speed and memory against plain PyTorch, measured in the same run."""
