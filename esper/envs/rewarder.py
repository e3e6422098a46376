"""Rewards of E environments for an epoch: scores of their hosts minus those of their never-grown twins, minus rent.

Axis legend: E = environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from esper.envs.breakdowns import Breakdown, guessing
from esper.envs.instances import Instance
from esper.envs.records import EnvSettings
from esper.envs.rewards import (
    Potential,
    RewardFamily,
    RewardInputs,
    charged_parameters,
    compute_component,
    furthest_stage,
    rent,
    total,
)
from esper.envs.twins import TwinCache
from esper.growth import SlotState
from esper.population import Scores, Valuation
from esper.runtime.state import State, plain_fields
from esper.runtime.user_code import UsersCodeError, is_ours, named, of_the_user
from esper.tasks import TaskData

COMPUTE = "compute"
"""Name of the component that charges training FLOPs; it exists only where they have a price."""


class Rewarder:
    """Conversion of measurements to reward components, with the past values that the next reward needs.

    Args:
        num_envs: E.
        task: task, which determines the score of guessing.
        twins: curves of never-grown twins, or ``None`` for B = 0.
        family: reward family.
        settings: growth of rent, shaping and discount.
    """

    def __init__(
        self, num_envs: int, task: TaskData, *, twins: TwinCache | None, family: RewardFamily, settings: EnvSettings
    ) -> None:
        self.twins, self.family, self.settings = twins, family, settings
        guess = guessing(task)
        self._guess = Scores(*(each.expand(num_envs) for each in (guess.points, guess.loss, guess.accuracy)))
        self.potential = Potential.start(num_envs)

    def reset(self, which: Tensor, instances: Sequence[Instance]) -> None:
        """Start new episodes with these instances, whose twins must be known, in the environments ``which: bool
        [E]``.
        """
        if self.twins is not None:
            self.twins.require(instances)
        self.potential = self.potential.reset(which)

    def pay(
        self,
        valuation: Valuation,
        state: SlotState,
        host_parameters: Tensor,
        rents: Tensor,
        instances: Sequence[Instance],
        epoch: Tensor,
        num_epochs: int,
        *,
        breakdown: Tensor,
        spent: tuple[Tensor, Tensor],
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Compute the components of the reward for one epoch.

        Args:
            valuation: measurements after it.
            state: state of the slots.
            host_parameters: ``int64 [E]``.
            rents: ``float64 [E]``, points that doubling each host must earn.
            instances: instance of each environment.
            epoch: ``int64 [E]``, number of the epoch in its episode.
            num_epochs: epochs of an episode.
            breakdown: ``int64 [E]``, a :class:`Breakdown`: cause of a crash in this epoch, if any.
            spent: ``float64 [E]`` each, training FLOPs beyond the twin's before and after this epoch, as for
                :func:`compute_component`.

        Returns:
            Points ``float64 [E]`` by name of component, finite, and breakdowns ``int64 [E]``: the given ones, and
            those of hosts whose reward would not be finite.
        """
        settings = self.settings
        acting, kept = charged_parameters(state)
        twin, final_twin, twin_crashed = self._twin_scores(instances, epoch, num_epochs)
        inputs = RewardInputs(
            score=self._score(valuation.scores),
            twin=twin,
            off=self._score(valuation.off),
            rent=rent(acting, host_parameters, rents, settings.rent_kind),
            stage=settings.stage_shaping * furthest_stage(state),
            ended=epoch + 1 >= num_epochs,
            crashed=breakdown != Breakdown.NONE,
            final_score=self._score(valuation.kept),
            final_twin=final_twin,
            twin_crashed=twin_crashed,
            final_rent=rent(kept, host_parameters, rents, settings.rent_kind),
            chance_score=self._score(self._guess),
        )
        potential, components = self._step(inputs)
        # With every module off, or all but the kept ones, the host may give numbers that are not finite.
        unpaid = ~(settings.reward_scale * total(components)).float().isfinite()
        if unpaid.any():
            breakdown = torch.where(unpaid & ~inputs.crashed, int(Breakdown.REWARD), breakdown)
            potential, components = self._step(replace(inputs, crashed=inputs.crashed | unpaid))
            # A user's reward family may return anything for a crash; it affects this environment only.
            components = {name: torch.where(value.isfinite(), value, 0.0) for name, value in components.items()}
            potential = potential.reset(unpaid)
        self.potential = potential
        if settings.compute_weight:
            over = inputs.ended | (breakdown != Breakdown.NONE)
            components[COMPUTE] = compute_component(*spent, over, weight=settings.compute_weight, gamma=settings.gamma)
        return components, breakdown

    def test_returns(
        self,
        tested: Scores,
        state: SlotState,
        host_parameters: Tensor,
        rents: Tensor,
        instances: Sequence[Instance],
        spent: Tensor,
    ) -> Tensor | None:
        """Compute the worth of final networks on test images, ``float64 [E]``: what the value of an episode is on val.

        ``None`` for families that compare a host with itself, which is not done on test.

        Args:
            tested: scores with only FOSSILIZED modules on.
            state, host_parameters, rents, instances: as for :meth:`pay`.
            spent: ``float64 [E]``, training FLOPs beyond the twin's in the whole episode, as for
                :func:`compute_component`.
        """
        if self.family.reads_off:
            return None
        _, kept = charged_parameters(state)
        twin = 0.0 if self.twins is None else self._score(self.twins.tested(instances))
        worth = self._score(tested) - twin - rent(kept, host_parameters, rents, self.settings.rent_kind)
        return worth - self.settings.compute_weight * spent if self.settings.compute_weight else worth

    def _step(self, inputs: RewardInputs) -> tuple[Potential, dict[str, Tensor]]:
        settings = self.settings
        step = partial(self.family.step, gamma=settings.gamma, crash_penalty=settings.crash_penalty)
        if is_ours(self.family.step):
            return step(self.potential, inputs)
        what = f"reward.family: step of {named(self.family.step)}"
        with of_the_user(what):
            paid = step(self.potential, inputs)
        check_paid(what, paid, len(inputs.rent))
        if settings.compute_weight and COMPUTE in paid[1]:
            raise UsersCodeError(f"{what}: the component {COMPUTE!r} is that of reward.compute_weight: rename yours")
        return paid

    def _score(self, scores: Scores) -> Tensor:
        if is_ours(self.family.score):
            return self.family.score(scores, self._guess)
        what = f"reward.family: score of {named(self.family.score)}"
        with of_the_user(what):
            score = self.family.score(scores, self._guess)
        check_per_environment(what, score, len(scores.loss))
        return score

    def _twin_scores(
        self, instances: Sequence[Instance], epoch: Tensor, num_epochs: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the twins' scores after this epoch and after their last one, and which crashed; zeros without
        twins.
        """
        if self.twins is None:
            nothing = torch.zeros_like(self._guess.loss)
            return nothing, nothing, nothing.bool()
        now, last = epoch.tolist(), [num_epochs - 1] * len(instances)
        scores, final = (self._score(self.twins.after(instances, epochs)) for epochs in (now, last))
        return scores, final, torch.tensor([self.twins[instance].crashed for instance in instances])

    def state_dict(self) -> State:
        """Return the potential, each part with a leading environment axis."""
        return plain_fields(self.potential)

    def load_state_dict(self, state: State) -> None:
        """Restore the potential."""
        self.potential = Potential(**state)


def check_paid(what: str, paid: object, num_envs: int) -> None:
    """Refuse a result of a user's reward that is not a potential and components for all environments.

    Raises:
        UsersCodeError: begins with ``what``.
    """
    if not isinstance(paid, tuple) or len(paid) != 2:
        raise UsersCodeError(f"{what} must return a Potential and components by name, not a {type(paid).__name__}")
    potential, components = paid
    if not isinstance(potential, Potential):
        raise UsersCodeError(f"{what} must return a Potential first, not a {type(potential).__name__}")
    if not isinstance(components, dict) or not components or not all(isinstance(name, str) for name in components):
        raise UsersCodeError(f"{what} must return components by name second, not {components!r:.40}")
    for name, value in {**plain_fields(potential), **components}.items():
        check_per_environment(f"{what}: {name}", value, num_envs)


def check_per_environment(what: str, value: object, num_envs: int) -> None:
    """Refuse a value that is not one number per environment; errors as for :func:`check_paid`."""
    if not isinstance(value, Tensor):
        raise UsersCodeError(f"{what} must be a tensor float [{num_envs}], not a {type(value).__name__}")
    if not value.is_floating_point() or list(value.shape) != [num_envs] or value.device.type != "cpu":
        found = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} on {value.device.type}"
        raise UsersCodeError(f"{what} must be float [{num_envs}] on the cpu, got {found}")
