"""Validation of a user's network, and of the configurations that it is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
from torch import nn

from esper.grower.distributed import Replicas
from esper.grower.modules import SeedModules
from esper.grower.place import Flow
from esper.grower.scores import Score, check_score
from esper.grower.statistics import RecentBatches
from esper.grower.untouched import untouched
from esper.growth import SlotState
from esper.population import Questions, Scores, Valuation

_BROKEN = {"points": math.nan, "loss": math.inf, "accuracy": math.nan}
"""Score of a network whose loss is not finite."""


def validate(
    model: nn.Module,
    modules: SeedModules,
    slots: Sequence[str],
    state: SlotState,
    questions: Questions,
    batches: RecentBatches,
    evaluate: Callable[[], Score],
    replicas: Replicas,
) -> tuple[Score, Valuation]:
    """Score a network in every requested configuration, and restore it.

    Configurations other than the present one use their own batch norm statistics.

    Args:
        model: model with its places.
        modules: seed modules of the model.
        slots: paths of their places.
        state: state of one environment.
        questions: requested measurements.
        batches: batches for the statistics.
        evaluate: a user's validation.
        replicas: replicas of the network, whose scores are averaged.

    Raises:
        TypeError, ValueError: ``evaluate`` does not return a score, or compares configurations without running what
            differs in them.
    """
    developing = state.developing[0].tolist()
    ran, idle = set[int](), set[int]()

    def scored(alpha: Sequence[float], present: bool) -> Score:
        flows = modules.configuration(alpha, developing, preview=not present)
        with batches.closed(), modules.flowing(flows), untouched(model, modes=True):
            if not present:
                batches.reestimate()
            modules.have_run()
            score = check_score(evaluate())
            if math.isfinite(score.loss):
                here = modules.have_run()
                ran.update(here)
                idle.update(slot for slot, flow in enumerate(flows) if flow != Flow.OFF and slot not in here)
            return score

    scores = [scored(state.alpha[0].tolist(), True)]
    scores += [scored(alpha, False) for alpha in questions.rows.alpha.tolist()]
    if len(scores) > 1 and idle:
        raise ValueError(
            f"evaluate: it ran the model without {slots[min(idle)]!r}, whose module it cannot measure: leave that slot "
            "out, or switch off what passes it by in evaluation (torch.backends.mha.set_fastpath_enabled(False))"
            if ran
            else "evaluate: it did not run the model that grows, in which modules are switched off and on to compare "
            "them, but perhaps a copy or an average of it: let it score the model itself"
        )
    score, *others = replicas.mean_scores(scores)
    return score, questions.read(_columns([score]), _columns(others) if others else None)


def _columns(scores: Sequence[Score]) -> Scores:
    """Convert scores to tensors, ``float64 [n]`` each."""
    rows = [asdict(score) if math.isfinite(score.loss) else _BROKEN for score in scores]
    columns = (torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in _BROKEN)
    return Scores(*columns)
