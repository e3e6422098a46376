"""The supervised bandit as a controller: ``plugins=[experiments.digits_mixed.bandit]`` registers ``bandit``.

It reads the slot probes and the price before the first epoch, predicts what every plan would gain, and grows the one of
highest gain less price: germinates a module in each epoch, linear and fast, and fossilizes each as soon as that is
legal. ``bandit_cull`` grows the same, and culls in the end what contributes less than it costs.

``python -m experiments.digits_mixed.bandit``, from the repository's root, writes what they learn from: random networks
of training hosts, as measured by :mod:`experiments.digits_mixed.landscape`.

Axis legend: E = environments, S = slots, F = slot probes, P = plans, B = blueprints, T = training episodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesRegressor
from torch import Tensor

from esper.blueprints import blueprint_ids, build_blueprint
from esper.controllers import ControllerContext, germinate, on_slot, register_controller, waiting
from esper.envs.features import NUM_BASE_FEATURES, NUM_SLOT_FEATURES
from esper.envs.records import EnvView
from esper.growth.actions import OP_CULL, OP_FOSSILIZE, OP_GERMINATE, Head, Op
from esper.population.probes import PROBE_NAMES
from esper.runtime.state import State, copied
from esper.runtime.terminal import secure
from experiments.digits_mixed.returns import Pair, Plan
from experiments.digits_mixed.rivals import Array, Bandit, Episodes, all_plans

KNOWN = Path("outputs/digits_mixed/bandit.npz")
KIND = "forest"
NOTHING = -1
JUDGED_AT = 30
"""Trained epochs, of the preset's 40, after which ``bandit_cull`` keeps or culls what it has grown."""


@dataclass(frozen=True, slots=True)
class Learned:
    """A fitted bandit with its plans.

    Attributes:
        bandit: predicts the gain of each plan.
        plans: ``int64 [P, S]``, blueprints, -1 for an empty slot.
        shares: ``[P]``, added parameters as a share of a host without faults.
        smaller: predicts from probes by how much smaller a host is, whose dead weights do not count.
    """

    bandit: Bandit
    plans: Tensor
    shares: Array
    smaller: ExtraTreesRegressor

    def choose(self, probes: Array, rents: Array) -> Tensor:
        """Return the plans of highest predicted return, ``int64 [n, S]``.

        Args:
            probes: ``[n, S, F]``.
            rents: ``[n]``.
        """
        gains = self.bandit.predict(probes)
        gains[:, (self.plans == NOTHING).all(1).numpy()] = 0.0
        return self.plans[(gains - self.units(probes, rents)[:, None] * self.shares).argmax(1)]

    def units(self, probes: Array, rents: Array) -> Array:
        """Return the points that as many parameters as a host without faults has would cost, ``[n]``."""
        return rents * self.smaller.predict(probes.reshape(len(probes), -1))

    def share(self, slot: int, blueprint: int) -> float:
        """Return the parameters of one module as a share of a host without faults; ``blueprint`` by number."""
        alone = torch.full((self.plans.shape[1],), NOTHING)
        alone[slot] = blueprint
        return float(self.shares[int((self.plans == alone).all(1).nonzero()[0])])


@cache
def learned(path: Path) -> Learned:
    """Fit the bandit to the networks in a file.

    Raises:
        ValueError: there is no such file.
    """
    if not path.exists():
        raise ValueError(f"no {path}, from which 'bandit' learns: run python -m experiments.digits_mixed.bandit first")
    with np.load(path) as known:
        names, shares = [str(name) for name in known["names"]], known["shares"]
        rows = [tuple(None if own == NOTHING else names[own] for own in row) for row in known["plans"].tolist()]
        episodes = Episodes(known["hosts"], known["probes"], rows, known["gains"])
        probes, smaller = known["probes"].reshape(len(rows), -1), known["smaller"]
    plans = all_plans(names, len(shares))
    ids = blueprint_ids()
    return Learned(
        Bandit(KIND, plans, names).fit(episodes),
        torch.tensor([[NOTHING if own is None else ids.index(own) for own in plan] for plan in plans]),
        np.array([nominal(plan, names, shares) for plan in plans]),
        ExtraTreesRegressor(100, random_state=0).fit(probes[smaller > 0], smaller[smaller > 0]),
    )


def nominal(plan: Plan, names: Sequence[str], shares: Array) -> float:
    """Return the parameters that a plan adds as a share of a host without faults; ``shares`` are ``[S, B]``."""
    return sum(float(shares[slot, names.index(own)]) for slot, own in enumerate(plan) if own is not None)


class PlanController:
    """The controller that grows a plan chosen before the first epoch: a module an epoch, each kept as soon as legal.

    Args:
        num_envs: E.
        num_slots: S.
        choose: returns the plans of some environments, ``int64 [n, S]``, from what is seen and ``bool [E]``.
    """

    name = "plan"

    def __init__(self, num_envs: int, num_slots: int, choose: Callable[[EnvView, Tensor], Tensor]) -> None:
        self._choose = choose
        self._wanted = torch.full((num_envs, num_slots), NOTHING)

    def reset(self, which: Tensor) -> None:
        self._wanted[which] = NOTHING

    def state_dict(self) -> State:
        return {"wanted": copied(self._wanted)}

    def load_state_dict(self, state: State) -> None:
        self._wanted = copied(state["wanted"])

    def act(self, view: EnvView) -> Tensor:
        fresh = view.history.epoch == 0
        if fresh.any():
            self._wanted[fresh] = self._choose(view, fresh)
        masks, actions = view.observation.masks, waiting(view.state.num_envs)
        ripe, free = masks.slot[:, OP_FOSSILIZE], masks.slot[:, OP_GERMINATE] & (self._wanted != NOTHING)
        for env in (ripe | free).any(1).nonzero().flatten().tolist():
            if not free[env].any():
                actions[env] = on_slot(Op.FOSSILIZE, int(ripe[env].long().argmax()))
                continue
            slot = int(free[env].long().argmax())
            actions[env] = germinate(slot, int(self._wanted[env, slot]))
            self._wanted[env, slot] = NOTHING
        return actions


