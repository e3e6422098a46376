"""What growth is paid for. Pure functions of arrays; named components whose sum is the (unscaled) reward.

``paired``: the host against a never-grown twin of itself (same instance, initialisation and data order). With

* S = 100 x mean probability of the right class on val at the present alphas, B = the same of the twin,
* rho = rent of the modules that act on the host,
* Phi = S - B - rho, and Phi = 0 at the start,

a step pays gamma Phi' - Phi, the last step G - Phi and a crash G_c - Phi, where

* G = S^F - B_T - rho^F, with only FOSSILIZED modules on and charged,
* G_c = 100 x chance - B_T - rho - crash_penalty.

So the discounted sum of an episode of T steps is gamma^(T-1) G exactly: there is nothing to farm on the way.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from esper.lifecycle import SlotState, Stage

RENTS: dict[str, Callable[[Tensor], Tensor]] = {"linear": lambda share: share, "log": torch.log1p}
"""Rent as a function of added / host parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Potential:
    """Phi = gap - rent of the present state, all that the next reward needs to know of the past.

    Attributes:
        gap: ``float64 [E]``, S - B.
        rent: ``float64 [E]``.
    """

    gap: Tensor
    rent: Tensor

    @classmethod
    def start(cls, num_envs: int) -> Potential:
        """Phi = 0 everywhere."""
        return cls(gap=torch.zeros(num_envs, dtype=torch.float64), rent=torch.zeros(num_envs, dtype=torch.float64))

    def reset(self, which: Tensor) -> Potential:
        """Phi = 0 in some environments, ``which: bool [E]``."""
        return Potential(gap=self.gap.masked_fill(which, 0.0), rent=self.rent.masked_fill(which, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInputs:
    """What was measured after the epoch of one step; all ``[E]``.

    Attributes:
        score: S' at the present alphas; not read where crashed.
        twin: B' of the same epoch; zeros without a twin.
        rent: rho' of the modules with alpha > 0 or FOSSILIZED.
        ended: bool, this was the last epoch of the episode.
        crashed: bool, the host broke down in this epoch, which ends its episode; wins over ``ended``.
        final_score: S^F, only FOSSILIZED modules on; read where ended.
        final_twin: B_T, the twin after its last epoch; read where ended or crashed.
        final_rent: rho^F, only FOSSILIZED modules charged; read where ended.
        chance_score: score of guessing; read where crashed.
    """

    score: Tensor
    twin: Tensor
    rent: Tensor
    ended: Tensor
    crashed: Tensor
    final_score: Tensor
    final_twin: Tensor
    final_rent: Tensor
    chance_score: Tensor


def charged_parameters(state: SlotState) -> tuple[Tensor, Tensor]:
    """Parameters that pay rent, whole modules whatever their alpha.

    Returns:
        ``int64 [E]`` of the modules with alpha > 0 or FOSSILIZED, and ``int64 [E]`` of the FOSSILIZED ones.
    """
    fossilized = state.stage == Stage.FOSSILIZED
    acting = fossilized | (state.alpha > 0)
    return (state.num_parameters * acting).sum(1), (state.num_parameters * fossilized).sum(1)


def rent(added: Tensor, host: Tensor, weight: float, kind: str) -> Tensor:
    """rho = weight x f(added / host parameters).

    Args:
        added, host: ``[E]``, parameter counts.
        weight: points for doubling the host under ``linear``.
        kind: a key of :data:`RENTS`.

    Returns:
        ``float64 [E]``; exactly 0 where nothing was added.

    Raises:
        ValueError: unknown kind.
    """
    if kind not in RENTS:
        raise ValueError(f"rent '{kind}' is unknown; choose one of {', '.join(RENTS)}")
    return weight * RENTS[kind](added.double() / host.double())


def paired_reward(
    previous: Potential, inputs: RewardInputs, *, gamma: float, crash_penalty: float
) -> tuple[Potential, dict[str, Tensor]]:
    """Rewards of one step, and the potential from which the next one starts (0 where an episode ended).

    Args:
        previous: potential before the step.
        inputs: measurements after its epoch.
        gamma: the discount under which the sum telescopes; that of the learner.
        crash_penalty: points taken for a crash, on top of falling to chance.

    Returns:
        The next potential and components ``float64 [E]``: ``gain``, ``rent`` and ``crash``.
    """
    crashed = inputs.crashed
    ended = inputs.ended & ~crashed
    over = ended | crashed
    # Scores first, twins after: where both are equal the gap is exactly 0, and so is every reward.
    gap = inputs.score.double() - inputs.twin.double()
    gap = torch.where(ended, inputs.final_score.double() - inputs.final_twin.double(), gap)
    gap = torch.where(crashed, inputs.chance_score.double() - inputs.final_twin.double(), gap)
    charge = torch.where(ended, inputs.final_rent.double(), inputs.rent.double())
    # The last step pays what the episode is worth, not its discounted promise.
    discount = torch.full_like(gap, gamma).masked_fill(over, 1.0)
    components = {
        "gain": discount * gap - previous.gap,
        "rent": previous.rent - discount * charge,
        "crash": torch.zeros_like(gap).masked_fill(crashed, -crash_penalty),
    }
    return Potential(gap=gap, rent=charge).reset(over), components


def total(components: Mapping[str, Tensor]) -> Tensor:
    """Sum of the components, ``float64 [E]``, before any scaling."""
    return torch.stack(tuple(components.values())).sum(0)


def probability_score(probability: Tensor, loss: Tensor, random_loss: Tensor) -> Tensor:
    """100 x mean probability of the right class: smooth where accuracy moves in steps.

    Args:
        probability: ``float [E]``.
        loss, random_loss: not read; other families score the loss.
    """
    return 100 * probability.double()


class RewardStep(Protocol):
    """See :func:`paired_reward`."""

    def __call__(
        self, previous: Potential, inputs: RewardInputs, *, gamma: float, crash_penalty: float
    ) -> tuple[Potential, dict[str, Tensor]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFamily:
    """How a validation becomes a score, and scores become rewards.

    Attributes:
        score: (mean probability of the right class, loss, loss of guessing), ``[E]`` each, to S ``float64 [E]``. The
            twin and guessing itself are scored by the same function.
        step: potential and measurements to the next potential and reward components.
    """

    score: Callable[[Tensor, Tensor, Tensor], Tensor]
    step: RewardStep


REWARDS: dict[str, RewardFamily] = {"paired": RewardFamily(score=probability_score, step=paired_reward)}


def reward_family(name: str) -> RewardFamily:
    """The family of that name.

    Raises:
        ValueError: unknown name.
    """
    if name not in REWARDS:
        raise ValueError(f"reward family '{name}' is unknown; choose one of {', '.join(REWARDS)}")
    return REWARDS[name]
