"""YAML: every file composes, and the effective configuration survives being saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from esper.config import CONF_DIR, Config, compose, from_yaml, to_plain, to_yaml
from tests.tiers import few

PRESETS = sorted(path.stem for path in (CONF_DIR / "preset").glob("*.yaml"))
DEBUGS = sorted(path.stem for path in (CONF_DIR / "debug").glob("*.yaml"))
GLOBAL_FILES = sorted([*(CONF_DIR / "preset").glob("*.yaml"), *(CONF_DIR / "debug").glob("*.yaml")])


def test_the_presets_of_the_manual_are_there() -> None:
    named = {"digits", "digits_deep", "fashion_mnist", "cifar10", "cifar10_deep", "cifar10_impaired", "smoke"}
    assert named <= set(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
@few(8)
def test_every_preset_composes_and_loads(preset: str) -> None:
    assert isinstance(compose(f"+preset={preset}"), Config)


@pytest.mark.parametrize("debug", DEBUGS)
@pytest.mark.parametrize("preset", PRESETS)
@few(5)
def test_every_debug_config_fits_every_preset(preset: str, debug: str) -> None:
    assert isinstance(compose(f"+preset={preset}", f"+debug={debug}"), Config)


@pytest.mark.parametrize("group", ["task", "host"])
def test_every_group_member_composes_and_loads(group: str) -> None:
    members = sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml"))
    assert members
    for member in members:
        assert isinstance(compose(f"{group}={member}"), Config)


@pytest.mark.parametrize("path", GLOBAL_FILES, ids=lambda path: path.stem)
@few(6)
def test_presets_start_with_a_command_that_composes(path: Path) -> None:
    package, command, *_ = path.read_text().splitlines()
    assert package == "# @package _global_"
    assert command.startswith("# python -m esper.train +")
    assert f"+{path.parent.name}={path.stem}" in command
    compose(*command.removeprefix("# python -m esper.train ").split())


@pytest.mark.parametrize("path", GLOBAL_FILES, ids=lambda path: path.stem)
def test_what_a_preset_says_is_what_a_run_gets(path: Path) -> None:
    """A wrong place of ``_self_`` silently loses a preset's values."""
    said = {key: value for key, value in yaml.safe_load(path.read_text()).items() if key != "defaults"}
    got = to_plain(compose(f"+{path.parent.name}={path.stem}"))

    def check(said: dict[str, object], got: dict[str, object]) -> None:
        for key, value in said.items():
            if isinstance(value, dict):
                check(value, got[key])
            elif value is not None:
                assert got[key] == value

    check(said, got)


def test_digits_deep_serves_the_manuals_sweep_over_slot_counts() -> None:
    for num_slots in (1, 3, 5, 8):
        config = compose("+preset=digits_deep", f"slots.num_slots={num_slots}")
        assert (config.slots.num_slots, len(config.host.widths)) == (num_slots, 8)


def test_command_line_wins_over_debug_wins_over_preset() -> None:
    config = compose("+preset=digits", "+debug=fast", "env.num_epochs=6")
    assert (config.env.num_epochs, config.env.steps_per_epoch, config.slots.max_seeds) == (6, 2, 1)


@pytest.mark.parametrize("preset", PRESETS)
@few(5)
def test_a_saved_configuration_loads_to_an_equal_one(preset: str) -> None:
    config = compose(f"+preset={preset}", "telemetry.level=off", "reward.twin=none", "devices=0", "name=null-1")
    text = to_yaml(config)
    assert from_yaml(text, Config) == config
    assert yaml.safe_load(text) == to_plain(config)


def test_a_run_is_named_after_preset_and_rng_seed() -> None:
    assert compose("seed=3").name.startswith("digits-seed3-")
    assert compose("seed=3", "name=mine").name == "mine"
