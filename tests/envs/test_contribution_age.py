"""Contributions measured every k-th epoch: carried in between, ageing, and never counted as new at a gate."""

from __future__ import annotations

import pytest
import torch
from helpers import action, small_env, small_experiment, waits
from torch import Tensor

from esper.envs.features import feature_table
from esper.growth import Stage
from esper.growth.actions import OP_FOSSILIZE, Op

EPOCHS = 10
GERMINATE = action(Op.GERMINATE, slot=1, blueprint=1, alpha_target=2)
[FRESHNESS] = [feature.index for feature in feature_table(3) if feature.name == "slot1.freshness"]


def grow(**settings: object) -> list[dict[str, Tensor]]:
    """Grow one module in slot 1 of environment 0, and return its measurements after each epoch."""
    env = small_env(small_experiment(f"env.num_epochs={EPOCHS}"), **settings)
    env.reset()
    seen = []
    for epoch in range(EPOCHS):
        result = env.step(waits(3, e0=GERMINATE) if epoch == 0 else waits(3))
        names = ("stage", "contribution", "contribution_age", "measured_since_ramp")
        seen.append({name: getattr(env.state, name)[0, 1].clone() for name in names})
        seen[-1]["freshness"] = result.observation.features[0, FRESHNESS]
        seen[-1]["may keep"] = result.observation.masks.slot[0, OP_FOSSILIZE, 1]
    return seen


@pytest.mark.parametrize("every", [2, 3, 4])
def test_between_measurements_the_last_value_is_carried_and_grows_older(every: int) -> None:
    seen = grow(contributions_every=every, contribution_decay=0.5)
    last = torch.tensor(torch.nan)
    for epoch, now in enumerate(seen, start=1):
        if epoch % every == 0:
            assert now["contribution_age"] == 0
            assert now["contribution"].isfinite()
            assert now["contribution"] != last
            last = now["contribution"]
        elif epoch < every:
            assert now["contribution"].isnan()
            assert now["freshness"] == 0
        else:
            assert now["contribution"] == last
            assert now["contribution_age"] == epoch % every
        if epoch >= every:
            assert now["freshness"] == 0.5 ** (epoch % every)


@pytest.mark.parametrize("every", [1, 2, 4])
def test_fossilize_waits_for_a_measurement_since_the_ramp_ended(every: int) -> None:
    seen = grow(contributions_every=every)
    holding = next(epoch for epoch, now in enumerate(seen, start=1) if now["stage"] == Stage.HOLDING)
    allowed = next(epoch for epoch, now in enumerate(seen, start=1) if now["may keep"])
    assert seen[holding - 1]["contribution"].isfinite(), "there is a preview, which is not enough"
    assert allowed == -(-holding // every) * every
    assert [bool(now["may keep"]) for now in seen] == [epoch >= allowed for epoch in range(1, EPOCHS + 1)]


def test_measured_in_every_epoch_a_contribution_is_always_fresh() -> None:
    """In the default configuration nothing decays, whatever the rate."""
    plain, decaying = grow(), grow(contribution_decay=0.5)
    for now, other in zip(plain, decaying, strict=True):
        assert now["freshness"] == other["freshness"] == 1
        assert now["contribution"] == other["contribution"]