class BanditController(PlanController):
    """The controller that grows what a bandit chooses before the first epoch.

    Args:
        num_envs: E.
        num_slots: S.
        learned: the bandit.
    """

    name = "bandit"

    def __init__(self, num_envs: int, num_slots: int, learned: Learned) -> None:
        super().__init__(num_envs, num_slots, lambda view, which: learned.choose(*_seen(view, which)))
        self._learned = learned


class CullingBandit(BanditController):
    """The controller that grows what a bandit chooses, and keeps in the end what contributes as much as it costs.

    From :data:`JUDGED_AT` on it culls the module whose measured contribution falls farthest below its price, one an
    epoch, and fossilizes the others once none is left that does.
    """

    name = "bandit_cull"

    def __init__(self, num_envs: int, num_slots: int, learned: Learned) -> None:
        super().__init__(num_envs, num_slots, learned)
        self._units = torch.zeros(num_envs, dtype=torch.float64)

    def state_dict(self) -> State:
        return {**super().state_dict(), "units": copied(self._units)}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._units = copied(state["units"])

    def act(self, view: EnvView) -> Tensor:
        fresh = view.history.epoch == 0
        if fresh.any():
            self._units[fresh] = torch.from_numpy(self._learned.units(*_seen(view, fresh)))
        actions, masks = super().act(view), view.observation.masks
        for env in (actions[:, Head.OP] == Op.FOSSILIZE).nonzero().flatten().tolist():
            actions[env] = 0
            ripe = masks.slot[env, OP_FOSSILIZE].nonzero().flatten().tolist()
            gain = {slot: float(view.state.contribution[env, slot]) - self._price(view, env, slot) for slot in ripe}
            worst, best = min(ripe, key=gain.__getitem__), max(ripe, key=gain.__getitem__)
            if view.history.epoch[env] < JUDGED_AT:
                continue
            if gain[worst] < 0 and masks.slot[env, OP_CULL, worst]:
                actions[env] = on_slot(Op.CULL, worst)
            elif gain[best] >= 0:
                actions[env] = on_slot(Op.FOSSILIZE, best)
        return actions

    def _price(self, view: EnvView, env: int, slot: int) -> float:
        return float(self._units[env]) * self._learned.share(slot, int(view.state.blueprint[env, slot]))


def _seen(view: EnvView, which: Tensor) -> tuple[Array, Array]:
    """Return the slot probes ``[n, S, F]`` and prices ``[n]`` of the environments ``which: bool [E]``."""
    if view.slot_probes != PROBE_NAMES or view.rents is None:
        raise ValueError(f"'bandit' reads observation.slot_probes=[{','.join(PROBE_NAMES)}] and observation.price=true")
    num_slots = len(view.slot_ids)
    first = NUM_BASE_FEATURES + NUM_SLOT_FEATURES * num_slots
    columns = view.observation.features[which, first : first + num_slots * len(PROBE_NAMES)]
    return columns.double().view(-1, num_slots, len(PROBE_NAMES)).numpy(), view.rents[which].numpy()


def build(context: ControllerContext) -> BanditController:
    """Build the controller from the file of networks that the bandit learns from."""
    return BanditController(context.num_envs, context.space.num_slots, learned(KNOWN))


def build_culling(context: ControllerContext) -> CullingBandit:
    """Build the controller that culls in the end, from the same file."""
    return CullingBandit(context.num_envs, context.space.num_slots, learned(KNOWN))


register_controller("bandit", build)
register_controller("bandit_cull", build_culling)


def main() -> None:
    """Write the networks that the bandit learns from, measuring those that are missing."""
    from experiments.digits_mixed.landscape import FOUND, Study  # not above: a run needs no study

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=300, help="random plans on training hosts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(FOUND)
    known, host = study.episodes(options.episodes), study.experiment.host
    names = study.blueprints
    whole = sum(value.numel() for _, value in host.named_host_parameters())
    places = [host.place(slot_id).site for slot_id in study.experiment.slot_ids]
    sizes = [
        [sum(value.numel() for value in build_blueprint(family, name, width).parameters()) for name in names]
        for family, width in places
    ]
    shares, hosts = np.array(sizes) / whole, study.hosts("train", study.experiment.config.instances.num_train)
    pairs = [Pair(plan=plan, instance=hosts[row]) for row, plan in zip(known.hosts, known.plans, strict=True)]
    own = np.array([score.share for score in study.networks.scores(pairs)])
    usual = np.array([nominal(plan, names, shares) for plan in known.plans])
    KNOWN.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        KNOWN,
        names=np.array(names),
        shares=shares,
        smaller=np.divide(own, usual, out=np.zeros_like(own), where=usual > 0),
        hosts=known.hosts,
        probes=known.probes,
        plans=np.array([[NOTHING if own is None else names.index(own) for own in plan] for plan in known.plans]),
        gains=known.gains,
    )


if __name__ == "__main__":
    secure()
    main()
