"""Rivals that choose a network for a host from what is known before its first epoch: fixed plans, rules and bandits.

Axis legend: N = hosts, P = plans, R = prices, K = candidates, S = slots, F = slot probes, T = training episodes, J =
trainings of each network, M = marks in its epochs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import LinearRegression, RidgeCV
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.digits_mixed.returns import Plan

Array = NDArray[np.float64]


def all_plans(blueprints: Sequence[str], num_slots: int) -> list[Plan]:
    """List every choice of a blueprint or nothing for each slot."""
    return list(itertools.product((None, *blueprints), repeat=num_slots))


def few_plans(blueprints: Sequence[str], num_slots: int) -> list[Plan]:
    """List every choice among the first two blueprints, and the others in one slot or in all."""
    plans = all_plans(blueprints[:2], num_slots)
    for name in blueprints[2:]:
        plans += [tuple(name if slot == own else None for slot in range(num_slots)) for own in range(num_slots)]
        plans.append((name,) * num_slots)
    return plans


@dataclass(frozen=True, slots=True)
class Landscape:
    """Returns of plans on hosts, at every price.

    Attributes:
        gains, shares: ``[N, P]``, points over the bare host, and added parameters as a share of the host's.
        prices: ``[R]``.
        probes: ``[N, S, F]``, slot probes before the first epoch.
        joins: ``int [N]``, which hosts have the same faults.
    """

    gains: Array
    shares: Array
    prices: Array
    probes: Array
    joins: NDArray[np.int64]

    @property
    def returns(self) -> Array:
        """Return of each plan, ``[N, R, P]``."""
        returns: Array = self.gains[:, None] - self.prices[None, :, None] * self.shares[:, None]
        return returns

    def of_hosts(self, which: NDArray[np.bool_]) -> Landscape:
        """Return the landscape of some hosts, ``bool [N]``."""
        return Landscape(self.gains[which], self.shares[which], self.prices, self.probes[which], self.joins[which])

    def best(self, gains: Array) -> NDArray[np.int64]:
        """Return the plans of highest return if gains were these, ``[N, R]``."""
        best: NDArray[np.int64] = replace(self, gains=gains).returns.argmax(2)
        return best

    def of(self, choice: NDArray[np.int64]) -> Array:
        """Return what the plans ``choice: [N, R]`` earn, ``[N, R]``."""
        return np.take_along_axis(self.returns, choice[..., None], axis=2)[..., 0]


@dataclass(frozen=True, slots=True)
class Trials:
    """Points in each training J of every plan, after each of M marks and at the end.

    Attributes:
        over_end: ``[J, N, P, M + 1]``, points over the bare host at its end, on average over trainings.
        over_now: ``[J, N, P, M + 1]``, points over the bare host at the same time of the same training.
    """

    over_end: Array
    over_now: Array

    @property
    def gains(self) -> Array:
        """Gain of each plan in each training, ``[J, N, P]``."""
        gains: Array = self.over_end[..., -1]
        return gains


def tried(
    world: Landscape, trials: Trials, order: NDArray[np.int64], marks: Sequence[int], whole: bool = False
) -> Array:
    """Try some plans side by side, and drop the worse half of those left after each mark, at the last all but one.

    The plan that is left earns what its network is worth at the last mark, since the others have used up its epochs.

    Args:
        order: plans to try on each host at each price, ``[N, R, K]``.
        marks: numbers of marks.
        whole: let the plan that is left earn what it is worth at the end instead, as if trials cost nothing.

    Returns:
        ``[N, R]``, on average over trainings.
    """
    earned = []
    for now, end in zip(trials.over_now, trials.over_end, strict=True):
        left = order
        for mark in marks:
            own = np.take_along_axis(replace(world, gains=now[..., mark]).returns, left, axis=2)
            count = 1 if mark == marks[-1] else left.shape[2] // 2
            left = np.take_along_axis(left, (-own).argsort(2)[..., :count], axis=2)
        earned.append(replace(world, gains=end[..., -1 if whole else marks[-1]]).of(left[..., 0]))
    mean: Array = np.mean(earned, axis=0)
    return mean


def left_out(values: Array) -> NDArray[np.int64]:
    """Choose for each host the candidate that is best on average over all the others.

    Args:
        values: ``[N, ..., K]``.

    Returns:
        ``[N, ...]``.
    """
    best: NDArray[np.int64] = (values.sum(0, keepdims=True) - values).argmax(-1)
    return best


def fixed_plan(world: Landscape) -> Array:
    """Play one plan on every host at every price, chosen on the other hosts, ``[N, R]``."""
    returns = world.returns
    best = left_out(returns.mean(1))
    return world.of(np.repeat(best[:, None], len(world.prices), axis=1))


def plan_per_price(world: Landscape) -> Array:
    """Play one plan at each price, chosen on the other hosts, ``[N, R]``."""
    return world.of(left_out(world.returns))


def rules(plans: Sequence[Plan], probes: Array, blueprints: Sequence[str]) -> NDArray[np.int64]:
    """List what every rule does: one blueprint in the slots that look worst by one probe.

    A rule fills the worst one, two or three slots, or those beyond a threshold, at one of seven levels of the probe.
    Rules that need a plan which is not there are left out.

    Args:
        plans: P.
        probes: ``[N, S, F]``.
        blueprints: those to grow.

    Returns:
        Numbers of plans, ``[N, K]``; the first rule grows nothing.
    """
    number = {plan: index for index, plan in enumerate(plans)}
    nothing = number[(None,) * probes.shape[1]]
    num_hosts, num_slots, num_probes = probes.shape
    chosen = [np.zeros((num_hosts, num_slots), dtype=bool)]
    for probe, sign in itertools.product(range(num_probes), (1, -1)):
        values = sign * probes[..., probe]
        ranks = (-values).argsort(1, kind="stable").argsort(1)
        chosen += [ranks < count for count in range(1, num_slots + 1)]
        chosen += [values >= level for level in np.quantile(values, np.linspace(0.125, 0.875, 7))]
    columns = [[nothing] * num_hosts]
    for slots, blueprint in itertools.product(chosen[1:], blueprints):
        own = [tuple(blueprint if full else None for full in row) for row in slots.tolist()]
        if all(plan in number for plan in own):
            columns.append([number[plan] for plan in own])
    return np.array(columns).T


def best_rule(world: Landscape, acts: NDArray[np.int64]) -> Array:
    """Play one rule at each price, chosen on the other hosts, ``[N, R]``.

    Args:
        acts: plans of each rule, ``[N, K]``.
    """
    returns = world.returns
    earned = np.take_along_axis(returns, np.repeat(acts[:, None], len(world.prices), axis=1), axis=2)  # [N, R, K]
    return np.take_along_axis(earned, left_out(earned)[..., None], axis=2)[..., 0]


def plan_features(plans: Sequence[Plan], blueprints: Sequence[str]) -> Array:
    """Encode plans: a one-hot of each slot's blueprint, and all products of two slots' one-hots, ``[P, ...]``."""
    rows = np.array([[own == name for own in plan for name in blueprints] for plan in plans], dtype=np.float64)
    width = len(blueprints)
    pairs = itertools.combinations(range(rows.shape[1] // width), 2)
    products = [
        rows[:, i * width : (i + 1) * width, None] * rows[:, None, j * width : (j + 1) * width] for i, j in pairs
    ]
    return np.concatenate([rows, *(product.reshape(len(rows), -1) for product in products)], axis=1)


def joint_features(probes: Array, coded: Array) -> Array:
    """Combine hosts and plans, ``[n, ...]``: probes, plans, and the products of both.

    Args:
        probes: ``[n, S x F]``, standardised.
        coded: ``[n, ...]``, see :func:`plan_features`.
    """
    products = probes[:, :, None] * coded[:, None, :]
    return np.concatenate([probes, coded, products.reshape(len(probes), -1)], axis=1)


@dataclass(frozen=True, slots=True)
class Episodes:
    """Networks to learn from, one in each row.

    Attributes:
        hosts: ``int [T]``, which rows are of one host.
        probes: ``[T, S, F]``.
        plans: T.
        gains: ``[T]``.
    """

    hosts: NDArray[np.int64]
    probes: Array
    plans: list[Plan]
    gains: Array

    def and_of(self, world: Landscape, plans: Sequence[Plan]) -> Episodes:
        """Add every network of a landscape, whose hosts are others."""
        count = len(world.gains)
        first = self.hosts.max(initial=-1) + 1
        return Episodes(
            np.concatenate([self.hosts, np.repeat(np.arange(first, first + count), len(plans))]),
            np.concatenate([self.probes, np.repeat(world.probes, len(plans), axis=0)]),
            [*self.plans, *(plan for _ in range(count) for plan in plans)],
            np.concatenate([self.gains, world.gains.flatten()]),
        )


class Bandit:
    """Regression of a plan's gain on the initial observation; it plays the plan of the highest predicted return.

    The price enters by its known formula, so that only the gain must be learned.

    Args:
        kind: ``ridge`` (its penalty chosen by errors on hosts left out), ``mlp`` (mean of five), or ``forest``.
        plans: P, those to choose among.
        blueprints: those that plans may name.
    """

    def __init__(self, kind: str, plans: Sequence[Plan], blueprints: Sequence[str]) -> None:
        self._kind, self._plans, self._blueprints = kind, plans, blueprints
        self._scale, self._models = StandardScaler(), []

    def fit(self, known: Episodes) -> Bandit:
        """Learn from training episodes."""
        inputs = self._inputs(self._scale.fit_transform(known.probes.reshape(len(known.plans), -1)), known.plans)
        if self._kind == "ridge":
            folds = GroupKFold(5).split(inputs, groups=known.hosts)
            self._models = [RidgeCV(alphas=np.logspace(0, 5, 11), cv=folds)]
        elif self._kind == "forest":
            self._models = [ExtraTreesRegressor(300, max_features=0.5, min_samples_leaf=2, random_state=0)]
        else:
            net = partial(MLPRegressor, hidden_layer_sizes=(64, 64), alpha=0.1, learning_rate_init=3e-3)
            until = {"early_stopping": True, "n_iter_no_change": 30, "max_iter": 3000}
            self._models = [make_pipeline(StandardScaler(), net(random_state=seed, **until)) for seed in range(5)]
        for model in self._models:
            model.fit(inputs, known.gains)
        return self

    def predict(self, probes: Array) -> Array:
        """Predict the gain of every plan on hosts of ``probes: [N, S, F]``, ``[N, P]``."""
        count = len(probes)
        seen = self._scale.transform(probes.reshape(count, -1))
        inputs = self._inputs(np.repeat(seen, len(self._plans), axis=0), [*self._plans] * count)
        predicted: Array = np.mean([model.predict(inputs) for model in self._models], axis=0).reshape(count, -1)
        return predicted

    def _inputs(self, probes: Array, plans: Sequence[Plan]) -> Array:
        coded = plan_features(plans, self._blueprints)
        return joint_features(probes, coded) if self._kind == "ridge" else np.concatenate([probes, coded], axis=1)


def predicted_gains(kind: str, known: Episodes, world: Landscape, plans: Sequence[Plan], names: Sequence[str]) -> Array:
    """Predict gains on every host from other joins: given episodes, and all networks of the hosts in other folds.

    Args:
        kind: kind of the bandit.
        known: episodes on hosts of another split.
        world: hosts to judge on, in six folds.
        plans: P.
        names: blueprints.

    Returns:
        ``[N, P]``.
    """
    found, fold = np.empty_like(world.gains), world.joins % 6
    for number in np.unique(fold):
        own, others = world.of_hosts(fold == number), world.of_hosts(fold != number)
        found[fold == number] = Bandit(kind, plans, names).fit(known.and_of(others, plans)).predict(own.probes)
    return found


def shrunk(measured: Array, predicted: Array, noise: float) -> Array:
    """Return the posterior means of gains ``[N, P]``, which are ``measured`` with the variance ``noise``.

    A plan's gain is normal about its prediction, with the variance that measurements have in excess of the noise.
    """
    residual = measured - predicted
    own = (residual - residual.mean(1, keepdims=True)).var()
    weight = max(0.0, 1 - noise / own)
    posterior: Array = predicted + weight * residual
    return posterior


def told(trials: Trials, guess: Array, curves: Array, mark: int) -> tuple[float, float]:
    """Return how much of what a bandit does not predict of gains shows by a mark, as shares of its variance.

    Linear regressions on the prediction and the bare host's points at the first and at this mark, without and with the
    network's lead at this mark, predict hosts that they have not seen.

    Args:
        guess: predicted gains ``[N, P]``.
        curves: ``[N, M]``, points of the bare hosts at every mark.
        mark: number of the mark.
    """
    grown = np.abs(trials.gains).max((0, 1)) > 0
    count = int(grown.sum())
    alone = [np.repeat(curves[:, [number]], count, axis=1) for number in (0, mark)]
    known = np.stack([guess[:, grown], *alone, trials.over_now[0][:, grown, mark]], axis=-1).reshape(-1, 4)
    wanted = (trials.gains[0] - guess)[:, grown].flatten()
    groups = np.repeat(np.arange(len(guess)), count)
    shares = []
    for columns in (3, 4):
        found = cross_val_predict(LinearRegression(), known[:, :columns], wanted, groups=groups, cv=GroupKFold(8))
        shares.append(float(1 - ((wanted - found) ** 2).mean() / wanted.var()))
    return shares[0], shares[1]
