"""Stage columns of an observation that are ever set, found by random play."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from helpers import Eager
from schema_defaults import growth_rules
from simulated import Simulated, fits_all

from esper.controllers import Controller, RandomLegal
from esper.envs.features import SILENT_STAGES, feature_table
from esper.growth import STAGE_NAMES, GrowthRules
from tests.tiers import few

RULES = (
    growth_rules(max_developing=3, max_seeds=2, min_training_epochs=2, min_cull_age=1, embargo_epochs=2),
    growth_rules(max_developing=1, max_seeds=3, min_training_epochs=1, min_cull_age=1, embargo_epochs=0),
)


def random_player(seed: int) -> Controller:
    return RandomLegal(torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("player", [random_player, Eager])
@pytest.mark.parametrize("rules", RULES)
@few(2)
def test_every_stage_is_seen_in_random_play_but_those_documented(rules: GrowthRules, player: type) -> None:
    simulated, chooser, seen = Simulated(16, fits_all(3), rules), player(0), []
    for _ in range(80):
        view = simulated.view()
        seen.append(view.observation.features)
        simulated.step(chooser.act(view))
    columns = torch.cat(seen)
    for slot in range(3):
        silent = [
            feature.name.removeprefix(f"slot{slot}.stage_")
            for feature in feature_table(3)
            if feature.name.startswith(f"slot{slot}.stage_") and (columns[:, feature.index] == 0).all()
        ]
        assert tuple(silent) == SILENT_STAGES


def test_the_page_names_the_silent_columns() -> None:
    page = (Path(__file__).parents[2] / "docs" / "instances.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"Three of them are always 0, .*? TRAINING first\)", page, re.DOTALL)
    named = [name for name in STAGE_NAMES if f"`{name}`" in sentence]
    assert [name.lower() for name in named] == list(SILENT_STAGES)
