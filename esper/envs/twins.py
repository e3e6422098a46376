"""Never-grown twins: the training curve of an instance's host without growth.

Axis legend: E = environments, T = epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from math import nan

import torch
from torch import Tensor

from esper.envs.breakdowns import Breakdown, as_guessing, breakdowns
from esper.envs.instances import Instance
from esper.envs.loader import InstanceLoader
from esper.growth import Incubation
from esper.population import GrowthStage, Population, Scores, evaluate, train_epoch
from esper.runtime.devices import device_name
from esper.runtime.ranks import Ranks
from esper.runtime.state import State, plain_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinCurve:
    """Curve of an instance without growth: val after each epoch, ``float64 [T]``, and test at the end.

    All finite: a host that crashed (``crashed``) counts as guessing from that epoch on. Points and loss on test are NaN
    in curves of older checkpoints.
    """

    points: Tensor
    loss: Tensor
    accuracy: Tensor
    test_accuracy: float
    crashed: bool
    test_points: float = nan
    test_loss: float = nan


class TwinCache:
    """Curves of never-grown twins, computed once per instance.

    A twin is stacked like the environments that it is compared with (same number of hosts, same mapping, same kind of
    device): only then are both equal to the bit, and a controller that never grows earns exactly 0.

    Args:
        loader: loads instances into a population.
        make_population: builds an empty population like the environments' own.
        progress: called with (done, total) while curves are computed.
    """

    def __init__(
        self,
        loader: InstanceLoader,
        make_population: Callable[[], Population],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._loader = loader
        self._make_population = make_population
        self._progress = progress
        self._curves: dict[Instance, TwinCurve] = {}

    def require(self, instances: Iterable[Instance]) -> None:
        """Compute the missing curves of these instances."""
        missing = [instance for instance in dict.fromkeys(instances) if instance not in self._curves]
        if not missing:
            return
        population = self._make_population()
        for begin in range(0, len(missing), population.num_envs):
            self._progress(begin, len(missing))
            self._grow_nothing(population, missing[begin : begin + population.num_envs])
        self._progress(len(missing), len(missing))

    def require_together(self, instances: Iterable[Instance], ranks: Ranks) -> None:
        """Compute missing curves like :meth:`require`, on all ranks at once, which share the work if their stacks are
        alike.
        """
        population = self._make_population()
        wanted = list(dict.fromkeys(instances))
        if len(set(ranks.all_gather((population.num_envs, self._kind)))) > 1:
            self.require(wanted)  # curves of another stack or device would not be equal to the bit
            return
        own = wanted[ranks.rank :: ranks.size]
        self.require(own)
        for curves in ranks.all_gather({instance: self._curves[instance] for instance in own}):
            self._curves.update(curves)

    def __getitem__(self, instance: Instance) -> TwinCurve:
        self.require([instance])
        return self._curves[instance]

    def after(self, instances: Sequence[Instance], epochs: Sequence[int]) -> Scores:
        """Return the scores of some twins, ``[E]`` each, after these epochs, counted from 0."""
        rows = [(self[instance], epoch) for instance, epoch in zip(instances, epochs, strict=True)]
        return Scores(
            *(torch.stack([getattr(curve, item.name)[epoch] for curve, epoch in rows]) for item in fields(Scores))
        )

    def tested(self, instances: Sequence[Instance]) -> Scores:
        """Return the scores of some twins on test after their last epoch, ``[E]`` each."""
        curves = [self[instance] for instance in instances]
        rows = ((curve.test_points, curve.test_loss, curve.test_accuracy) for curve in curves)
        return Scores(*torch.tensor(list(rows), dtype=torch.float64).unbind(1))

    def state_dict(self) -> State:
        """Return all curves, each with its instance, and the kind of device that computed them."""
        return {
            "device": self._kind,
            "curves": [
                {"instance": asdict(instance), **plain_fields(curve)} for instance, curve in self._curves.items()
            ],
        }

    @property
    def _kind(self) -> str:
        return device_name(self._loader.task.device)

    def load_state_dict(self, state: State) -> None:
        """Replace all curves by those of a saved state, except curves of another kind of device."""
        self._curves = {}
        if state.get("device") != self._kind:
            return
        for record in state["curves"]:
            values = dict(record)
            instance = Instance(**values.pop("instance"))
            self._curves[instance] = TwinCurve(**values)

    def _grow_nothing(self, population: Population, instances: Sequence[Instance]) -> None:
        loader, training = self._loader, self._loader.training
        # A stack of the usual size: unused places repeat an instance.
        rows = [instances[row % len(instances)] for row in range(population.num_envs)]
        loader.place(population, range(population.num_envs), rows)
        empty = torch.zeros_like(population.blueprint, dtype=torch.bool)
        growth = GrowthStage(alpha=empty.double(), developing=empty, isolated=empty)
        samples, lr = loader.train(rows), loader.lr(rows)
        curves, crashed = [], torch.zeros(population.num_envs, dtype=torch.bool)
        for epoch in range(training.num_epochs):
            stats = train_epoch(
                population,
                samples,
                loader.order(rows, [epoch] * len(rows)),
                growth,
                incubation=Incubation.auxiliary,
                num_steps=training.steps_per_epoch,
                lr=lr,
                max_grad_norm=training.max_grad_norm,
            )
            scores, _ = evaluate(population, loader.val(rows, [epoch] * len(rows)), growth.alpha)
            crashed = crashed | (breakdowns(stats.loss, scores) != Breakdown.NONE)
            scores = as_guessing(scores, crashed, loader.task)
            curves.append(torch.stack([scores.points, scores.loss, scores.accuracy]))
        test = as_guessing(evaluate(population, loader.test(rows), growth.alpha)[0], crashed, loader.task)
        points, loss, accuracy = torch.stack(curves, dim=-1)  # (E, T) each
        for row, instance in enumerate(instances):
            self._curves[instance] = TwinCurve(
                points=points[row],
                loss=loss[row],
                accuracy=accuracy[row],
                test_accuracy=float(test.accuracy[row]),
                crashed=bool(crashed[row]),
                test_points=float(test.points[row]),
                test_loss=float(test.loss[row]),
            )
