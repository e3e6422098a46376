"""The page of the configuration: it equals what the dataclasses say, and its ranges are those that are checked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from esper.config import Config, compose, to_plain
from esper.config.identity import flat
from esper.config.reference import Key, _changed, keys, page


@pytest.fixture(scope="module")
def found() -> dict[str, Key]:
    return {key.name: key for key in keys(Config, _changed(Config()))}


def test_the_page_is_that_of_the_dataclasses() -> None:
    there = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")
    assert there == page(), "python -m esper.config.reference > docs/configuration.md"


def test_every_key_of_a_run_is_there(found: dict[str, Key]) -> None:
    entries = ("evaluation.schedule.", "instances.families.")
    assert {key for key in flat(to_plain(compose())) if not key.startswith(entries)} <= set(found)


@pytest.mark.parametrize(
    ("key", "limits"),
    [
        ("ppo.gamma", "0 to 1"),
        ("ppo.lr", "> 0"),
        ("trainer.num_envs", "≥ 1"),
        ("task.vocab_size", "≥ 258"),
        ("num_threads", "≥ 0, ≤ 4096"),
        ("ppo.num_minibatches", "≥ 1, ≤ `trainer.num_envs`"),
        ("amp", "`off`, `bf16`, `fp16`"),
        ("ppo.entropy_multipliers.slot", "≥ 0"),
        ("name", ""),
    ],
)
def test_a_range_is_the_one_that_is_checked(found: dict[str, Key], key: str, limits: str) -> None:
    assert found[key].range == limits


def test_types_and_defaults_are_in_words(found: dict[str, Key]) -> None:
    shown = [dataclasses.astuple(found[key])[1:3] for key in ("slots.ids", "instances.families", "policy.compile")]
    assert shown == [("list of text or null", "null"), ("numbers by name", "{}"), ("true or false", "false")]
