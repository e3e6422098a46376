"""A score model that replaces hosts: the value of growth on hosts that are starved in different places.

The gain of every blueprint in every slot was measured on the hosts of the preset ``digits_pays``
(``experiments/growth_pays/LANDSCAPE.md``). The rest loosely follows observations of digit hosts: a higher value of
early growth, noise of scores and previews, dependence of hosts on modules, and slot probes. Points are of the smooth
score, 100 x mean probability of the right class.

Axis legend: E = environments, N = instances of a pool, F = families, S = slots, B = blueprints.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from esper.config import compose
from esper.config.root import Config
from esper.envs.instances import InstancePool
from esper.envs.rewards import Potential, RewardInputs, charged_parameters, paired_reward, rent, total
from esper.growth import Applied, SlotState, Stage
from esper.growth.actions import NUM_BLUEPRINTS, Blueprint
from esper.population.probes import NUM_PROBES, PROBE_NAMES
from esper.runtime.options import Rent
from esper.runtime.rng import generator
from experiments.surrogate.simulated import CNN_PARAMETERS, HOST_PARAMETERS, Outcome

PRESET = "digits_pays"
LANDSCAPE = Path(__file__).parents[1] / "growth_pays" / "LANDSCAPE.md"
NUM_SLOTS = 3

_CONFIG = compose(f"+preset={PRESET}")
NUM_EPOCHS = _CONFIG.env.num_epochs
RENT_WEIGHT = _CONFIG.reward.rent_weight
WEIGHTS = {name: weight for name, weight in sorted(_CONFIG.instances.families.items()) if weight}
FAMILIES = tuple(WEIGHTS)

_BASE = {
    "centre_tap_all": 27,
    "few_classes": 96,
    "intact": 92,
    "starved_0+centre_tap_12": 46,
    "starved_1+centre_tap_12": 44,
    "starved_2": 65,
}
BASE = torch.tensor([_BASE[name] for name in FAMILIES], dtype=torch.float64)
"""Typical score of a host that never grows, by family."""


def measured_gains(page: str) -> Tensor:
    """Read the gain of a module that is present from the first epoch to the last, in points, ``float64 [F, S, B]``.

    Args:
        page: text of LANDSCAPE.md.
    """
    gains = torch.zeros(len(FAMILIES), NUM_SLOTS, NUM_BLUEPRINTS, dtype=torch.float64)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "slot" in line[:8]]
    families = rows[0][2:]
    for place, _, *cells in rows[1:]:
        slot, blueprint = place.removeprefix("slot ").split(", ")
        for family, cell in zip(families, cells, strict=True):
            row = gains[FAMILIES.index(family), int(slot)]
            row[Blueprint[blueprint.upper()]] = float(cell.split(" / ")[0])
    return gains


GAINS = measured_gains(LANDSCAPE.read_text(encoding="utf-8"))

BEST = 98.0
"""Upper bound of a host's score, whatever it grows."""
MATURING_EPOCHS = 10.0
INSTANCE_SPREAD = 0.2
"""Standard deviation of an instance's log gain."""
MODULE_SPREAD = 0.1
EPOCH_NOISE = 0.8
PREVIEW_SHARE, PREVIEW_NOISE = 0.3, 1.2
DEPENDENCE, DEPENDENCE_EPOCHS = 5.0, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """A pool of hosts.

    Attributes:
        family: ``int64 [N]``, indices into :data:`FAMILIES`.
        gains: ``float64 [N, S, B]``, points gained by a module that is present from the first epoch to the last.
        base: ``float64 [N]``, score of the never-grown host.
        probes: ``float64 [N, S, 4]``.
    """

    family: Tensor
    gains: Tensor
    base: Tensor
    probes: Tensor

    @classmethod
    def draw(cls, count: int, split: str) -> Instances:
        """Draw ``count`` instances of the split ``train`` or ``held_out``, with the preset's mix of families."""
        pool = InstancePool.build(WEIGHTS, count, split, host_family="cnn", num_blocks=NUM_SLOTS, num_classes=10)
        family = torch.tensor([FAMILIES.index(instance.family) for instance in pool])
        stream = generator("surrogate", split)

        def noise(*shape: int) -> Tensor:
            return torch.randn(count, *shape, generator=stream, dtype=torch.float64)

        gains = GAINS[family] * (INSTANCE_SPREAD * noise(NUM_SLOTS)).exp().unsqueeze(-1)
        base = (BASE[family] + 3 * noise()).clamp(max=BEST - 1)
        gains = gains.minimum((BEST - base)[:, None, None])
        return cls(
            family=family,
            gains=gains,
            base=base,
            probes=_probes(family, gains[..., Blueprint.CONV_LIGHT], noise(NUM_SLOTS, NUM_PROBES)),
        )


