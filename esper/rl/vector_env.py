"""Growing hosts as a vector environment of gymnasium.

Axis legend: E = environments, D = features, S = slots, B = blueprints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from esper.blueprints import blueprint_ids
from esper.config import compose
from esper.config.errors import refused
from esper.config.learning import Twin
from esper.config.root import Config
from esper.envs.growth import GrowthEnv
from esper.envs.instances import SPLITS
from esper.envs.observations import Observation
from esper.experiment.build import build_experiment
from esper.experiment.preflight import preflight
from esper.growth.legality import permitted
from esper.rl import actions as action_forms
from esper.rl import observations as observation_forms
from esper.runtime.choices import known
from esper.runtime.devices import keep_freed_memory


class GrowthVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """E growing hosts, one episode each at a time; one step is one epoch of every host.

    Rewards are those of Esper's own learner, scaled by ``reward.scale``. An episode ends at its last epoch or when its
    host crashes, and the next one starts in the same step (``AutoresetMode.SAME_STEP``): ``infos["final_obs"]`` and
    ``infos["final_info"]["record"]``, an :class:`~esper.envs.records.EpisodeRecord`, are of the one that has ended.
    Nothing is ever truncated. An illegal action does nothing, and ``infos["illegal"]`` counts it.

    Args:
        num_envs: E.
        preset: preset of the configuration; ``None`` for the default one.
        overrides: arguments as on the command line of a run: ``["env.num_epochs=10", "reward.rent_weight=2.0"]``.
        actions: ``"flat"``, ``Discrete(1 + S * (B + 3))`` with exact masks, or ``"factored"``, ``MultiDiscrete`` of the
            policy's eight heads, of which some combinations are illegal.
        observations: ``"box"``, an array of D + S numbers, or ``"dict"``, ``features``, ``blueprints`` and
            ``action_mask``.
        split: hosts to grow: ``"train"``, ``"validation"`` or ``"held_out"``, those of an evaluation. Records of hosts
            that are not for training have test accuracy.

    Attributes:
        config: the configuration.
        growth: the environment inside; ``None`` before the first reset.

    Raises:
        UsageError: a preset or key does not exist, or a value is refused, in one line.
        ValueError: an unknown form or split, or another preset or number of environments among the overrides.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        num_envs: int = 1,
        *,
        preset: str | None = "digits",
        overrides: Sequence[str] = (),
        actions: str = "flat",
        observations: str = "box",
        split: str = "train",
    ) -> None:
        known("actions", actions, action_forms.FORMS)
        known("observations", observations, observation_forms.FORMS)
        known("split", split, SPLITS)
        if isinstance(overrides, str) or not all(isinstance(word, str) for word in overrides):
            raise ValueError(f"overrides={overrides!r}: give a list of words, such as ['env.num_epochs=10']")
        for key, value in (("trainer.num_envs", f"num_envs={num_envs}"), ("preset", f"preset={preset!r}")):
            if any(word.lstrip("+").startswith(f"{key}=") for word in overrides):
                raise ValueError(f"overrides={list(overrides)}: {key} is given by {value}")
        keep_freed_memory()
        words = [] if preset is None else [f"+preset={preset}"]
        # Esper's own learner is not used, and may need more environments for its minibatches.
        words += [*overrides, f"trainer.num_envs={num_envs}", "ppo.num_minibatches=1"]
        with refused(Config):
            config = compose(*words)
            preflight(config)
            self._experiment = build_experiment(config)
        self.config = self._experiment.config
        self.growth: GrowthEnv | None = None
        self._last: Observation | None = None
        self._pool = self._experiment.pool(split, self._experiment.num_hosts(split))
        self._measure_test = split != "train"
        self._twins = None
        if config.reward.twin is Twin.cached:
            self._twins = self._experiment.twins(num_envs, lambda done, total: None)
        self.num_envs = num_envs
        self.autoreset_mode = AutoresetMode.SAME_STEP
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": []}
        slot_ids = self._experiment.slot_ids
        width = config.observation.num_features
        assert width is not None, "nulls are resolved on loading"
        self._actions = action_forms.FORMS[actions](num_envs, slot_ids, blueprint_ids())
        sizes = (width, len(slot_ids), len(blueprint_ids()), self._actions.num_choices)
        self._observations = observation_forms.FORMS[observations](*sizes)
        self.single_action_space, self.single_observation_space = self._actions.space, self._observations.space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    @torch.inference_mode(False)  # hosts learn whatever mode the learner acts in
    @torch.enable_grad()
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes of all environments. The first reset computes the never-grown twins of all hosts.

        Args:
            seed: run seed that determines which hosts come in which order, as ``seed=`` does in a run; by default they
                continue, at first with the configuration's seed.
            options: none exist.

        Raises:
            ValueError: an unknown option.
        """
        super().reset(seed=seed)
        for name in options or {}:
            raise ValueError(f"options: unknown {name!r}; none exist")
        if self.growth is None or seed is not None:
            if self._twins is not None:
                self._twins.require(self._pool)
            self.growth = self._experiment.env(
                range(self.num_envs),
                self._pool,
                self._twins,
                run_seed=self.config.seed if seed is None else seed,
                measure_test=self._measure_test,
            )
        self._last = self.growth.reset()
        return self._translated(self._last), {}

    @torch.inference_mode(False)  # hosts learn whatever mode the learner acts in
    @torch.enable_grad()
    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Apply one action per environment and train every host one epoch.

        Raises:
            ValueError: an action is not in the space.
            ResetNeeded: there was no reset yet.
        """
        rows = self._actions.rows(actions)
        illegal = ~permitted(self._seen.masks, rows)
        assert self.growth is not None, "what was seen has been reset"
        result = self.growth.step(rows)
        following, ended = result.observation, result.terminated.numpy().copy()
        infos: dict[str, Any] = {"illegal": illegal.numpy(), "_illegal": np.ones(self.num_envs, dtype=np.bool_)}
        if ended.any():
            final = list(iterate(self.observation_space, self._translated(following)))
            for record in result.episodes:
                last = {"final_obs": final[record.environment], "final_info": {"record": record}}
                infos = self._add_info(infos, last, record.environment)
            following = self.growth.reset(result.terminated)
        self._last, reward = following, result.reward.double().numpy()
        return self._translated(following), reward, ended, np.zeros_like(ended), infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the legal choices of the present state.

        Returns:
            ``bool [E, n]``: exact for flat actions; for factored ones the choices of all heads, one head after the
            other, each without regard to the others.

        Raises:
            ResetNeeded: there was no reset yet.
        """
        return self._actions.masks(self._seen.masks)

    def _translated(self, observation: Observation) -> Any:
        return self._observations.of(observation, self._actions.masks(observation.masks))

    @property
    def _seen(self) -> Observation:
        if self._last is None:
            raise ResetNeeded("growing hosts must be reset before their first step")
        return self._last
