"""The current episode of each environment: its instance and its running totals.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.envs.instances import Instance, InstancePool
from esper.envs.records import EpisodeRecord
from esper.growth import SlotState, Stage
from esper.population import Scores
from esper.runtime.state import State
from esper.tasks import TaskData


class Episodes:
    """Running totals of E environments, one episode each at a time.

    Attributes:
        instances: instance of each environment; empty before the first draw.
        numbers: number of episodes that each environment has started.
        births: number of modules created so far in this episode.
        returns: ``float64 [E]``, discounted unscaled rewards of this episode so far.
        trained: ``float64 [E]``, multiply-adds spent on training in this episode so far.
    """

    def __init__(self, num_envs: int) -> None:
        self.instances: list[Instance] = []
        self.numbers = [0] * num_envs
        self.births = [0] * num_envs
        self.returns = torch.zeros(num_envs, dtype=torch.float64)
        self.trained = torch.zeros(num_envs, dtype=torch.float64)

    def begin(self, pool: InstancePool, environments: Sequence[int], run_seed: int, first: int) -> list[Instance]:
        """Start new episodes in some environments.

        Args:
            pool: instances to draw from.
            environments: indices of the environments; all of them at first.
            run_seed, first: names of the draws, see :class:`esper.envs.growth.GrowthEnv`.

        Returns:
            The instances of the new episodes.
        """
        drawn = [pool.draw(run_seed, first + env, self.numbers[env]) for env in environments]
        if not self.instances:
            assert len(environments) == len(self.numbers), "the first reset must be of all environments"
            self.instances = list(drawn)
        for env, instance in zip(environments, drawn, strict=True):
            self.instances[env] = instance
            self.numbers[env] += 1
            self.births[env] = 0
            self.returns[env] = self.trained[env] = 0.0
        return drawn

    def spent(self, host_cost: float, epochs: Tensor, num_epochs: int) -> Tensor:
        """Return the multiply-adds of this episode beyond those of a host without modules, relative to such a host's
        whole episode, ``float64 [E]``.

        Args:
            host_cost: multiply-adds of the host alone for one epoch.
            epochs: ``int64 [E]``, epochs trained so far.
            num_epochs: epochs of a whole episode.
        """
        return (self.trained - host_cost * epochs) / (host_cost * num_epochs)

    def state_dict(self) -> State:
        """Return instances by their position in the pool, and all totals, as tensors ``[E]``."""
        return {
            "instances": torch.tensor([instance.index for instance in self.instances]),
            "numbers": torch.tensor(self.numbers),
            "births": torch.tensor(self.births),
            "returns": self.returns.clone(),
            "trained": self.trained.clone(),
        }

    def load_state_dict(self, state: State, pool: InstancePool) -> None:
        """Restore the episodes."""
        self.instances = [pool[index] for index in state["instances"].tolist()]
        self.numbers, self.births = state["numbers"].tolist(), state["births"].tolist()
        self.returns, self.trained = state["returns"].clone(), state["trained"].clone()

    def record(
        self,
        env: int,
        state: SlotState,
        slot_ids: Sequence[str],
        *,
        num_epochs: int,
        task: TaskData,
        val: Scores,
        test: Scores | None,
        test_returns: Tensor | None,
        host_cost: float,
        crashed: bool,
        shapley: Sequence[float],
    ) -> EpisodeRecord:
        """Make the record of an environment's ended episode.

        Args:
            env: index of the environment.
            state: state of the slots of all environments.
            slot_ids: slot ids in canonical order.
            num_epochs: length of the episode in host epochs.
            task: task of all hosts.
            val, test: scores of the final networks, ``[E]`` each; no test scores unless requested.
            test_returns: worth of the final networks on test, ``float64 [E]``, undiscounted; not read after a crash,
                and NaN is not measured.
            host_cost: multiply-adds of the host alone for one epoch.
            crashed: true if the host crashed.
            shapley: points by slot; values that are not finite count as not measured.
        """
        fossilized = state.stage[env] == Stage.FOSSILIZED
        on_test = None if test_returns is None else float((self.returns if crashed else test_returns)[env])
        return EpisodeRecord(
            environment=env,
            instance=self.instances[env],
            num_epochs=num_epochs,
            episode_return=float(self.returns[env]),
            val_accuracy=float(val.accuracy[env]),
            test_accuracy=None if test is None else float(test.accuracy[env]),
            val_bits=task.val.bits_per_byte(float(val.loss[env])),
            test_bits=None if test is None else task.test.bits_per_byte(float(test.loss[env])),
            added_parameters=int((state.num_parameters[env] * fossilized).sum()),
            num_fossilized=int(fossilized.sum()),
            kept=tuple(
                (slot_ids[slot], blueprint_ids()[int(state.blueprint[env, slot])])
                for slot in fossilized.nonzero().flatten().tolist()
            ),
            num_germinated=self.births[env],
            relative_flops=float(self.trained[env] / (host_cost * num_epochs)),
            crashed=crashed,
            test_return=on_test if on_test is not None and math.isfinite(on_test) else None,
            shapley={
                slot_id: points for slot_id, points in zip(slot_ids, shapley, strict=True) if math.isfinite(points)
            },
        )
