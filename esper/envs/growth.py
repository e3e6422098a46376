"""Growth as a reinforcement-learning environment: one step is one host epoch of every environment.

The order inside a step is fixed: the action is applied; alphas tick and every host trains one epoch; gradient
statistics; validation and counterfactuals; at most one mechanical transition per slot; reward, from this validation and
the one before; observation and masks. So reward t contains the epoch that action t shaped.

Axis legend: E = environments, S = slots, B = blueprints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.envs.breakdowns import Breakdown, as_guessing, breakdowns
from esper.envs.episodes import Episodes
from esper.envs.history import HostHistory
from esper.envs.instances import Instance, InstancePool
from esper.envs.observations import Observation, observe
from esper.envs.records import EnvSettings, EnvView, EpisodeRecord, PlantedModule, StepResult
from esper.envs.rewarder import Rewarder
from esper.envs.rewards import RewardFamily, total
from esper.envs.twins import Nursery, TwinCache
from esper.growth import (
    Applied,
    GrowthRules,
    SeedReport,
    SlotState,
    Stage,
    apply_actions,
    legal,
    plant,
    record_contributions,
    record_gradients,
    record_parameters,
    reports,
    tick,
    transition,
)
from esper.growth.actions import BlendAlgorithm, Head
from esper.population import (
    EpochStats,
    GrowthStage,
    MultiplyAdds,
    Population,
    Samples,
    Valuation,
    evaluate,
    probe_hosts,
    train_epoch,
    training_multiply_adds,
    valuate,
)
from esper.population.counterfactuals import num_pair_configurations
from esper.population.shapley import plan_shapley, shapley_values
from esper.runtime.rng import generator
from esper.runtime.state import State


class GrowthEnv:
    """E growing hosts behind ``reset`` and ``step``.

    Args:
        population: the hosts.
        nursery: brings instances into it.
        pool: instances to draw from.
        twins: curves of never-grown twins, or ``None`` for B = 0.
        family: reward family.
        rules: of growth.
        compatible: ``bool [S, B]``, blueprints offered at each slot.
        costs: multiply-adds of the host and of all blueprints.
        settings: plain numbers.
        run_seed: names the stream of instance draws.
        first: number of the first environment among those of all ranks; draws and events count from there.
        measure_test: also measure test accuracy of final networks.

    Attributes:
        episodes: what each environment grows now, and what has come of it.
        rewarder: pays for every epoch.
    """

    def __init__(
        self,
        population: Population,
        nursery: Nursery,
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
        self.population, self.nursery, self.pool, self.rules = population, nursery, pool, rules
        self.compatible, self.settings, self.costs = compatible, settings, costs
        self.first, self.measure_test, self.num_envs, self.slot_ids = first, measure_test, num_envs, population.slot_ids
        self.num_epochs = nursery.training.num_epochs
        self.state = SlotState.empty(num_envs, num_slots)
        self.history = HostHistory.empty(num_envs)
        self.episodes = Episodes(num_envs)
        self.rewarder = Rewarder(num_envs, nursery.task, twins=twins, family=family, settings=settings)
        self._run_seed = run_seed
        self._over = torch.ones(num_envs, dtype=torch.bool)
        self._probes: Tensor | None = None
        self._shapley = torch.full((num_envs, num_slots), torch.nan, dtype=torch.float64)
        self._val: Samples | None = None
        self._targets = nursery.task.train.targets
        self._lr: float | Tensor = nursery.training.lr

    @property
    def instances(self) -> list[Instance]:
        """What each environment grows now."""
        return self.episodes.instances

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
        self.nursery.place(self.population, chosen, drawn)
        self.state.reset(fresh)
        self.history.reset(fresh)
        self._over = self._over & ~fresh
        self._take_up_data()
        if self.settings.slot_probes and len(chosen):
            self._probe_fresh(fresh)
        return self.observation()

    def state_dict(self) -> State:
        """Hosts, modules, clocks and books, in mid-episode or not. Every tensor has a leading environment axis."""
        return {
            "population": self.population.state_dict(),
            "slots": self.state.to_dict(),
            "history": self.history.to_dict(),
            "episodes": self.episodes.state_dict(),
            "potential": self.rewarder.state_dict(),
            "over": self._over.clone(),
            "probes": None if self._probes is None else self._probes.clone(),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from there; the pool must be the one from which its instances were drawn."""
        self.population.load_state_dict(state["population"])
        self.state = SlotState.from_dict(state["slots"])
        self.history = HostHistory.from_dict(state["history"])
        self.episodes.load_state_dict(state["episodes"], self.pool)
        self.rewarder.load_state_dict(state["potential"])
        self._over = state["over"].clone()
        self._probes = None if state["probes"] is None else state["probes"].clone()
        self._take_up_data()

    def _take_up_data(self) -> None:
        """What follows from the instances alone."""
        self._val = self.nursery.val(self.instances)
        self._targets, self._lr = self.nursery.train_targets(self.instances), self.nursery.lr(self.instances)

    def plant(self, modules: Mapping[int, Sequence[PlantedModule]]) -> Observation:
        """Give environments modules that are part of their hosts from the first epoch on; right after a reset.

        They are born from the streams that germinated modules are born from, train with the host, count as parameters
        and pay rent. ``slots.max_seeds`` does not bound them.

        Args:
            modules: by environment, in the order in which they are born.

        Returns:
            What a controller may know now.

        Raises:
            ValueError: a blueprint does not fit its slot, or the slot is taken.
        """
        blueprint = torch.full_like(self.state.blueprint, -1)
        for env, planted in modules.items():
            assert self.history.epoch[env] == 0, "modules are planted before the first epoch"
            for slot, kind in planted:
                if not self.compatible[slot, kind]:
                    raise ValueError(f"blueprint {blueprint_ids()[kind]} does not fit slot {self.slot_ids[slot]}")
                self._give_birth(env, slot, kind, BlendAlgorithm.ADD)
                blueprint[env, slot] = kind
        plant(self.state, blueprint >= 0, blueprint)
        record_parameters(self.state, self.population.num_parameters(), self.population.finite())
        return self.observation()

    def step(self, actions: Tensor) -> StepResult:
        """Apply one action per environment and train every host one epoch.

        Args:
            actions: ``int64 [E, 8]`` in head order. An illegal one changes nothing but the success flag.
        """
        assert not self._over.any(), "an environment whose episode is over must be reset before it can step"
        stages_before, blueprints = self.state.stage, self.state.blueprint
        applied = self._act(actions)
        blueprints = blueprints.maximum(self.state.blueprint)
        tick(self.state)
        began = perf_counter()
        stats = self._train()
        ended = self.history.epoch + 1 >= self.num_epochs
        valuation = self._measure(stats, ended)
        host_seconds = perf_counter() - began
        transitions = transition(self.state, self.rules)
        self._free(transitions.removed)
        components, breakdown = self._pay(valuation, breakdowns(stats.loss, valuation.scores))
        crashed = breakdown != Breakdown.NONE
        scores = as_guessing(valuation.scores, crashed, self.nursery.task)
        self.history.record(valuation.scores.loss, scores.accuracy)
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

    def observation(self) -> Observation:
        """What a controller may know now."""
        features, blueprint_index = observe(
            self.history,
            self.state,
            num_epochs=self.num_epochs,
            param_budget=(self.settings.param_budget * self.population.num_host_parameters()).clamp(min=1.0),
            min_training_epochs=self.rules.min_training_epochs,
            probes=self._probes,
            contribution_decay=self.settings.contribution_decay,
        )
        masks = legal(self.state, self.compatible, self.rules)
        return Observation(features=features, blueprint_index=blueprint_index, masks=masks)

    def view(self, observation: Observation) -> EnvView:
        """The observation together with the arrays it was made from."""
        return EnvView(
            observation=observation,
            state=self.state,
            history=self.history,
            slot_ids=self.slot_ids,
            slot_probes=self.settings.slot_probes,
        )

    def reports(self, environment: int) -> dict[str, SeedReport]:
        """Readable records of one environment's slots, by slot id in canonical order."""
        host_params = int(self.population.num_host_parameters()[environment])
        return reports(self.state, environment, self.slot_ids, host_params, self.rules, blueprint_ids())

    def _act(self, actions: Tensor) -> Applied:
        """Apply actions to the state, and make, free and restyle the modules that they concern."""
        applied = apply_actions(self.state, actions, self.compatible, self.rules)
        for env, slot in applied.germinated.nonzero().tolist():
            self._give_birth(env, slot, int(self.state.blueprint[env, slot]), self._algorithm(env, slot))
        self._free(applied.removed)
        for env, slot in applied.restyled.nonzero().tolist():
            self.population.restyle(env, slot, self._algorithm(env, slot))
        self.history.record_action(actions[:, Head.OP], applied.success)
        return applied

    def _give_birth(self, env: int, slot: int, blueprint: int, algorithm: BlendAlgorithm) -> None:
        """A new module, from a stream of the instance, the slot and how many came before it in the episode."""
        stream = generator("module", self.instances[env].host_seed, slot, self.episodes.births[env])
        self.episodes.births[env] += 1
        self.population.germinate(env, slot, blueprint, algorithm, stream)

    def _algorithm(self, env: int, slot: int) -> BlendAlgorithm:
        return BlendAlgorithm(int(self.state.algorithm[env, slot]))

    def _free(self, removed: Tensor) -> None:
        for env, slot in removed.nonzero().tolist():
            self.population.remove(env, slot)

    def _train(self) -> EpochStats:
        state, training, task = self.state, self.nursery.training, self.nursery.task
        blended = state.present & ~state.developing
        unsettled = blended & (state.stage != Stage.FOSSILIZED)
        self.episodes.trained += training_multiply_adds(
            self.costs, state.blueprint, state.alpha > 0, state.developing, self.settings.incubation
        )
        growth = GrowthStage(
            alpha=state.alpha,
            developing=state.developing,
            isolated=unsettled if self.settings.isolate_until_fossilized else torch.zeros_like(unsettled),
        )
        return train_epoch(
            self.population,
            task.train.inputs,
            self._targets,
            self.nursery.order(self.instances, self.history.epoch.tolist()),
            growth,
            incubation=self.settings.incubation,
            num_steps=training.steps_per_epoch,
            lr=self._lr,
            max_grad_norm=training.max_grad_norm,
            probes=self.settings.slot_probes,
            take=self.nursery.take,
        )

    def _measure(self, stats: EpochStats, ended: Tensor) -> Valuation:
        """Record gradient statistics, validate, and record what each module is worth."""
        state = self.state
        if stats.probes is not None:
            assert self._probes is not None, "probes are measured from the reset on"
            self._probes = torch.where(stats.probes.isnan(), self._probes, stats.probes)  # NaN: not measured this time
        record_parameters(state, self.population.num_parameters(), self.population.finite())
        record_gradients(state, stats.module_norm, stats.host_norm, self.population.num_host_parameters(), self.rules)
        assert self._val is not None
        limit, acting = self.settings.max_configurations, state.alpha > 0
        shares = plan_shapley(
            acting,
            ended & bool(self.settings.shapley_permutations),
            num_permutations=self.settings.shapley_permutations,
            max_configurations=limit,
            stream=lambda env: generator("shapley", self._run_seed, self.first + env, self.episodes.numbers[env]),
        )
        valuation = valuate(
            self.population,
            self._val,
            alpha=state.alpha,
            developing=state.developing,
            kept=state.stage == Stage.FOSSILIZED,
            kept_wanted=ended,
            off_wanted=torch.full_like(ended, self.rewarder.family.reads_off),
            modules_due=self._due(self.settings.contributions_every),
            pairs_due=self._due(self.settings.pairs_every) & (num_pair_configurations(acting.sum(dim=1)) <= limit),
            configurations=shares.configurations,
        )
        self._shapley = shapley_values(shares, valuation.scores.points, valuation.configurations, len(self.slot_ids))
        record_contributions(state, valuation.contribution, valuation.interaction, valuation.boost)
        return valuation

    def _due(self, every: int) -> Tensor:
        """``bool [E]``: whether this epoch is one of every so many; none is for 0."""
        return (self.history.epoch + 1) % every == 0 if every else torch.zeros(self.num_envs, dtype=torch.bool)

    def _pay(self, valuation: Valuation, breakdown: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Reward components of this step, and which hosts broke down for good; moves the returns on."""
        components, breakdown = self.rewarder.pay(
            valuation,
            self.state,
            self.population.num_host_parameters(),
            self.instances,
            self.history.epoch,
            self.num_epochs,
            breakdown=breakdown,
        )
        self.episodes.returns += self.settings.gamma ** self.history.epoch.double() * total(components)
        return components, breakdown

    def _records(self, valuation: Valuation, crashed: Tensor) -> tuple[EpisodeRecord, ...]:
        over = self._over.nonzero().flatten().tolist()
        if not over:
            return ()
        task = self.nursery.task
        val, test = as_guessing(valuation.kept, crashed, task), None
        if self.measure_test:
            kept = self.state.alpha * (self.state.stage == Stage.FOSSILIZED)
            test = as_guessing(evaluate(self.population, self.nursery.test(self.instances), kept)[0], crashed, task)
        return tuple(
            self.episodes.record(
                env,
                self.state,
                self.slot_ids,
                num_epochs=int(self.history.epoch[env]),
                task=task,
                val=val,
                test=test,
                host_cost=self.costs.host_step,
                crashed=bool(crashed[env]),
                shapley=self._shapley[env].tolist(),
            )
            for env in over
        )

    def _probe_fresh(self, fresh: Tensor) -> None:
        """Slot probes of new hosts, on the first batch that they will see."""
        x, y = self.nursery.first_batch(self.instances, self.history.epoch.tolist(), self.population.device)
        probes = probe_hosts(self.population, x, y, self.settings.slot_probes)
        self._probes = probes if self._probes is None else torch.where(fresh[:, None, None], probes, self._probes)
