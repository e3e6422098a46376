"""One decision and one epoch of growth, for any kind of host container: the rules that all growing networks share.

A step is :meth:`Lifecycle.act`; :meth:`Lifecycle.tick`, then the epoch is trained; the validation that
:meth:`Lifecycle.questions` asks for and :meth:`Lifecycle.record`; :meth:`Lifecycle.transition`;
:meth:`Lifecycle.end_epoch`; :meth:`Lifecycle.observation`.

Axis legend: E = environments, S = slots, B = blueprints, F = slot probes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.envs.history import HostHistory
from esper.envs.observations import Observation, observe
from esper.envs.records import EnvSettings, EnvView, PlantedModule
from esper.growth import (
    Applied,
    GrowthRules,
    SeedReport,
    SlotState,
    Stage,
    Transitions,
    apply_actions,
    legal,
    plant,
    record_contributions,
    record_gradients,
    record_parameters,
    tick,
    transition,
)
from esper.growth.actions import BlendAlgorithm, Head
from esper.growth.reports import reports
from esper.population import Questions, Valuation
from esper.population.counterfactuals import num_pair_configurations
from esper.runtime.state import State, copied


class Body(Protocol):
    """Interface of the container that holds hosts and seed modules."""

    def germinate(self, environment: int, slot: int, blueprint: int, algorithm: BlendAlgorithm) -> None:
        """Put a new module into an empty slot."""

    def remove(self, environment: int, slot: int) -> None:
        """Free the module in a slot."""

    def restyle(self, environment: int, slot: int, algorithm: BlendAlgorithm) -> None:
        """Change the blend algorithm of a module."""

    def num_host_parameters(self) -> Tensor:
        """Return the number of trained parameters of each host without its modules, ``int64 [E]``."""

    def num_parameters(self) -> Tensor:
        """Return the number of trained parameters of each module, ``int64 [E, S]``; 0 for an empty slot."""

    def finite(self) -> Tensor:
        """Return whether all parameters of each module are finite, ``bool [E, S]``; true for an empty slot."""


class Lifecycle:
    """State of the slots and hosts of E environments, and the rules that change it.

    Args:
        body: container of the hosts.
        slot_ids: slot ids in canonical order.
        num_envs: E.
        num_epochs: host epochs of an episode.
        rules: rules of growth.
        compatible: ``bool [S, B]``, blueprints offered at each slot.
        settings: numeric settings.

    Attributes:
        state: state of the slots.
        history: history of the hosts.
        probes: ``float [E, S, F]``, slot probes as last measured; ``None`` before the first measurement.
        rents: ``float64 [E]``, points that doubling each host must earn; those of the settings at first.
    """

    def __init__(
        self,
        body: Body,
        slot_ids: Sequence[str],
        num_envs: int,
        *,
        num_epochs: int,
        rules: GrowthRules,
        compatible: Tensor,
        settings: EnvSettings,
    ) -> None:
        self.slot_ids, self.num_envs, self.num_epochs = tuple(slot_ids), num_envs, num_epochs
        self.rules, self.compatible, self.settings = rules, compatible, settings
        self.state = SlotState.empty(num_envs, len(self.slot_ids))
        self.history = HostHistory.empty(num_envs)
        self.probes: Tensor | None = None
        self.rents = torch.full((num_envs,), settings.rent_weight, dtype=torch.float64)
        self._body = body

    def restart(self, which: Tensor) -> None:
        """Empty all slots and clear the history of the environments ``which: bool [E]``."""
        self.state.reset(which)
        self.history.reset(which)

    def plant(self, modules: Mapping[int, Sequence[PlantedModule]]) -> Observation:
        """Give environments modules that are part of their hosts from the first epoch on; call right after a restart.

        They are initialised from the same streams as germinated modules, train with the host, count as parameters and
        pay rent. ``slots.max_seeds`` does not limit them.

        Args:
            modules: slots and blueprints to plant by environment, in the order in which they are created.

        Returns:
            The observation.

        Raises:
            ValueError: a blueprint does not fit its slot, or the slot is taken.
        """
        blueprint = torch.full_like(self.state.blueprint, -1)
        for env, planted in modules.items():
            assert self.history.epoch[env] == 0, "modules are planted before the first epoch"
            for slot, kind in planted:
                if not self.compatible[slot, kind]:
                    raise ValueError(f"blueprint {blueprint_ids()[kind]} does not fit slot {self.slot_ids[slot]}")
                self._body.germinate(env, slot, kind, BlendAlgorithm.ADD)
                blueprint[env, slot] = kind
        plant(self.state, blueprint >= 0, blueprint)
        record_parameters(self.state, self._body.num_parameters(), self._body.finite())
        return self.observation()

    def act(self, actions: Tensor) -> Applied:
        """Apply actions ``int64 [E, 8]`` to the state, and create, free and restyle modules accordingly."""
        state, body = self.state, self._body
        applied = apply_actions(state, actions, self.compatible, self.rules)
        for env, slot in applied.germinated.nonzero().tolist():
            body.germinate(env, slot, int(state.blueprint[env, slot]), self._algorithm(env, slot))
        self._free(applied.removed)
        for env, slot in applied.restyled.nonzero().tolist():
            body.restyle(env, slot, self._algorithm(env, slot))
        self.history.record_action(actions[:, Head.OP], applied.success)
        return applied

    def tick(self) -> None:
        """Advance alphas and clocks; call right before an epoch is trained."""
        tick(self.state)

    def questions(self, ended: Tensor, *, off: bool = False, further: Tensor | None = None) -> Questions:
        """List what the validation after an epoch must measure.

        Args:
            ended: ``bool [E]``, it was the last epoch of the episode.
            off: include the score with every module off.
            further: ``int64 [E, K]`` further configurations, bit s for slot s; -1 for none.
        """
        state, settings = self.state, self.settings
        affordable = num_pair_configurations((state.alpha > 0).sum(dim=1)) <= settings.max_configurations
        return Questions(
            alpha=state.alpha,
            developing=state.developing,
            kept=state.stage == Stage.FOSSILIZED,
            kept_wanted=ended,
            off_wanted=torch.full_like(ended, off),
            modules_due=self._due(settings.contributions_every),
            pairs_due=self._due(settings.pairs_every) & affordable,
            configurations=further,
        )

    def probes_due(self) -> tuple[str, ...]:
        """Return the names of the slot probes that some environment needs at the end of this epoch."""
        return self.settings.slot_probes if self._due(self.settings.probe_every).any() else ()

    def record(self, valuation: Valuation, *, module_norm: Tensor, host_norm: Tensor, probes: Tensor | None) -> None:
        """Record the measurements of an epoch.

        Args:
            valuation: answers to :meth:`questions`.
            module_norm: ``float [E, S]`` mean gradient norms, NaN where there were none.
            host_norm: ``float [E]``.
            probes: ``float [E, S, F]`` of :meth:`probes_due`, NaN where not measured; ``None`` without slot probes.
        """
        state, body = self.state, self._body
        if probes is not None:
            new = self._due(self.settings.probe_every)[:, None, None] & ~probes.isnan()
            self.probes = probes if self.probes is None else torch.where(new, probes, self.probes)
        record_parameters(state, body.num_parameters(), body.finite())
        record_gradients(state, module_norm, host_norm, body.num_host_parameters(), self.rules)
        record_contributions(state, valuation.contribution, valuation.interaction, valuation.boost)

    def transition(self) -> Transitions:
        """Change the stage of every slot by at most one, and free modules that have faded out."""
        transitions = transition(self.state, self.rules)
        self._free(transitions.removed)
        return transitions

    def end_epoch(self, loss: Tensor, accuracy: Tensor) -> None:
        """Append the validation of the hosts, ``[E]`` each, to their history."""
        self.history.record(loss, accuracy)

    def observation(self) -> Observation:
        """Return the current observation."""
        features, blueprint_index = observe(
            self.history,
            self.state,
            num_epochs=self.num_epochs,
            param_budget=(self.settings.param_budget * self._body.num_host_parameters()).clamp(min=1.0),
            min_training_epochs=self.rules.min_training_epochs,
            probes=self.probes,
            rents=self._seen_rents,
            contribution_decay=self.settings.contribution_decay,
            scale_free=self.settings.scale_free,
            slot_probes=self.settings.slot_probes,
        )
        masks = legal(self.state, self.compatible, self.rules)
        return Observation(features=features, blueprint_index=blueprint_index, masks=masks)

    def view(self, observation: Observation) -> EnvView:
        """Combine the observation with the arrays behind it."""
        return EnvView(
            observation=observation,
            state=self.state,
            history=self.history,
            slot_ids=self.slot_ids,
            slot_probes=self.settings.slot_probes,
            rents=self._seen_rents,
        )

    def reports(self, environment: int) -> dict[str, SeedReport]:
        """Return readable records of one environment's slots, by slot id in canonical order."""
        host_params = int(self._body.num_host_parameters()[environment])
        return reports(self.state, environment, self.slot_ids, host_params, self.rules, blueprint_ids())

    def state_dict(self) -> State:
        """Return slots, clocks and measurements, each with a leading environment axis."""
        return {
            "slots": self.state.to_dict(),
            "history": self.history.to_dict(),
            "probes": None if self.probes is None else copied(self.probes),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state; the body must hold the modules that its slots name."""
        self.state.load(state["slots"])
        self.history = HostHistory.from_dict(state["history"])
        self.probes = None if state["probes"] is None else copied(state["probes"])

    @property
    def _seen_rents(self) -> Tensor | None:
        return self.rents if self.settings.price else None

    def _algorithm(self, env: int, slot: int) -> BlendAlgorithm:
        return BlendAlgorithm(int(self.state.algorithm[env, slot]))

    def _free(self, removed: Tensor) -> None:
        for env, slot in removed.nonzero().tolist():
            self._body.remove(env, slot)

    def _due(self, every: int) -> Tensor:
        """Return whether this epoch is a multiple of ``every``, ``bool [E]``; false for 0."""
        return (self.history.epoch + 1) % every == 0 if every else torch.zeros(self.num_envs, dtype=torch.bool)
