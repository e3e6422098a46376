"""Parameters of a rule that cannot be tuned are refused in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from esper.controllers import Never, Space, rule


@dataclass(frozen=True)
class Patience:
    epochs: int = 3


@dataclass(frozen=True)
class Unfinished:
    epochs: int


def build(rows: Sequence[Any], space: Space) -> Never:
    return Never()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (Unfinished, r"rule: .*Unfinished\.epochs has no default"),
        (dict, "rule: the parameters must be a dataclass, got <class 'dict'>"),
    ],
)
def test_parameters_without_defaults_are_refused_when_they_are_registered(
    parameters: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        rule(parameters, lambda space: {}, build)


def test_choices_of_a_field_that_there_is_not_are_refused_before_the_search() -> None:
    space = Space(("a",), torch.ones(1, 1, dtype=torch.bool), max_seeds=1, num_epochs=4)
    tunable = rule(Patience, lambda space: {"epoch": [1]}, build)
    with pytest.raises(ValueError, match=r"field of .*Patience: unknown 'epoch'.*; choose from epochs"):
        tunable.search(SimpleNamespace(space=space, rule=None), "patience")  # type: ignore[arg-type]
