"""Dimensions that follow from other keys: shown and saved, not to be set otherwise, and no part of what a run is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from helpers import SMALL, small_laboratory

from esper.blueprints import blueprint_ids
from esper.config import Config, compose, from_yaml, summary, to_plain, to_yaml
from esper.config.naming import DERIVED, configuration_letters
from esper.evaluation.tuning.fingerprint import fingerprint
from esper.experiment.preflight import preflight
from esper.experiment.resume import configuration_hash, differences

if TYPE_CHECKING:
    from command_line import CommandLine

PROBES = "observation.slot_probes=[dead_channels,effective_rank]"


@pytest.mark.parametrize("words", [(), ("slots.num_slots=2",), (PROBES,), ("slots.num_slots=1", PROBES)])
def test_the_configuration_says_how_wide_observations_are(words: tuple[str, ...]) -> None:
    config = small_laboratory(*words).config
    policy, _ = small_laboratory(*words).policy()
    assert config.observation.num_features == policy.num_features
    assert config.observation.num_blueprints == policy.num_blueprints == len(blueprint_ids())
    shown = f"num_features={policy.num_features} num_blueprints={policy.num_blueprints}"
    assert shown in summary(config)
    assert from_yaml(to_yaml(config), Config) == config


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "observation.num_features=100",
            "observation.num_features must be 133, which is 31 and 34 for each of slots.num_slots=3, got 100: leave it",
        ),
        ("observation.num_features=0", "observation.num_features must be 133, "),
        ("observation.num_blueprints=1", "(noop, conv_light, "),
        ("observation.num_blueprints=99", "got 99: leave it out, or name in plugins what registers the others"),
        ("observation.num_features=wide", "observation.num_features must be a whole number, got 'wide'"),
    ],
)
def test_another_number_is_refused_with_the_right_one(esper: CommandLine, word: str, message: str) -> None:
    code, err, runs = esper("+preset=smoke", word, checked=True)
    assert (code, runs, err.count("\n")) == (2, [], 1)
    assert message in err


def test_the_right_numbers_may_be_said() -> None:
    config = compose(*SMALL)
    seen = config.observation
    same = f"observation.num_features={seen.num_features}", f"observation.num_blueprints={seen.num_blueprints}"
    assert compose(*SMALL, *same).observation == seen
    preflight(compose(*SMALL, *same))


def without(config: Config) -> dict[str, Any]:
    plain = to_plain(config)
    for section, name in (key.split(".") for key in DERIVED):
        del plain[section][name]
    return plain


def test_configurations_from_before_they_were_said_are_the_same_run() -> None:
    """Finished sweeps are recognised, runs continued, and tunings used."""
    config = compose(*SMALL)
    old = without(config)
    loaded = from_yaml(yaml.safe_dump(old), Config)
    assert loaded == config
    assert configuration_letters(old) == configuration_letters(to_plain(config))
    assert differences(old, config) == []
    assert configuration_hash(loaded) == configuration_hash(config)
    assert fingerprint(loaded) == fingerprint(config)


def test_words_that_change_what_they_follow_from_are_told_of_that(esper: CommandLine) -> None:
    """A run that goes on keeps its slots: that is for its own check to say."""
    _, _, [(config, run_dir)] = esper("+preset=smoke", "name=mine")
    assert config.observation.num_features == 133
    (run_dir / "status.json").write_text('{"state": "preempted"}')
    code, err, [(config, _)] = esper("resume=outputs/mine", "slots.num_slots=2")
    assert (code, err) == (0, "")
    assert (config.slots.num_slots, config.observation.num_features) == (2, 99)
