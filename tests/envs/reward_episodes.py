"""Scripted curves of one environment, rewarded by any family, to test the arithmetic alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from hypothesis import strategies as st
from torch import Tensor

from esper.envs.rewards import REWARDS, Potential, RewardInputs, total

NAN = float("nan")
CHANCE = {"paired": 10.0, "loss": -100.0, "contribution": 10.0}
PENALTY = 7.0


def column(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Measurements after each step; quantities that a step must not read are NaN."""

    scores: Sequence[float]
    twins: Sequence[float]
    rents: Sequence[float]
    offs: Sequence[float] = ()
    stages: Sequence[float] = ()
    final_score: float = NAN
    final_rent: float = NAN
    final_twin: float = NAN
    crashed: bool = False
    twin_crashed: bool = False

    def worth(self, family: str = "paired") -> float:
        """Return G, or G_c after a crash, from the definitions."""
        if self.crashed:
            ground = {
                "paired": CHANCE["paired"] - self.final_twin,
                "loss": min(CHANCE["loss"], self.final_twin) - self.final_twin,
                "contribution": 0.0,
            }
            return ground[family] - self.rents[-1] - (0 if self.twin_crashed else PENALTY)
        base = self.offs[-1] if family == "contribution" else self.final_twin
        return self.final_score - base - self.final_rent

    def inputs(self, t: int, family: str = "paired") -> RewardInputs:
        last = t == len(self.scores) - 1
        crashed = self.crashed and last
        compared = family == "contribution"
        return RewardInputs(
            score=column(NAN if crashed else self.scores[t]),
            twin=column(NAN if crashed or compared else self.twins[t]),
            off=column(NAN if crashed or not compared else self.offs[t]),
            rent=column(self.rents[t]),
            stage=column(self.stages[t] if self.stages else 0.0),
            ended=torch.tensor([last]),
            crashed=torch.tensor([crashed]),
            final_score=column(self.final_score if last else NAN),
            final_twin=column(self.final_twin if last and not compared else NAN),
            twin_crashed=torch.tensor([self.twin_crashed]),
            final_rent=column(self.final_rent if last else NAN),
            chance_score=column(NAN if compared else CHANCE[family]),
        )

    def components(self, gamma: float = 1.0, family: str = "paired") -> list[dict[str, float]]:
        potential, components = Potential.start(1), []
        for t in range(len(self.scores)):
            step = REWARDS[family].step
            potential, parts = step(potential, self.inputs(t, family), gamma=gamma, crash_penalty=PENALTY)
            components.append({name: part.item() for name, part in parts.items()} | {"total": total(parts).item()})
        for field in fields(potential):
            assert getattr(potential, field.name).item() == 0, "the next episode starts at 0"
        return components

    def rewards(self, gamma: float = 1.0, family: str = "paired") -> list[float]:
        return [parts["total"] for parts in self.components(gamma, family)]

    def paid(self, gamma: float = 1.0, family: str = "paired") -> float:
        """Return the discounted sum of rewards."""
        return discounted(self.rewards(gamma, family), gamma)


def discounted(rewards: Sequence[float], gamma: float) -> float:
    return sum(gamma**t * reward for t, reward in enumerate(rewards))


points = st.floats(-300, 100, allow_nan=False)
"""Scores of every family: a loss has no floor."""


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    length = draw(st.integers(1, 12))

    def curve(values: st.SearchStrategy[float] = points) -> list[float]:
        return draw(st.lists(values, min_size=length, max_size=length))

    crashed = draw(st.booleans())
    return Episode(
        scores=curve(),
        twins=curve(),
        offs=curve(),
        rents=curve(st.floats(0, 100)),
        stages=curve(st.integers(0, 5).map(float)),
        crashed=crashed,
        final_twin=draw(points),
        final_score=NAN if crashed else draw(points),
        final_rent=NAN if crashed else draw(st.floats(0, 100)),
        twin_crashed=draw(st.booleans()),
    )
