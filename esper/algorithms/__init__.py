"""Algorithms that improve a policy from rollouts, in one registry, and their building blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from esper.algorithms.a2c import A2C, A2CSettings
from esper.algorithms.buffer import RolloutBatch, RolloutBuffer
from esper.algorithms.contract import Algorithm, UpdateResult
from esper.algorithms.gae import gae, monte_carlo_returns
from esper.algorithms.imitation import Imitation, ImitationSettings
from esper.algorithms.optimizer import PolicyOptimizer
from esper.algorithms.ppo import PPO, PPOSettings
from esper.algorithms.schedule import Schedule
from esper.policy import GrowthPolicy
from esper.runtime.ranks import ALONE, Ranks
from esper.runtime.registry import Registry
from esper.runtime.rng import generator
from esper.runtime.user_code import UsersCodeError, is_ours, named, of_the_user


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmContext:
    """Ingredients for building an algorithm.

    Attributes:
        policy: policy to improve in place.
        gamma: the environment's discount, under which its rewards telescope.
        seed: seed of the run, for algorithms that draw random numbers.
        ppo, a2c: hyperparameters of Esper's own algorithms, from the sections of these names.
        ranks: the ranks of the run.
        first_env: number of this rank's first environment among those of all ranks.
    """

    policy: GrowthPolicy
    gamma: float
    seed: int
    ppo: PPOSettings
    a2c: A2CSettings
    ranks: Ranks = ALONE
    first_env: int = 0


Builder = Callable[[AlgorithmContext], Algorithm]


def _ppo(context: AlgorithmContext) -> Algorithm:
    return PPO(
        context.policy,
        context.ppo,
        gamma=context.gamma,
        generator=generator("minibatches", context.seed, context.ranks.rank),
        ranks=context.ranks,
        first_env=context.first_env,
    )


def _a2c(context: AlgorithmContext) -> Algorithm:
    return A2C(context.policy, context.a2c, gamma=context.gamma, ranks=context.ranks)


ALGORITHMS: Registry[Builder] = Registry("algorithm", {"ppo": _ppo, "a2c": _a2c})


def register_algorithm(name: str, build: Builder) -> None:
    """Register an algorithm, to be selected by ``algorithm=<name>``.

    Args:
        name: an identifier.
        build: takes an :class:`AlgorithmContext`, returns an :class:`Algorithm`.

    Raises:
        ValueError: the name is not an identifier, or belongs to another algorithm.
    """
    ALGORITHMS.register(name, build)


def build_algorithm(name: str, context: AlgorithmContext) -> Algorithm:
    """Build the algorithm with a name.

    Raises:
        ValueError: unknown name; lists the choices.
        UsersCodeError: a user's algorithm fails, or is not an :class:`Algorithm`.
    """
    build = ALGORITHMS.find(name, "algorithm")
    if is_ours(build):
        return build(context)
    what = f"algorithm {name!r}: {named(build)}"
    with of_the_user(what):
        algorithm = build(context)
    lacking = [part for part in ("update", "shared", "own") if not hasattr(algorithm, part)]
    if lacking:
        raise UsersCodeError(f"{what} returns a {type(algorithm).__name__}, which has no {', '.join(lacking)}")
    return _OfTheUser(what, algorithm)


class _OfTheUser:
    """A user's algorithm, whose failures are reported in one line."""

    def __init__(self, what: str, algorithm: Algorithm) -> None:
        self._what, self._algorithm = f"{what}.update", algorithm
        self.shared, self.own = algorithm.shared, algorithm.own

    def update(self, buffer: RolloutBuffer, iteration: int) -> UpdateResult:
        """Call the user's update, and refuse a result of another type than :class:`UpdateResult`."""
        with of_the_user(self._what):
            result = self._algorithm.update(buffer, iteration)
        if not isinstance(result, UpdateResult):
            raise UsersCodeError(f"{self._what} must return an UpdateResult, not a {type(result).__name__}")
        return result


__all__ = [
    "A2C",
    "ALGORITHMS",
    "PPO",
    "A2CSettings",
    "Algorithm",
    "AlgorithmContext",
    "Imitation",
    "ImitationSettings",
    "PPOSettings",
    "PolicyOptimizer",
    "RolloutBatch",
    "RolloutBuffer",
    "Schedule",
    "UpdateResult",
    "build_algorithm",
    "gae",
    "monte_carlo_returns",
    "register_algorithm",
]
