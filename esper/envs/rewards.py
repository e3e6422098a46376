"""Rewards of growth: pure functions of arrays; named components whose sum is the (unscaled) reward.

With S the score of the host at the present alphas, B its baseline, rho the rent of the modules that act on it and Phi =
S - B - rho (0 at the start), a step pays gamma Phi' - Phi, the last step G - Phi and a crash G_c - Phi. G is the same
difference with only FOSSILIZED modules on and charged. So the discounted sum of an episode of T steps is gamma^(T-1) G
exactly (G_c after a crash), and no reward can be collected along the way. Families differ in S, B and G_c:

* ``paired``: S = 100 x mean probability of the right class on val; B = the same of a never-grown twin of the host (same
  instance, initialisation and data order); G_c = 100 x chance - B_T - rho - crash_penalty.
* ``loss``: as ``paired`` with S = -100 L / L_random, so that guessing scores -100 and a perfect host 0. A twin may end
  worse than guessing; a crash then counts as no better than the twin. L counts up to :data:`MAX_LOSS` times that of
  guessing: a host that diverges without crashing would otherwise dominate the learner's statistics.
* ``contribution``: S as in ``paired``; B = the same host in the same validation with every module off, so Phi = -rho
  exactly where no module acts. A crashed host guesses with and without modules: G_c = -rho - crash_penalty. **It
  rewards dependence**: a host adapts to a module, so that even a useless one costs points when it is switched off, and
  no comparison within one network can distinguish that from usefulness. For comparison with the other two. (Never a sum
  of leave-one-out values: modules that need each other would each be paid for all of it.)

A twin that crashes counts as guessing from then on, like any host. If it crashes too, there is no crash penalty: the
host crashes whatever the controller does, so that never growing earns exactly 0 there as well, and crashing sooner no
more than that. Without twins this is unknown, and the penalty always applies.

``reward.compute_weight`` charges training FLOPs to any family: its potential is - weight x the multiply-adds beyond
those of the never-grown twin so far, relative to the twin's whole episode (:func:`compute_component`). No action takes
back what was spent, and a host that breaks down pays for what it was trained until then.

Stage shaping adds gamma Psi' - Psi with Psi = points x stage of the furthest module, and Psi = 0 at the end, to any
family (Ng, Harada and Russell 1999): its discounted sum over an episode is 0.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from esper.growth import SlotState, Stage
from esper.runtime.options import Rent
from esper.runtime.registry import Registry

if TYPE_CHECKING:
    from esper.population import Scores


MAX_LOSS = 10.0
"""Largest loss that ``loss`` distinguishes, as a multiple of that of guessing: the lowest score is -100 times this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Potential:
    """Phi = gap - rent and Psi = stage of the present state, the past values that the next reward needs.

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
        """Return Phi = Psi = 0 for all environments."""
        gap, rent, stage = torch.zeros(3, num_envs, dtype=torch.float64)
        return cls(gap=gap, rent=rent, stage=stage)

    def reset(self, which: Tensor) -> Potential:
        """Return a copy with Phi = Psi = 0 in the environments ``which: bool [E]``."""
        return Potential(
            gap=self.gap.masked_fill(which, 0.0),
            rent=self.rent.masked_fill(which, 0.0),
            stage=self.stage.masked_fill(which, 0.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInputs:
    """Measurements after the epoch of one step; all ``[E]``.

    Attributes:
        score: S' at the present alphas; not read where crashed.
        twin: score of the twin after the same epoch; zeros without a twin.
        off: score of the host with every module off; read by ``contribution`` where not crashed.
        rent: rho' of the modules with alpha > 0 or FOSSILIZED.
        stage: Psi', see :func:`furthest_stage`.
        ended: bool, this was the last epoch of the episode.
        crashed: bool, the host crashed in this epoch, which ends its episode; takes precedence over ``ended``.
        final_score: S^F, only FOSSILIZED modules on; read where ended.
        final_twin: B_T, the twin after its last epoch; read where ended or crashed.
        twin_crashed: bool, the twin crashed in some epoch; read where crashed.
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
    """Count the parameters that pay rent, whole modules whatever their alpha.

    Returns:
        ``int64 [E]`` of the modules with alpha > 0 or FOSSILIZED, and ``int64 [E]`` of the FOSSILIZED ones.
    """
    fossilized = state.stage == Stage.FOSSILIZED
    acting = fossilized | (state.alpha > 0)
    return (state.num_parameters * acting).sum(1), (state.num_parameters * fossilized).sum(1)


def furthest_stage(state: SlotState) -> Tensor:
    """Return the stage of the furthest module, ``int64 [E]``: GERMINATED 1 to FOSSILIZED 5, 0 without a module.

    Fading modules do not count.
    """
    counted = state.live | (state.stage == Stage.FOSSILIZED)
    return ((state.stage - Stage.DORMANT) * counted).amax(1)


def rent(added: Tensor, host: Tensor, weight: Tensor | float, kind: Rent) -> Tensor:
    """Compute rho = weight x f(added / host parameters): the points that these parameters must earn to break even.

    Args:
        added, host: ``[E]``, parameter counts.
        weight: a number or ``float64 [E]``, points of score that as many parameters as the host has must earn to break
            even under ``linear`` (``log``: 0.69 of it), that is, the exchange rate between score and size.
        kind: a key of :data:`RENTS`.

    Returns:
        ``float64 [E]``; exactly 0 where nothing was added.

    Raises:
        ValueError: unknown kind.
    """
    share = added.double() / host.double()
    return weight * (torch.log1p(share) if kind == Rent.log else share)


