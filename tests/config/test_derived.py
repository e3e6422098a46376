"""Derived dimensions: displayed and saved, not settable to other values, and not part of a run's identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from helpers import SMALL, small_experiment

from esper.blueprints import blueprint_ids
from esper.config import Config, UsageError, compose, from_yaml, to_plain, to_yaml
from esper.config.identity import COMPUTED, differences, fingerprint
from esper.config.naming import configuration_letters
from esper.envs.features import NUM_BASE_FEATURES, NUM_SLOT_FEATURES, num_features
from esper.experiment.preflight import preflight
from esper.population.probes import NUM_PROBES
from tests.tiers import few

if TYPE_CHECKING:
    from command_line import CommandLine

WIDTH = num_features(3, NUM_PROBES)
PROBES = "observation.slot_probes=[dead_channels,effective_rank]"


@pytest.mark.parametrize("words", [(), ("slots.num_slots=2",), (PROBES,), ("slots.num_slots=1", PROBES)])
@few(2)
def test_the_configuration_says_how_wide_observations_are(words: tuple[str, ...]) -> None:
    config = small_experiment(*words).config
    policy, _ = small_experiment(*words).policy()
    assert config.observation.num_features == policy.num_features
    assert config.observation.num_blueprints == policy.num_blueprints == len(blueprint_ids())
    assert from_yaml(to_yaml(config), Config) == config


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "observation.num_features=100",
            f"observation.num_features must be {WIDTH}, which is {NUM_BASE_FEATURES} and "
            f"{NUM_SLOT_FEATURES + NUM_PROBES} for each of slots.num_slots=3, got 100: leave it",
        ),
        ("observation.num_features=0", f"observation.num_features must be {WIDTH}, "),
        ("observation.num_blueprints=1", "(noop, conv_light, "),
        ("observation.num_blueprints=99", "got 99: leave it out, or name in plugins what registers the others"),
        ("observation.num_features=wide", "observation.num_features must be a whole number, got 'wide'"),
    ],
)
@few(2)
def test_another_number_is_refused_with_the_right_one(esper: CommandLine, word: str, message: str) -> None:
    code, err, runs = esper("+preset=smoke", word, checked=True)
    assert (code, runs, err.count("\n")) == (2, [], 1)
    assert message in err


def test_prices_that_an_observation_cannot_tell_apart_are_refused() -> None:
    seen = "observation.price=true"
    compose(*SMALL, seen, "reward.rent_weights=[0.5,256]")
    compose(*SMALL, "reward.rent_weights=[0.5,257]")
    for word in ("reward.rent_weights=[0.5,257]", "reward.rent_weight=257"):
        with pytest.raises(UsageError, match=r"^observation\.price=true tells prices up to 256 .* up to 257: choose"):
            compose(*SMALL, seen, word)


def test_the_right_numbers_may_be_said() -> None:
    config = compose(*SMALL)
    seen = config.observation
    same = f"observation.num_features={seen.num_features}", f"observation.num_blueprints={seen.num_blueprints}"
    assert compose(*SMALL, *same).observation == seen
    preflight(compose(*SMALL, *same))


def without(config: Config) -> dict[str, Any]:
    plain = to_plain(config)
    for section, name in (key.split(".") for key in COMPUTED):
        del plain[section][name]
    return plain


def test_configurations_from_before_they_were_said_are_the_same_run() -> None:
    """Finished sweeps are recognised, runs resumed, and tunings used."""
    config = compose(*SMALL)
    old = without(config)
    loaded = from_yaml(yaml.safe_dump(old), Config)
    assert loaded == config
    assert configuration_letters(old) == configuration_letters(to_plain(config))
    assert differences(old, to_plain(config)) == []
    assert fingerprint(old) == fingerprint(to_plain(config))


def test_words_that_change_what_they_follow_from_are_told_of_that(esper: CommandLine) -> None:
    """A run that goes on keeps its slots: that is for its own check to say."""
    _, _, [(config, run_dir)] = esper("+preset=smoke", "name=mine")
    assert config.observation.num_features == 133
    (run_dir / "status.json").write_text('{"state": "preempted"}')
    code, err, [(config, _)] = esper("resume=outputs/mine", "slots.num_slots=2")
    assert (code, err) == (0, "")
    assert (config.slots.num_slots, config.observation.num_features) == (2, 99)
