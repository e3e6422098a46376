"""The module that does nothing: no parameters, no choice for the policy unless a host family registers it."""

from __future__ import annotations

from torch import nn


def build(channels: int) -> nn.Module:
    """Identity, for a place of any width."""
    return nn.Identity()