def compute_component(before: Tensor, now: Tensor, over: Tensor, *, weight: float, gamma: float) -> Tensor:
    """Compute the component of a step that charges training FLOPs; it telescopes like those of the families.

    Args:
        before, now: ``float64 [E]``, multiply-adds beyond those of the never-grown twin after as many epochs, relative
            to the twin's whole episode, before the step and after it.
        over: ``bool [E]``, the step ends an episode.
        weight: points for as many multiply-adds as the bare host's whole episode takes.
        gamma: as for :func:`paired_reward`.

    Returns:
        ``float64 [E]``, exactly 0 where nothing was ever spent on modules. The discounted sum over an episode of T
        steps is -gamma^(T-1) x weight x what was spent beyond the twin.
    """
    discount = torch.full_like(now, gamma).masked_fill(over, 1.0)
    return weight * before - discount * (weight * now)


def paired_reward(
    previous: Potential, inputs: RewardInputs, *, gamma: float, crash_penalty: float
) -> tuple[Potential, dict[str, Tensor]]:
    """Compute the reward of a host relative to its never-grown twin, step by step.

    Args:
        previous: potential before the step.
        inputs: measurements after its epoch.
        gamma: the discount under which the sum telescopes; that of the learner.
        crash_penalty: points taken for a crash unless the twin crashes too, on top of falling to chance.

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
    """Compute the reward like :func:`paired_reward`, but with a crash never better than a twin that ends worse than
    guessing.
    """
    guess = torch.minimum(inputs.chance_score, inputs.final_twin)
    return paired_reward(previous, replace(inputs, chance_score=guess), gamma=gamma, crash_penalty=crash_penalty)


def contribution_reward(
    previous: Potential, inputs: RewardInputs, *, gamma: float, crash_penalty: float
) -> tuple[Potential, dict[str, Tensor]]:
    """Compute the reward of a host relative to itself with every module off. Rewards dependence too; see the module's
    docstring.

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
    """Compute reward components as differences of potentials, whose discounted sum over an episode depends on its end
    alone. The gaps are ``[E]`` each: after an ordinary step, after the last one, and after a crash.

    A gap between equal scores is exactly 0, and so is every gain.
    """
    crashed = inputs.crashed
    ended = inputs.ended & ~crashed
    over = ended | crashed
    gap = torch.where(crashed, crash_gap, torch.where(ended, final_gap, gap))
    charge = torch.where(ended, inputs.final_rent.double(), inputs.rent.double())
    stage = inputs.stage.double().masked_fill(over, 0.0)
    # The last step pays the value of the episode itself, not a discounted potential.
    discount = torch.full_like(gap, gamma).masked_fill(over, 1.0)
    components = {
        "gain": discount * gap - previous.gap,
        "rent": previous.rent - discount * charge,
        "stage": gamma * stage - previous.stage,
        "crash": torch.zeros_like(gap).masked_fill(crashed & ~inputs.twin_crashed, -crash_penalty),
    }
    return Potential(gap=gap, rent=charge, stage=stage).reset(over), components


def total(components: Mapping[str, Tensor]) -> Tensor:
    """Sum the components, ``float64 [E]``, before any scaling."""
    return torch.stack(tuple(components.values())).sum(0)


def points_score(scores: Scores, guess: Scores) -> Tensor:
    """Return 100 x mean probability of the right class, which is smooth where accuracy changes in steps.

    Args:
        scores: scores of the hosts, ``[E]`` each.
        guess: not used here; another family compares with it.
    """
    return scores.points.double()


def loss_score(scores: Scores, guess: Scores) -> Tensor:
    """Return -100 x loss / loss of guessing: -100 for guessing, 0 for a perfect host, at least -100 x :data:`MAX_LOSS`.

    Args:
        scores: scores of the hosts, ``[E]`` each.
        guess: scores of guessing, ``[E]`` each.
    """
    return (-100 * scores.loss.double() / guess.loss.double()).clamp(min=-100 * MAX_LOSS)


class RewardStep(Protocol):
    """Type of the reward function of a family; see :func:`paired_reward`."""

    def __call__(
        self, previous: Potential, inputs: RewardInputs, *, gamma: float, crash_penalty: float
    ) -> tuple[Potential, dict[str, Tensor]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFamily:
    """A family of rewards: the score of a validation, and the reward of scores.

    Attributes:
        score: scores of hosts and of guessing, ``[E]`` each, to S ``float64 [E]``. The twin and guessing itself are
            scored by the same function.
        step: potential and measurements to the next potential and reward components.
        reads_off: true if ``step`` reads the score with every module off, which may need an extra pass.
    """

    score: Callable[[Scores, Scores], Tensor]
    step: RewardStep
    reads_off: bool = False


REWARDS: Registry[RewardFamily] = Registry(
    "reward family",
    {
        "paired": RewardFamily(score=points_score, step=paired_reward),
        "loss": RewardFamily(score=loss_score, step=loss_reward),
        "contribution": RewardFamily(score=points_score, step=contribution_reward, reads_off=True),
    },
    functions=lambda family: (family.step, family.score),
)


def register_reward(name: str, family: RewardFamily) -> None:
    """Register a family of rewards, to be selected by ``reward.family``.

    Raises:
        ValueError: a name that is not an identifier or belongs to another family, or an object that is not a family.
    """
    if not isinstance(family, RewardFamily):
        raise ValueError(f"reward family {name!r} must be a RewardFamily, got {family!r}")
    REWARDS.register(name, family)
