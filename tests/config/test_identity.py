"""One definition of "the same configuration": relevant keys for each purpose, and names and tunings that stay valid."""

from __future__ import annotations

from typing import Any

import pytest

from esper.config import compose, to_plain
from esper.config.identity import (
    FREE_ON_RESUME,
    NOT_IN_FOLDERS,
    NOT_IN_REPORTS,
    NOT_OF_A_RUN,
    differences,
    digest,
    fingerprint,
    flat,
    without,
)
from tests.tiers import few

SMOKE = ("+preset=smoke", "seed=4")

PLAIN: dict[str, Any] = {"b": {"y": 1, "x": [1, {"z": 2}]}, "a": None, "observation": {"num_features": 7, "c": {}}}


def test_nested_values_are_flattened_and_thinned() -> None:
    assert flat({"a": {"b": 1, "c": {}}, "d": [1, 2]}) == {"a.b": 1, "a.c": {}, "d": [1, 2]}
    assert without(PLAIN, ("a", "b.y", "observation")) == {"b": {"x": [1, {"z": 2}]}}
    assert without(PLAIN, ()) == PLAIN


def test_letters_are_those_of_folders_and_tunings_that_exist() -> None:
    assert digest(PLAIN) == digest(dict(reversed(PLAIN.items()))) == "e35769ea"
    assert digest(PLAIN, "ppo.lr=0.1", length=16) == "b89b8f0a2c577e26"


@pytest.mark.parametrize(
    ("word", "of_a_run", "on_resume", "folders", "reports", "tunings"),
    [
        ("name=x", 0, 0, 0, 0, 0),
        ("telemetry.plots=false", 0, 0, 0, 0, 0),
        ("seed=5", 1, 1, 1, 0, 0),
        ("devices=[cpu,cpu]", 1, 0, 0, 0, 0),
        ("evaluation.num_hosts=3", 1, 0, 1, 1, 0),
        ("trainer.num_iterations=9", 1, 0, 1, 1, 0),
        ("trainer.checkpoint_every=2", 1, 0, 1, 0, 0),
        ("ppo.lr=0.1", 1, 1, 1, 1, 0),
        ("algorithm=a2c", 1, 1, 1, 1, 0),
        ("env.mapping=loop", 0, 0, 1, 0, 0),
        ("slots.embargo_epochs=2", 1, 1, 1, 1, 1),
        ("instances.num_held_out=9", 1, 1, 1, 1, 0),
        ("instances.num_train=9", 1, 1, 1, 1, 1),
    ],
)
@few(5)
def test_each_purpose_has_its_own_keys(
    word: str, of_a_run: int, on_resume: int, folders: int, reports: int, tunings: int
) -> None:
    """A key distinguishes configurations or not, by purpose; the mapping chosen by ``auto`` never does."""
    asked, saved = to_plain(compose(*SMOKE)), to_plain(compose(*SMOKE, word))
    for ignored, counts in ((NOT_OF_A_RUN, of_a_run), (FREE_ON_RESUME, on_resume)):
        assert len(differences(saved, asked, ignored)) == counts, word
    for ignored, counts in ((NOT_IN_FOLDERS, folders), (NOT_IN_REPORTS, reports)):
        assert (without(saved, ignored) != without(asked, ignored)) == counts, word
    assert (fingerprint(saved) != fingerprint(asked)) == tunings, word