def _probes(family: Tensor, gains: Tensor, noise: Tensor) -> Tensor:
    """Simulate slot probes: dead channels and rank reveal a starved block, gradient norm and first-order gain are weak
    hints.
    """
    starved = torch.tensor([[f"starved_{slot}" in name for slot in range(NUM_SLOTS)] for name in FAMILIES])[family]
    centre_tap = torch.tensor(["centre_tap" in name for name in FAMILIES])[family]
    values = {
        "dead_channels": torch.where(starved, 0.75, 0.1 + 0.06 * noise[..., 0]),
        "effective_rank": torch.where(starved, 0.25, 0.35 - 0.1 * centre_tap[:, None].double() + 0.06 * noise[..., 1]),
        "log_gradient_norm": 0.2 * noise[..., 2],
        "log_first_order_gain": 0.15 * gains.clamp(min=0).log1p() + 0.2 * noise[..., 3],
    }
    return torch.stack([values[name] for name in PROBE_NAMES], -1)


def maturity(age: Tensor) -> Tensor:
    """Return the share of its gain that a module has reached, by trained epochs; 1 if present from the start."""
    whole = torch.tensor(-NUM_EPOCHS / MATURING_EPOCHS, dtype=torch.float64)
    return torch.expm1(-age.double() / MATURING_EPOCHS) / torch.expm1(whole)


def plan_returns(instances: Instances) -> Tensor:
    """Return the expected return of growing one module in the first epoch and keeping it, in points, ``float64 [N, S,
    B]``.
    """
    parameters = torch.zeros(NUM_BLUEPRINTS, dtype=torch.float64)
    parameters[list(CNN_PARAMETERS)] = torch.tensor(list(CNN_PARAMETERS.values()), dtype=torch.float64)
    worth = instances.gains - RENT_WEIGHT * parameters / HOST_PARAMETERS
    return worth.masked_fill(parameters == 0, -torch.inf)


def fixed_return(instances: Instances) -> float:
    """Return the mean return of the best single plan."""
    return float(plan_returns(instances).mean(0).max())


def family_plans(instances: Instances) -> list[tuple[int, int] | None]:
    """Return the plan of a family-aware oracle for each instance: slot and blueprint, or ``None`` for never growing."""
    plans = plan_returns(instances)
    chosen = []
    for family in instances.family.tolist():
        mean = plans[instances.family == family].mean(0)
        chosen.append(divmod(int(mean.argmax()), NUM_BLUEPRINTS) if mean.max() > 0 else None)
    return chosen


def oracle_return(instances: Instances) -> float:
    """Return the mean return of the best plan of each family."""
    returns = plan_returns(instances)
    earned = [float(row[plan]) for row, plan in zip(returns, family_plans(instances), strict=True) if plan]
    return sum(earned) / len(returns)


