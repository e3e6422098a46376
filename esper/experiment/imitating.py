"""The first iterations of a run that imitates another controller: who plays them, and what learns from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from esper.algorithms import Imitation
from esper.controllers import CONTROLLERS, Controller, ControllerContext, Static, build_controller, needed_by
from esper.controllers.guarded import start_anew
from esper.envs.growth import GrowthEnv
from esper.experiment.build import Experiment
from esper.experiment.learning import imitation_settings
from esper.policy import GrowthPolicy, Normaliser
from esper.runtime.controller_names import LEARNED
from esper.runtime.rng import derive_seed, generator
from esper.runtime.state import Stateful

KEY = "imitation.controller"

EXPERT = "imitation_expert"
"""Name of the imitated controller in the state of a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitating:
    """The imitated controller, and the algorithm of the policy that imitates it.

    Attributes:
        expert: controller of this rank's environments.
        algorithm: learns from its rollouts.
        iterations: iterations that it plays, from the first one on.
    """

    expert: Controller
    algorithm: Imitation
    iterations: int

    @property
    def shared(self) -> Mapping[str, Stateful]:
        """Components whose state is equal on every rank."""
        return {f"imitation_{name}": part for name, part in self.algorithm.shared.items()}

    @property
    def own(self) -> Mapping[str, Stateful]:
        """Components whose state differs between ranks."""
        return {EXPERT: self.expert} | {f"imitation_{name}": part for name, part in self.algorithm.own.items()}


def check_expert(name: str) -> None:
    """Refuse a controller that cannot be imitated.

    Raises:
        ValueError: it is unknown, learns itself, or needs what only an evaluation has; the message lists the choices.
    """
    CONTROLLERS.find(name, KEY)
    needed = "a policy, which is what learns" if name == LEARNED else needed_by(name)
    if needed:
        choices = [other for other in CONTROLLERS if other != LEARNED and not needed_by(other)]
        raise ValueError(f"{KEY}: {name!r} needs {needed}; choose from {', '.join(choices)}")


def build_expert(experiment: Experiment, policy: GrowthPolicy, normaliser: Normaliser, num_envs: int) -> Controller:
    """Build the controller to imitate for this rank's environments, at the start of their episodes.

    Raises:
        ValueError: it cannot be built, or a user's one cannot be imitated.
    """
    config = experiment.config
    name = config.imitation.controller
    assert name is not None, "there is something to imitate"
    context = ControllerContext(
        num_envs=num_envs,
        space=experiment.space,
        seed=derive_seed("imitation", config.seed, experiment.ranks.rank),
        schedule=experiment.schedule(),
        policy=policy,
        normaliser=normaliser,
        deterministic=config.evaluation.deterministic,
        greedy=config.evaluation.greedy,
    )
    expert = build_controller(name, context)
    if isinstance(expert, Static):
        raise ValueError(f"{KEY}: {name!r} plants modules before the first epoch, which no action of a policy does")
    lacking = [method for method in ("state_dict", "load_state_dict") if not callable(getattr(expert, method, None))]
    if lacking:
        raise ValueError(
            f"{KEY}: {name!r} has no {' and no '.join(lacking)}, without which a run cannot be resumed: derive it from "
            "Stateless, or return and restore what its decisions depend on"
        )
    start_anew(expert, torch.ones(num_envs, dtype=torch.bool))
    return expert


def build_imitating(
    experiment: Experiment, policy: GrowthPolicy, normaliser: Normaliser, env: GrowthEnv
) -> Imitating | None:
    """Build the parts of a run that imitates a controller; ``None`` if it imitates none."""
    config = experiment.config
    if config.imitation.controller is None:
        return None
    algorithm = Imitation(
        policy,
        imitation_settings(config.imitation),
        gamma=env.settings.gamma,
        generator=generator("imitation", config.seed, experiment.ranks.rank),
        ranks=experiment.ranks,
    )
    expert = build_expert(experiment, policy, normaliser, env.num_envs)
    return Imitating(expert=expert, algorithm=algorithm, iterations=config.imitation.iterations)
