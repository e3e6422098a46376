"""The episode that each environment is in: what it grows, and what has come of it so far.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from esper.blueprints import blueprint_ids
from esper.envs.instances import Instance, InstancePool
from esper.envs.records import EpisodeRecord
from esper.growth import SlotState, Stage
from esper.population import Scores
from esper.runtime.state import State
from esper.tasks import TaskData


class Episodes:
    """Books of E environments, one episode each at a time.

    Attributes:
        instances: what each environment grows; empty before the first draw.
        numbers: episodes that each has begun.
        births: modules that were ever put into its host in this one.
        returns: ``float64 [E]``, discounted unscaled rewards of this one so far.
        trained: ``float64 [E]``, multiply-adds spent on training in this one so far.
    """

    def __init__(self, num_envs: int) -> None:
        self.instances: list[Instance] = []
        self.numbers = [0] * num_envs
        self.births = [0] * num_envs
        self.returns = torch.zeros(num_envs, dtype=torch.float64)
        self.trained = torch.zeros(num_envs, dtype=torch.float64)

    def begin(self, pool: InstancePool, environments: Sequence[int], run_seed: int, first: int) -> list[Instance]:
        """New episodes of some environments.

        Args:
            pool: instances to draw from.
            environments: which; all of them at first.
            run_seed, first: of the draws, see :class:`esper.envs.growth.GrowthEnv`.

        Returns:
            What they will grow.
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

    def state_dict(self) -> State:
        """Instances by their position in the pool, and all counts, as tensors ``[E]``."""
        return {
            "instances": torch.tensor([instance.index for instance in self.instances]),
            "numbers": torch.tensor(self.numbers),
            "births": torch.tensor(self.births),
            "returns": self.returns.clone(),
            "trained": self.trained.clone(),
        }

    def load_state_dict(self, state: State, pool: InstancePool) -> None:
        """Go on in these episodes."""
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
        host_cost: float,
        crashed: bool,
        shapley: Sequence[float],
    ) -> EpisodeRecord:
        """How an environment's episode has ended.

        Args:
            env: which.
            state: of the slots of all environments.
            slot_ids: in canonical order.
            num_epochs: host epochs that it lasted.
            task: of all hosts.
            val, test: scores of the final networks, ``[E]`` each; no test where it is not asked for.
            host_cost: multiply-adds that the host alone takes for an epoch.
            crashed: whether the host broke down.
            shapley: points by slot; what is not finite was not measured.
        """
        fossilized = state.stage[env] == Stage.FOSSILIZED
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
            shapley={
                slot_id: points for slot_id, points in zip(slot_ids, shapley, strict=True) if math.isfinite(points)
            },
        )