class GrowthWorld:
    """Simulated hosts of a pool, with a paired reward for growth.

    Args:
        instances: the pool.
        num_envs: E, at most N.
        stream: generator of draws and noise.
        config: discount, reward terms and observed slot probes.
        in_order: give instance e to environment e.
    """

    def __init__(
        self, instances: Instances, num_envs: int, stream: torch.Generator, config: Config, *, in_order: bool = False
    ) -> None:
        self.instances, self.num_envs, self.in_order = instances, num_envs, in_order
        self._stream, self._config = stream, config
        self.slot_probes = tuple(config.observation.slot_probes)
        self._columns = [PROBE_NAMES.index(name) for name in self.slot_probes]
        self._host = torch.full((num_envs,), HOST_PARAMETERS)
        self.begin()

    def begin(self) -> None:
        order = torch.randperm(len(self.instances.family), generator=self._stream)
        self.drawn = torch.arange(self.num_envs) if self.in_order else order[: self.num_envs]
        self._gains, self._base = self.instances.gains[self.drawn], self.instances.base[self.drawn]
        self._seen = self.instances.probes[self.drawn]
        self._quality = torch.ones(self.num_envs, NUM_SLOTS, dtype=torch.float64)
        self._potential = Potential.start(self.num_envs)

    def probes(self) -> Tensor:
        return (self._seen + 0.03 * self._noise(NUM_SLOTS, NUM_PROBES))[..., self._columns]

    def live(self, state: SlotState, applied: Applied, epoch: int, ended: bool) -> Outcome:
        self._quality = torch.where(applied.germinated, (MODULE_SPREAD * self._noise(NUM_SLOTS)).exp(), self._quality)
        gains = self._gains.gather(-1, state.blueprint.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        worth = torch.where(state.present, gains * self._quality * maturity(state.age), 0.0)
        kept = state.stage == Stage.FOSSILIZED
        gap, final = self._points(worth * state.alpha), self._points(worth * state.alpha * kept)
        acting, charged = charged_parameters(state)
        nothing = torch.zeros_like(gap)
        self._potential, components = paired_reward(
            self._potential,
            RewardInputs(
                score=gap,
                twin=nothing,
                off=nothing,
                rent=rent(acting, self._host, RENT_WEIGHT, Rent.linear),
                stage=nothing,
                ended=torch.full((self.num_envs,), ended),
                crashed=torch.zeros(self.num_envs, dtype=torch.bool),
                final_score=final,
                final_twin=nothing,
                twin_crashed=torch.zeros(self.num_envs, dtype=torch.bool),
                final_rent=rent(charged, self._host, RENT_WEIGHT, Rent.linear),
                chance_score=nothing,
            ),
            gamma=self._config.ppo.gamma,
            crash_penalty=0.0,
        )
        score = (self._base * -torch.expm1(torch.tensor(-epoch / 5.0)) + gap) / 100
        accuracy = (score + 0.05 + 0.015 * self._noise()).clamp(0.1, 0.98)
        return Outcome(
            reward=self._config.reward.scale * total(components),
            contribution=self._contribution(state, worth),
            loss=2.3 * (1 - score).clamp(min=0.02) ** 1.2,
            accuracy=accuracy,
        )

    def _points(self, worth: Tensor) -> Tensor:
        """Return points over the never-grown host, ``float64 [E]``: modules share the possible gain, and noise is
        added.
        """
        room = (BEST - self._base)[:, None]
        joint = room[:, 0] * (1 - (1 - (worth / room).clamp(max=1)).prod(1))
        return torch.where((worth != 0).any(1), joint + EPOCH_NOISE * self._noise(), 0.0)

    def _contribution(self, state: SlotState, worth: Tensor) -> Tensor:
        """Return contributions: previews of incubated modules, and the loss from switching off blended ones."""
        preview = PREVIEW_SHARE * worth + PREVIEW_NOISE * self._noise(NUM_SLOTS)
        leaning = -torch.expm1(-(state.age - 3).clamp(min=0).double() / DEPENDENCE_EPOCHS) * DEPENDENCE
        blended = state.alpha * (worth + leaning) + self._noise(NUM_SLOTS)
        return torch.where(state.developing, preview, blended)

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(self.num_envs, *shape, generator=self._stream, dtype=torch.float64)
