"""Esper grows neural networks while they train, under a controller learned by reinforcement learning."""

__version__ = "0.1.0"
