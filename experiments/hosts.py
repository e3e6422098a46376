"""Hosts of studies that train a host several times."""

from __future__ import annotations

from dataclasses import replace

from esper.envs.instances import Instance
from esper.runtime.rng import derive_seed


def again(host: Instance, run: int) -> Instance:
    """Return the host with another order of the same data; run 0 has the usual one."""
    return replace(host, order_seed=derive_seed("again", host.order_seed, run)) if run else host
