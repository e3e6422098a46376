"""The study of transfer trains each network with each controller, and compares controllers seed by seed."""

from __future__ import annotations

import pytest

from experiments.own_network.__main__ import CONTROLLERS, SHIPPED, grow, table
from experiments.own_network.networks import NETWORKS
from tests.tiers import few


@pytest.mark.parametrize("network", NETWORKS)
@few(2)
def test_a_network_that_does_not_grow_is_the_same_under_every_controller(network: str) -> None:
    rows = [grow(network, controller, 3, epochs=1) for controller in CONTROLLERS]
    assert len({(row["test_accuracy"], row["host_parameters"]) for row in rows}) == 1
    assert all(row["added_parameters"] == 0 and row["kept"] == "" for row in rows)


def test_differences_are_taken_seed_by_seed() -> None:
    rows = [
        {
            "network": "net",
            "controller": controller,
            "seed": seed,
            "test_accuracy": 0.5 + 0.1 * seed - worse,
            "host_parameters": 100,
            "added_parameters": 30 * seed,
            "kept": "stem:norm+layer1:norm" if seed else "",
        }
        for controller, worse in ((SHIPPED, 0.0), ("never", 0.25))
        for seed in range(3)
    ]
    shipped, never = table(rows).splitlines()[2:]
    assert shipped == f"| net, 100 parameters | {SHIPPED} | 60.0 [35.2, 84.8] |  | 30 | 1.33 |"
    assert never == "| net, 100 parameters | never | 35.0 [10.2, 59.8] | +25.0 [+25.0, +25.0] | 30 | 1.33 |"
