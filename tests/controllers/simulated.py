"""The lifecycle without hosts: measurements are random, so that thousands of controller steps are cheap."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from esper.controllers import Controller
from esper.envs.history import HostHistory
from esper.envs.observations import Observation, observe
from esper.envs.records import EnvView
from esper.growth import (
    Applied,
    GrowthRules,
    SlotState,
    apply_actions,
    legal,
    record_contributions,
    record_gradients,
    record_parameters,
    tick,
    transition,
)
from esper.growth.actions import NUM_BLUEPRINTS, Head
from esper.population.probes import PROBE_NAMES

NUM_EPOCHS = 25


class Simulated:
    """E environments whose hosts follow given loss curves and whose modules are worth what a function says.

    Args:
        compatible: ``bool [S, B]``.
        rules: of growth.
        loss: epoch to val loss, the same everywhere.
        worth: random generator to contributions ``float64 [E, S]``.
        sick: probability that a module's gradient vanishes in an epoch.
        seed: of the measurements.
    """

    def __init__(
        self,
        num_envs: int,
        compatible: Tensor,
        rules: GrowthRules,
        *,
        loss: Callable[[int], float] = lambda epoch: 1.0,
        worth: Callable[[Tensor], Tensor] = lambda noise: noise,
        sick: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.num_envs, self.num_slots = num_envs, len(compatible)
        self.compatible, self.rules, self._loss, self._worth, self._sick = compatible, rules, loss, worth, sick
        self._generator = torch.Generator().manual_seed(seed)
        self.state = SlotState.empty(num_envs, self.num_slots)
        self.history = HostHistory.empty(num_envs)

    def view(self) -> EnvView:
        features, blueprint_index = observe(
            self.history,
            self.state,
            num_epochs=NUM_EPOCHS,
            param_budget=torch.full((self.num_envs,), 1000.0),
            min_training_epochs=self.rules.min_training_epochs,
            contribution_decay=0.995,
            probes=torch.zeros(self.num_envs, self.num_slots, 4),
        )
        masks = legal(self.state, self.compatible, self.rules)
        return EnvView(
            observation=Observation(features=features, blueprint_index=blueprint_index, masks=masks),
            state=self.state,
            history=self.history,
            slot_ids=tuple(f"r0c{slot}" for slot in range(self.num_slots)),
            slot_probes=PROBE_NAMES,
        )

    def step(self, actions: Tensor) -> Applied:
        state, shape = self.state, self.state.stage.shape
        applied = apply_actions(state, actions, self.compatible, self.rules)
        self.history.record_action(actions[:, Head.OP], applied.success)
        tick(state)
        record_parameters(state, torch.full(shape, 100), torch.ones(shape, dtype=torch.bool))
        record_gradients(state, self._norms(), torch.ones(self.num_envs), torch.full((self.num_envs,), 100), self.rules)
        noise = torch.randn(shape, generator=self._generator, dtype=torch.float64)
        record_contributions(state, torch.where(state.present, self._worth(noise), torch.nan))
        transition(state, self.rules)
        epoch = int(self.history.epoch[0]) + 1
        loss = torch.full((self.num_envs,), self._loss(epoch), dtype=torch.float64)
        self.history.record(loss, torch.full_like(loss, 0.5))
        return applied

    def _norms(self) -> Tensor:
        sick = torch.rand(self.state.stage.shape, generator=self._generator, dtype=torch.float64) < self._sick
        return torch.where(sick, self.rules.vanish_norm / 100, 1.0)

    def play(self, controller: Controller, num_steps: int) -> Tensor:
        """Return actions ``int64 [T, E, 8]``, after checking that all are legal."""
        controller.reset(torch.ones(self.num_envs, dtype=torch.bool))
        taken = []
        for step in range(num_steps):
            view = self.view()
            actions = controller.act(view)
            applied = self.step(actions)
            assert applied.success.all(), (controller.name, step, actions[~applied.success].tolist())
            taken.append(actions)
        return torch.stack(taken)


def fits_all(num_slots: int) -> Tensor:
    """Return ``bool [S, B]``: everything but noop fits everywhere."""
    compatible = torch.ones(num_slots, NUM_BLUEPRINTS, dtype=torch.bool)
    compatible[:, 0] = False
    return compatible
