"""Growth as a reinforcement-learning environment: one step is one host epoch of every environment.

The order inside a step is fixed: the action is applied; alphas advance and every host trains one epoch; gradient
statistics; validation and counterfactuals; at most one automatic stage change per slot; reward, from this validation
and the one before; observation and masks. So reward t contains the epoch that action t shaped.

Axis legend: E = environments, S = slots, B = blueprints.
"""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from esper.envs.breakdowns import Breakdown, as_guessing, breakdowns
from esper.envs.episodes import Episodes
from esper.envs.instances import Instance, InstancePool
from esper.envs.lifecycle import Lifecycle
from esper.envs.loader import InstanceLoader
from esper.envs.observations import Observation
from esper.envs.records import EnvSettings, EpisodeRecord, StepResult
from esper.envs.rewarder import Rewarder
from esper.envs.rewards import RewardFamily, total
from esper.envs.twins import TwinCache
from esper.growth import GrowthRules, Stage
from esper.growth.actions import BlendAlgorithm
from esper.population import (
    EpochStats,
    GrowthStage,
    MultiplyAdds,
    Population,
    Samples,
    Valuation,
    evaluate,
    incubation_share,
    probe_hosts,
    train_epoch,
    training_multiply_adds,
    valuate,
)
from esper.population.shapley import plan_shapley, shapley_values
from esper.runtime.rng import generator
from esper.runtime.state import State
from esper.tasks.batches import TrainingSamples


class _Hosts:
    """The hosts of a population, with modules initialised from random streams of their instances."""

    def __init__(self, population: Population, episodes: Episodes) -> None:
        self._population, self._episodes = population, episodes
        self.remove, self.restyle = population.remove, population.restyle
        self.num_host_parameters = population.num_host_parameters
        self.num_parameters, self.finite = population.num_parameters, population.finite

    def germinate(self, environment: int, slot: int, blueprint: int, algorithm: BlendAlgorithm) -> None:
        """Create a module, initialised from a stream named by instance, slot and number of earlier modules in the
        episode.
        """
        births = self._episodes.births
        stream = generator("module", self._episodes.instances[environment].host_seed, slot, births[environment])
        births[environment] += 1
        self._population.germinate(environment, slot, blueprint, algorithm, stream)


