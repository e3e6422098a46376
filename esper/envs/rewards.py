"""What growth is paid for. Pure functions of arrays; named components whose sum is the (unscaled) reward.

With S the score of the host at the present alphas, B what it is compared with, rho the rent of the modules that act on
it and Phi = S - B - rho (0 at the start), a step pays gamma Phi' - Phi, the last step G - Phi and a crash G_c - Phi. G
is the same difference with only FOSSILIZED modules on and charged. So the discounted sum of an episode of T steps is
gamma^(T-1) G exactly (G_c after a crash): there is nothing to farm on the way. Families differ in S, B and G_c:

* ``paired``: S = 100 x mean probability of the right class on val; B = the same of a never-grown twin of the host (same
  instance, initialisation and data order); G_c = 100 x chance - B_T - rho - crash_penalty.
* ``loss``: as ``paired`` with S = -100 L / L_random, so that guessing scores -100 and a perfect host 0. A twin may end
  worse than guessing; a crash then counts as no better than the twin. L counts up to :data:`MAX_LOSS` times that of
  guessing: a host that diverges without breaking down would drown all others in the learner's statistics.
* ``contribution``: S as in ``paired``; B = the same host in the same validation with every module off, so Phi = -rho
  exactly where no module acts. A crashed host guesses with and without modules: G_c = -rho - crash_penalty. **It pays
  dependence**: a host adapts to a module, so that even a useless one costs points when it is switched off, and no
  comparison within one network can tell that from usefulness. For comparison with the other two. (Never a sum of
  leave-one-out values: modules that need each other would each be paid for all of it.)

A twin that breaks down counts as guessing from then on, like any host that does. Where it breaks down too, no crash
penalty is taken: whatever the controller does, the host breaks down by itself, so that never growing earns exactly 0
there as well, and crashing sooner no more than that. Without twins nobody can tell, and the penalty is always taken.

Stage shaping adds gamma Psi' - Psi with Psi = points x stage of the furthest module, and Psi = 0 at the end, to any
family (Ng, Harada and Russell 1999): its discounted sum over an episode is 0.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from esper.growth import SlotState, Stage

RENTS: dict[str, Callable[[Tensor], Tensor]] = {"linear": lambda share: share, "log": torch.log1p}
"""Rent as a function of added / host parameters."""

MAX_LOSS = 10.0
"""Largest loss that ``loss`` tells apart, as a multiple of that of guessing: the score's floor is -100 times this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Potential:
    """Phi = gap - rent and Psi = stage of the present state, all that the next reward needs to know of the past.

    Attributes:
        gap: ``float64 [E]``, S - B.
        rent: ``float64 [E]``.
        stage: ``float64 [E]``.
    """

    gap: Tensor
    rent: Tensor
    stage: Tensor

    @classmethod
    def start(cls, num_envs: int) -> Potential:
        """Phi = Psi = 0 everywhere."""
        gap, rent, stage = torch.zeros(3, num_envs, dtype=torch.float64)
        return cls(gap=gap, rent=rent, stage=stage)

    def reset(self, which: Tensor) -> Potential:
        """Phi = Psi = 0 in some environments, ``which: bool [E]``."""
        return Potential(
            gap=self.gap.masked_fill(which, 0.0),
            rent=self.rent.masked_fill(which, 0.0),
            stage=self.stage.masked_fill(which, 0.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInputs:
    """What was measured after the epoch of one step; all ``[E]``.

    Attributes:
        score: S' at the present alphas; not read where crashed.
        twin: score of the twin after the same epoch; zeros without a twin.
        off: score of the host with every module off; read by ``contribution`` where not crashed.
        rent: rho' of the modules with alpha > 0 or FOSSILIZED.
        stage: Psi', see :func:`furthest_stage`.
        ended: bool, this was the last epoch of the episode.
        crashed: bool, the host broke down in this epoch, which ends its episode; wins over ``ended``.
        final_score: S^F, only FOSSILIZED modules on; read where ended.
        final_twin: B_T, the twin after its last epoch; read where ended or crashed.
        twin_crashed: bool, the twin broke down in some epoch; read where crashed.
        final_rent: rho^F, only FOSSILIZED modules charged; read where ended.
        chance_score: score of guessing; read where crashed.
    """

    score: Tensor
    twin: Tensor
    off: Tensor
    rent: Tensor
    stage: Tensor
    ended: Tensor
    crashed: Tensor
    final_score: Tensor
    final_twin: Tensor
    twin_crashed: Tensor
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


def furthest_stage(state: SlotState) -> Tensor:
    """Stages that the furthest module has come, ``int64 [E]``: GERMINATED 1 to FOSSILIZED 5, 0 without a module.

    Modules that fade out count no more.
    """
    counted = state.live | (state.stage == Stage.FOSSILIZED)
    return ((state.stage - Stage.DORMANT) * counted).amax(1)


def rent(added: Tensor, host: Tensor, weight: float, kind: str) -> Tensor:
    """rho = weight x f(added / host parameters): what these parameters must earn to break even.

    Args:
        added, host: ``[E]``, parameter counts.
        weight: points of score that as many parameters as the host has must earn to break even under ``linear``
            (``log``: 0.69 of it), and so the exchange rate between score and size.
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
    """The host against its never-grown twin, step by step.

    Args:
        previous: potential before the step.
        inputs: measurements after its epoch.
        gamma: the discount under which the sum telescopes; that of the learner.
        crash_penalty: points taken for a crash that the twin was spared, on top of falling to chance.

    Returns:
        The potential from which the next step starts (0 where an episode ended) and components ``float64 [E]``:
        ``gain``, ``rent``, ``stage`` and ``crash``.
    """
    return _telescoping(
        previous,
        inputs,
        gap=inputs.score.double() - inputs.twin.double(),
        final_gap=inputs.final_score.double() - inputs.final_twin.double(),
        crash_gap=inputs.chance_score.double() - inputs.final_twin.double(),
        gamma=gamma,
        crash_penalty=crash_penalty,
    )


def loss_reward(
    previous: Potential, inputs: RewardInputs, *, gamma: float, crash_penalty: float
) -> tuple[Potential, dict[str, Tensor]]:
    """As :func:`paired_reward`, but a crash is never better than a twin that ends worse than guessing."""
    guess = torch.minimum(inputs.chance_score, inputs.final_twin)
    return paired_reward(previous, replace(inputs, chance_score=guess), gamma=gamma, crash_penalty=crash_penalty)


def contribution_reward(
    previous: Potential, inputs: RewardInputs, *, gamma: float, crash_penalty: float
) -> tuple[Potential, dict[str, Tensor]]:
    """The host against itself with every module off. Pays dependence too; see the module's docstring.

    Arguments and results are those of :func:`paired_reward`; scores of twins and of guessing are not read.
    """
    off = inputs.off.double()
    return _telescoping(
        previous,
        inputs,
        gap=inputs.score.double() - off,
        final_gap=inputs.final_score.double() - off,
        crash_gap=torch.zeros_like(off),
        gamma=gamma,
        crash_penalty=crash_penalty,
    )


def _telescoping(
    previous: Potential,
    inputs: RewardInputs,
    *,
    gap: Tensor,
    final_gap: Tensor,
    crash_gap: Tensor,
    gamma: float,
    crash_penalty: float,
) -> tuple[Potential, dict[str, Tensor]]:
    """Differences of potentials whose gap is ``[E]`` after a step, after the last one or after a crash.

    Where both scores of a gap are equal it is exactly 0, and so is every gain.
    """
    crashed = inputs.crashed
    ended = inputs.ended & ~crashed
    over = ended | crashed
    gap = torch.where(crashed, crash_gap, torch.where(ended, final_gap, gap))
    charge = torch.where(ended, inputs.final_rent.double(), inputs.rent.double())
    stage = inputs.stage.double().masked_fill(over, 0.0)
    # The last step pays what the episode is worth, not its discounted promise.
    discount = torch.full_like(gap, gamma).masked_fill(over, 1.0)
    components = {
        "gain": discount * gap - previous.gap,
        "rent": previous.rent - discount * charge,
        "stage": gamma * stage - previous.stage,
        "crash": torch.zeros_like(gap).masked_fill(crashed & ~inputs.twin_crashed, -crash_penalty),
    }
    return Potential(gap=gap, rent=charge, stage=stage).reset(over), components


def total(components: Mapping[str, Tensor]) -> Tensor:
    """Sum of the components, ``float64 [E]``, before any scaling."""
    return torch.stack(tuple(components.values())).sum(0)


def probability_score(probability: Tensor, loss: Tensor, random_loss: Tensor) -> Tensor:
    """100 x mean probability of the right class: smooth where accuracy moves in steps.

    Args:
        probability: ``float [E]``.
        loss, random_loss: not read; another family scores the loss.
    """
    return 100 * probability.double()


def loss_score(probability: Tensor, loss: Tensor, random_loss: Tensor) -> Tensor:
    """-100 x loss / loss of guessing: -100 for guessing, 0 for a perfect host, never below -100 x :data:`MAX_LOSS`.

    Args:
        probability: not read.
        loss, random_loss: ``float [E]``, nats.
    """
    return (-100 * loss.double() / random_loss.double()).clamp(min=-100 * MAX_LOSS)


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
        reads_off: whether ``step`` reads the score with every module off, which may cost a pass of its own.
    """

    score: Callable[[Tensor, Tensor, Tensor], Tensor]
    step: RewardStep
    reads_off: bool = False


REWARDS: dict[str, RewardFamily] = {
    "paired": RewardFamily(score=probability_score, step=paired_reward),
    "loss": RewardFamily(score=loss_score, step=loss_reward),
    "contribution": RewardFamily(score=probability_score, step=contribution_reward, reads_off=True),
}


def reward_family(name: str) -> RewardFamily:
    """The family of that name.

    Raises:
        ValueError: unknown name, or what a user has registered is no such thing.
    """
    if name not in REWARDS:
        raise ValueError(f"reward family '{name}' is unknown; choose one of {', '.join(REWARDS)}")
    family = REWARDS[name]
    if not isinstance(family, RewardFamily):
        raise ValueError(f"reward.family={name}: a {type(family).__name__} is registered, not a RewardFamily")
    return family
