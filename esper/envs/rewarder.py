"""Pays E environments for an epoch: their hosts' scores against those of their never-grown twins, less rent.

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


class Rewarder:
    """Turns measurements into reward components, and keeps what the next reward needs to know of the past.

    Args:
        num_envs: E.
        task: says what guessing scores.
        twins: curves of never-grown twins, or ``None`` for B = 0.
        family: reward family.
        settings: rent, shaping and discount.
    """

    def __init__(
        self, num_envs: int, task: TaskData, *, twins: TwinCache | None, family: RewardFamily, settings: EnvSettings
    ) -> None:
        self.twins, self.family, self.settings = twins, family, settings
        guess = guessing(task)
        self._guess = Scores(*(each.expand(num_envs) for each in (guess.points, guess.loss, guess.accuracy)))
        self.potential = Potential.start(num_envs)

    def reset(self, which: Tensor, instances: Sequence[Instance]) -> None:
        """New episodes in some environments, ``which: bool [E]``, of these instances: their twins must be known."""
        if self.twins is not None:
            self.twins.require(instances)
        self.potential = self.potential.reset(which)

    def pay(
        self,
        valuation: Valuation,
        state: SlotState,
        host_parameters: Tensor,
        instances: Sequence[Instance],
        epoch: Tensor,
        num_epochs: int,
        *,
        breakdown: Tensor,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Components of the reward for one epoch.

        Args:
            valuation: what was measured after it.
            state: of the slots.
            host_parameters: ``int64 [E]``.
            instances: what each environment grows.
            epoch: ``int64 [E]``, number of the epoch in its episode.
            num_epochs: that an episode has.
            breakdown: ``int64 [E]``, a :class:`Breakdown`: how the host broke down in this epoch, if it did.

        Returns:
            Points ``float64 [E]`` by name of component, finite, and breakdowns ``int64 [E]``: those given, and those of
            hosts that could not be paid because what they would be paid is not finite.
        """
        settings = self.settings
        acting, kept = charged_parameters(state)
        twin, final_twin, twin_crashed = self._twin_scores(instances, epoch, num_epochs)
        inputs = RewardInputs(
            score=self._score(valuation.scores),
            twin=twin,
            off=self._score(valuation.off),
            rent=rent(acting, host_parameters, settings.rent_weight, settings.rent_kind),
            stage=settings.stage_shaping * furthest_stage(state),
            ended=epoch + 1 >= num_epochs,
            crashed=breakdown != Breakdown.NONE,
            final_score=self._score(valuation.kept),
            final_twin=final_twin,
            twin_crashed=twin_crashed,
            final_rent=rent(kept, host_parameters, settings.rent_weight, settings.rent_kind),
            chance_score=self._score(self._guess),
        )
        potential, components = self._step(inputs)
        # With every module off, or all but the kept ones, a host may break down that does not as it stands.
        unpaid = ~(settings.reward_scale * total(components)).float().isfinite()
        if unpaid.any():
            breakdown = torch.where(unpaid & ~inputs.crashed, int(Breakdown.REWARD), breakdown)
            potential, components = self._step(replace(inputs, crashed=inputs.crashed | unpaid))
            # Whatever a reward family of the user's makes of a crash, it stays with the environment.
            components = {name: torch.where(value.isfinite(), value, 0.0) for name, value in components.items()}
            potential = potential.reset(unpaid)
        self.potential = potential
        return components, breakdown

    def _step(self, inputs: RewardInputs) -> tuple[Potential, dict[str, Tensor]]:
        settings = self.settings
        step = partial(self.family.step, gamma=settings.gamma, crash_penalty=settings.crash_penalty)
        if is_ours(self.family.step):
            return step(self.potential, inputs)
        what = f"reward.family: step of {named(self.family.step)}"
        with of_the_user(what):
            paid = step(self.potential, inputs)
        check_paid(what, paid, len(inputs.rent))
        return paid

    def _score(self, scores: Scores) -> Tensor:
        return self._scored(scores.points, scores.loss)

    def _scored(self, points: Tensor, loss: Tensor) -> Tensor:
        if is_ours(self.family.score):
            return self.family.score(points / 100.0, loss, self._guess.loss)
        what = f"reward.family: score of {named(self.family.score)}"
        with of_the_user(what):
            score = self.family.score(points / 100.0, loss, self._guess.loss)
        check_per_environment(what, score, len(loss))
        return score

    def _twin_scores(
        self, instances: Sequence[Instance], epoch: Tensor, num_epochs: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of the twins: scores after this epoch and after their last one, and which broke down; zeros without twins."""
        if self.twins is None:
            nothing = torch.zeros_like(self._guess.loss)
            return nothing, nothing, nothing.bool()
        both = []
        for epochs in (epoch.tolist(), [num_epochs - 1] * len(instances)):
            points, loss = self.twins.after(instances, epochs)
            both.append(self._scored(points, loss))
        return both[0], both[1], torch.tensor([self.twins[instance].crashed for instance in instances])

    def state_dict(self) -> State:
        """The potential, a leading environment axis each."""
        return plain_fields(self.potential)

    def load_state_dict(self, state: State) -> None:
        """Go on from there."""
        self.potential = Potential(**state)


def check_paid(what: str, paid: object, num_envs: int) -> None:
    """Refuse what is no potential and no components of all environments.

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
    """Refuse what is no number for each environment; errors as for :func:`check_paid`."""
    if not isinstance(value, Tensor):
        raise UsersCodeError(f"{what} must be a tensor float [{num_envs}], not a {type(value).__name__}")
    if not value.is_floating_point() or list(value.shape) != [num_envs] or value.device.type != "cpu":
        found = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} on {value.device.type}"
        raise UsersCodeError(f"{what} must be float [{num_envs}] on the cpu, got {found}")