class GrowthEnv(Lifecycle):
    """E growing hosts behind ``reset`` and ``step``; :func:`esper.build_env` makes one from a configuration.

    Args:
        population: the hosts.
        loader: loads instances into the population.
        pool: instances to draw from.
        twins: curves of never-grown twins, or ``None`` for B = 0.
        family: reward family.
        rules: rules of growth.
        compatible: ``bool [S, B]``, blueprints offered at each slot.
        costs: multiply-adds of the host and of all blueprints.
        settings: numeric settings.
        run_seed: name of the stream of instance draws.
        first: number of this rank's first environment among those of all ranks; draws and events count from there.
        measure_test: also measure test accuracy of final networks.

    Attributes:
        episodes: instance and running totals of each environment.
        rewarder: computes the reward of every epoch.
    """

    def __init__(
        self,
        population: Population,
        loader: InstanceLoader,
        pool: InstancePool,
        *,
        twins: TwinCache | None,
        family: RewardFamily,
        rules: GrowthRules,
        compatible: Tensor,
        costs: MultiplyAdds,
        settings: EnvSettings,
        run_seed: int,
        first: int = 0,
        measure_test: bool = False,
    ) -> None:
        num_envs, num_slots = population.num_envs, len(population.slot_ids)
        self.episodes = Episodes(num_envs)
        super().__init__(
            _Hosts(population, self.episodes),
            population.slot_ids,
            num_envs,
            num_epochs=loader.training.num_epochs,
            rules=rules,
            compatible=compatible,
            settings=settings,
        )
        self.population, self.loader, self.pool, self.costs = population, loader, pool, costs
        population.state = self.state
        self.first, self.measure_test = first, measure_test
        self.rewarder = Rewarder(num_envs, loader.task, twins=twins, family=family, settings=settings)
        self._run_seed = run_seed
        self._over = torch.ones(num_envs, dtype=torch.bool)
        self._shapley = torch.full((num_envs, num_slots), torch.nan, dtype=torch.float64)
        self._val: Samples | None = None
        self._train_samples: TrainingSamples | None = None
        self._lr: float | Tensor = loader.training.lr

    @property
    def instances(self) -> list[Instance]:
        """Current instance of each environment."""
        return self.episodes.instances

    @torch.enable_grad()
    def reset(self, which: Tensor | None = None) -> Observation:
        """Start new episodes.

        Args:
            which: ``bool [E]``, the environments to reset; all when ``None``. The first call must reset all.
        """
        chosen = (torch.ones(self.num_envs, dtype=torch.bool) if which is None else which).nonzero().flatten().tolist()
        drawn = self.episodes.begin(self.pool, chosen, self._run_seed, self.first)
        fresh = torch.zeros(self.num_envs, dtype=torch.bool)
        fresh[chosen] = True
        self.rewarder.reset(fresh, drawn)
        self.loader.place(self.population, chosen, drawn)
        self.restart(fresh)
        self._over = self._over & ~fresh
        self._take_up_data()
        if self.settings.slot_probes and len(chosen):
            self._probe_fresh(fresh)
        return self.observation()

    def state_dict(self) -> State:
        """Return hosts, modules, clocks and totals, in mid-episode or not. Every tensor has a leading environment
        axis.
        """
        return {
            "population": self.population.state_dict(),
            **super().state_dict(),
            "episodes": self.episodes.state_dict(),
            "potential": self.rewarder.state_dict(),
            "over": self._over.clone(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state; the pool must be the one that its instances were drawn from."""
        self.population.load_state_dict(state["population"])
        super().load_state_dict(state)
        self.episodes.load_state_dict(state["episodes"], self.pool)
        self.rewarder.load_state_dict(state["potential"])
        self._over = state["over"].clone()
        self._take_up_data()

    def _take_up_data(self) -> None:
        """Recompute what depends on the instances alone."""
        self._take_up_val()
        self._train_samples, self._lr = self.loader.train(self.instances), self.loader.lr(self.instances)
        usual = self.settings.rent_weight
        self.rents = torch.tensor([each.rent(usual) for each in self.instances], dtype=torch.float64)

    def _take_up_val(self) -> None:
        """Choose the validation samples of the epoch that comes next."""
        self._val = self.loader.val(self.instances, self.history.epoch.tolist())

    @torch.enable_grad()  # hosts learn, also where whoever acts has switched gradients off
    def step(self, actions: Tensor) -> StepResult:
        """Apply one action per environment and train every host one epoch.

        Args:
            actions: ``int64 [E, 8]`` in head order. An illegal one changes nothing but the success flag.
        """
        assert not self._over.any(), "an environment whose episode is over must be reset before it can step"
        stages_before, blueprints = self.state.stage, self.state.blueprint
        applied = self.act(actions)
        blueprints = blueprints.maximum(self.state.blueprint)
        self.tick()
        spent = self._spent(self.history.epoch)
        began = perf_counter()
        stats = self._train()
        ended = self.history.epoch + 1 >= self.num_epochs
        valuation = self._measure(stats, ended)
        host_seconds = perf_counter() - began
        transitions = self.transition()
        components, breakdown = self._pay(valuation, breakdowns(stats.loss, valuation.scores), spent)
        crashed = breakdown != Breakdown.NONE
        scores = as_guessing(valuation.scores, crashed, self.loader.task)
        self.end_epoch(valuation.scores.loss, scores.accuracy)
        self._over = ended | crashed
        return StepResult(
            observation=self.observation(),
            reward=(self.settings.reward_scale * total(components)).float(),
            components=components,
            terminated=self._over,
            stages_before=stages_before,
            blueprints=blueprints,
            applied=applied,
            transitions=transitions,
            epochs=self.history.epoch,
            accuracy=scores.accuracy,
            breakdown=breakdown,
            episodes=self._records(valuation, crashed),
            host_seconds=host_seconds,
            skipped_steps=stats.skipped_steps,
            non_finite=int(stats.host_norm.isinf().sum() + stats.module_norm.isinf().sum()),
        )

    def _train(self) -> EpochStats:
        state, training, settings = self.state, self.loader.training, self.settings
        assert self._train_samples is not None, "environments are reset before they step"
        blended = state.present & ~state.developing
        unsettled = blended & (state.stage != Stage.FOSSILIZED)
        share = incubation_share(training.steps_per_epoch, settings.incubate_every)
        self.episodes.trained += training_multiply_adds(
            self.costs, state.blueprint, state.alpha > 0, state.developing, settings.incubation, share
        )
        growth = GrowthStage(
            alpha=state.alpha,
            developing=state.developing,
            isolated=unsettled if settings.isolate_until_fossilized else torch.zeros_like(unsettled),
        )
        return train_epoch(
            self.population,
            self._train_samples,
            self.loader.order(self.instances, self.history.epoch.tolist()),
            growth,
            incubation=settings.incubation,
            incubate_every=settings.incubate_every,
            num_steps=training.steps_per_epoch,
            lr=self._lr,
            max_grad_norm=training.max_grad_norm,
            probes=self.probes_due(),
        )

    def _measure(self, stats: EpochStats, ended: Tensor) -> Valuation:
        """Validate, measure contributions, and record them with the gradient statistics."""
        epochs = self.history.epoch.tolist()
        if any(instance.arrival == epoch for instance, epoch in zip(self.instances, epochs, strict=True)):
            self._take_up_val()
        assert self._val is not None
        shares = plan_shapley(
            self.state.alpha > 0,
            ended & bool(self.settings.shapley_permutations),
            num_permutations=self.settings.shapley_permutations,
            max_configurations=self.settings.max_configurations,
            stream=lambda env: generator("shapley", self._run_seed, self.first + env, self.episodes.numbers[env]),
        )
        questions = self.questions(ended, off=self.rewarder.family.reads_off, further=shares.configurations)
        valuation = valuate(self.population, self._val, questions)
        self._shapley = shapley_values(shares, valuation.scores.points, valuation.configurations, len(self.slot_ids))
        self.record(valuation, module_norm=stats.module_norm, host_norm=stats.host_norm, probes=stats.probes)
        return valuation

    def _spent(self, epochs: Tensor) -> Tensor:
        """Return what training has cost beyond the twins after so many epochs; see :meth:`Episodes.spent`."""
        return self.episodes.spent(self.costs.host_step, epochs, self.num_epochs)

    def _pay(self, valuation: Valuation, breakdown: Tensor, spent_before: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Compute reward components of this step and the hosts that crashed; update the returns."""
        components, breakdown = self.rewarder.pay(
            valuation,
            self.state,
            self.population.num_host_parameters(),
            self.rents,
            self.instances,
            self.history.epoch,
            self.num_epochs,
            breakdown=breakdown,
            spent=(spent_before, self._spent(self.history.epoch + 1)),
        )
        self.episodes.returns += self.settings.gamma ** self.history.epoch.double() * total(components)
        return components, breakdown

    def _records(self, valuation: Valuation, crashed: Tensor) -> tuple[EpisodeRecord, ...]:
        over = self._over.nonzero().flatten().tolist()
        if not over:
            return ()
        task = self.loader.task
        val, test, test_returns = as_guessing(valuation.kept, crashed, task), None, None
        if self.measure_test:
            kept = self.state.alpha * (self.state.stage == Stage.FOSSILIZED)
            test = as_guessing(evaluate(self.population, self.loader.test(self.instances), kept)[0], crashed, task)
            sizes = self.population.num_host_parameters()
            spent = self._spent(self.history.epoch)
            test_returns = self.rewarder.test_returns(test, self.state, sizes, self.rents, self.instances, spent)
        return tuple(
            self.episodes.record(
                env,
                self.state,
                self.slot_ids,
                num_epochs=int(self.history.epoch[env]),
                task=task,
                val=val,
                test=test,
                test_returns=test_returns,
                host_cost=self.costs.host_step,
                crashed=bool(crashed[env]),
                shapley=self._shapley[env].tolist(),
            )
            for env in over
        )

    def _probe_fresh(self, fresh: Tensor) -> None:
        """Measure slot probes of new hosts, on the first batch that they will train on."""
        x, y = self.loader.first_batch(self.instances, self.history.epoch.tolist(), self.population.device)
        probes = probe_hosts(self.population, x, y, self.settings.slot_probes)
        self.probes = probes if self.probes is None else torch.where(fresh[:, None, None], probes, self.probes)
