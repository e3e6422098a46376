"""Two ranks grow one network: the same modules, the same weights, one decision."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import two_ranks
from processes import LIMIT, started
from torch import Tensor

pytestmark = pytest.mark.slow

Found = dict[str, Any]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    folder = tmp_path_factory.mktemp("ranks")
    with ExitStack() as stack:
        commands = [[sys.executable, "-W", "error", two_ranks.__file__, str(rank), str(folder)] for rank in range(2)]
        for process in [stack.enter_context(started(command)) for command in commands]:
            assert process.wait(LIMIT) == 0
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(2)]


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def modules(parameters: dict[str, Tensor]) -> set[str]:
    return {name.split(".esper.")[0] for name in parameters if ".esper." in name}


def test_weights_are_equal_on_both_ranks_after_every_epoch_and_when_finished(pair: list[Found]) -> None:
    """Through all stages, with clipping, and while a loss is not a number on one rank alone."""
    (one, reports), (other, other_reports) = (found["script"] for found in pair)
    assert [distance(first, second) for first, second in zip(one, other, strict=True)] == [0.0] * (two_ranks.EPOCHS + 1)
    assert modules(one[4]) == {"stem", "body.0"}
    assert modules(one[-1]) == {"body.0"}
    assert reports == other_reports
    assert reports["body.0"].stage.name == "FOSSILIZED"


def test_without_the_exchange_they_drift_apart(pair: list[Found]) -> None:
    (one, _), (other, _) = (found["without_exchange"] for found in pair)
    assert distance(one[4], other[4]) > 1e-3


def test_the_first_rank_decides(pair: list[Found]) -> None:
    (one, reports), (other, other_reports) = (found["of_two_minds"] for found in pair)
    assert modules(one[3]) == {"stem"}
    assert [distance(first, second) for first, second in zip(one, other, strict=True)] == [0.0] * (two_ranks.EPOCHS + 1)
    assert reports == other_reports


def test_two_halves_of_a_batch_are_the_batch(pair: list[Found]) -> None:
    for together, alone in zip(pair[0]["as_one"], two_ranks.as_one(0, 1), strict=True):
        assert distance(together, alone) < 1e-9


def test_a_loss_that_runs_the_wrapper_is_refused(pair: list[Found]) -> None:
    for found in pair:
        first, second = found["through_the_wrapper"]
        assert first.startswith("incubate: it runs a DistributedDataParallel, which would wait for its backward")
        assert second.startswith("first_loss: it runs a DistributedDataParallel")
