"""Joint actions of two ranks in separate processes: each function here is called on every rank. A scenario returns
something picklable; the tests compare the results of the ranks.

A scenario returns something picklable; the tests look at what each rank returned.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "algorithms")]

from cue_world import filled_buffer, new_buffer, small_policy  # noqa: E402
from helpers import small_experiment  # noqa: E402
from processes import LIMIT, started  # noqa: E402
from schema_defaults import a2c_settings, imitation_settings, ppo_settings  # noqa: E402

from esper.algorithms import A2C, PPO, Algorithm, Imitation, PPOSettings, RolloutBuffer, UpdateResult  # noqa: E402
from esper.algorithms.losses import normalise_advantages  # noqa: E402
from esper.evaluation.tuning import tune  # noqa: E402
from esper.growth.actions import Head  # noqa: E402
from esper.policy import Normaliser  # noqa: E402
from esper.policy.normaliser import moments  # noqa: E402
from esper.runtime.placement import Placement  # noqa: E402
from esper.runtime.preemption import StopSignals, Vote  # noqa: E402
from esper.runtime.ranks import ALONE, Ranks, connected  # noqa: E402
from esper.runtime.records import Metrics  # noqa: E402
from esper.runtime.run_folder import RunFolder  # noqa: E402
from esper.telemetry.buffer import EventBuffer  # noqa: E402
from esper.telemetry.events import Level, to_record  # noqa: E402
from esper.telemetry.hub import TelemetryHub  # noqa: E402
from esper.training.trainer import Trainer  # noqa: E402

NUM_ENVS = 5
SHARES = (range(3), range(3, 5))
"""Uneven: three environments on the first rank, two on the second."""

GROWING = (
    "env.num_epochs=4",
    "ppo.num_minibatches=1",
    "ppo.target_kl=null",
    "telemetry.level=normal",
    "telemetry.escalation_iterations=1",
)
"""Three environments that train: two on the first rank, one on the second."""

LEARNING = ppo_settings(num_minibatches=1, update_epochs=4, target_kl=None)


def part(whole: RolloutBuffer, share: range) -> RolloutBuffer:
    """The rollout of some environments as a buffer of its own."""
    buffer = new_buffer(len(share), whole.num_steps)
    buffer._data = whole.data[torch.tensor(share)]
    buffer._cursor = whole.num_steps
    return buffer


def learn(
    ranks: Ranks, settings: PPOSettings | None = LEARNING, spoil: Callable[[RolloutBuffer], None] = lambda buffer: None
) -> tuple[list[torch.Tensor], Metrics]:
    """Parameters after an update on one rollout, of which each rank has its share, and what it reports.

    By PPO, or by A2C without settings.
    """
    policy = small_policy()
    whole = filled_buffer(policy, num_envs=NUM_ENVS)
    spoil(whole)
    own = whole if ranks.size == 1 else part(whole, SHARES[ranks.rank])
    first = 0 if ranks.size == 1 else SHARES[ranks.rank].start
    algorithm: Algorithm
    if settings is None:
        algorithm = A2C(policy, a2c_settings(), gamma=1.0, ranks=ranks)
    else:
        generator = torch.Generator().manual_seed(2)
        algorithm = PPO(policy, settings, gamma=1.0, generator=generator, ranks=ranks, first_env=first)
    result = algorithm.update(own, 1)
    return [parameter.detach() for parameter in policy.parameters()], result.metrics


def uneven(ranks: Ranks) -> Any:
    """An update of five environments on two ranks."""
    return learn(ranks)


def uneven_per_head(ranks: Ranks) -> Any:
    """Update five environments on two ranks with a ratio per head, whose clipped share has a separate denominator."""
    return learn(ranks, replace(LEARNING, ratio="per_head"))


def uneven_a2c(ranks: Ranks) -> Any:
    """Update five environments on two ranks by A2C."""
    return learn(ranks, None)


def uneven_imitation(ranks: Ranks) -> Any:
    """Imitate the actions of five environments on two ranks; the policy cannot take some of the second rank's."""
    policy = small_policy(choices={Head.STYLE: [1, 2], Head.OP: [0, 1]})
    whole = filled_buffer(small_policy(), num_envs=NUM_ENVS)
    own = whole if ranks.size == 1 else part(whole, SHARES[ranks.rank])
    generator, settings = torch.Generator().manual_seed(2), imitation_settings(num_minibatches=1)
    result = Imitation(policy, settings, gamma=1.0, generator=generator, ranks=ranks).update(own, 1)
    return [parameter.detach() for parameter in policy.parameters()], result.metrics


def broken_a2c(ranks: Ranks) -> Any:
    """The second rank's broken environment costs both ranks A2C's only step."""
    return learn(ranks, None, poisoned)


def shifted(buffer: RolloutBuffer) -> None:
    """Make the policy look far from what it was in the last environment, which is the second rank's."""
    log_prob = buffer.data.log_prob
    log_prob[-1, :, 0] -= 0.9 * (log_prob[-1, :, 0] != 0)


def kl_of_one_rank(ranks: Ranks) -> Any:
    """Only the second rank's environments have moved."""
    return learn(ranks, replace(LEARNING, target_kl=0.01), shifted)


def poisoned(buffer: RolloutBuffer) -> None:
    """Make a reward of the last environment, which is the second rank's, NaN."""
    buffer.data.reward[-1] = torch.nan


def broken_on_one_rank(ranks: Ranks) -> Any:
    """Two minibatches: the one with the second rank's broken environment is skipped by both, the other is not."""
    settings = replace(LEARNING, num_minibatches=2, update_epochs=1, norm_adv=False)
    return learn(ranks, settings, poisoned)


def merged_normaliser(ranks: Ranks) -> Any:
    """Two rollouts of uneven size, taken in rank by rank."""
    features = torch.randn(2, NUM_ENVS, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features = (50 + 3 * features).float()
    normaliser = Normaliser(torch.ones(4, dtype=torch.bool))
    for rollout in features:
        own = rollout if ranks.size == 1 else rollout[torch.tensor(SHARES[ranks.rank])]
        for new in ranks.all_gather(moments(own)):
            normaliser.merge(new)
    return dict(normaliser.state_dict())


def advantages(ranks: Ranks) -> Any:
    """Normalised advantages of five environments, in whole or in shares."""
    stream = torch.Generator().manual_seed(3)
    values = 5 + 2 * torch.randn(NUM_ENVS, 9, generator=stream)
    choice = torch.rand(NUM_ENVS, 9, generator=stream) < 0.7
    if ranks.size > 1:
        own = torch.tensor(SHARES[ranks.rank])
        values, choice = values[own], choice[own]
    return normalise_advantages(values, choice, ranks.sum)


def exchanges(ranks: Ranks) -> Any:
    """Every kind of exchange once."""
    return {
        "sum": ranks.sum(torch.full((2,), 1.0 + ranks.rank)).tolist(),
        "all_gather": ranks.all_gather(f"rank {ranks.rank}"),
        "gather": ranks.gather(ranks.rank),
        "broadcast": ranks.broadcast(f"from {ranks.rank}"),
    }


def votes(ranks: Ranks) -> Any:
    """Vote five times; only the last rank receives a signal, before the third, and the result stays."""
    signals = StopSignals()
    vote, answers = Vote(ranks, signals), []
    for point in range(5):
        if point == 2 and ranks.rank == ranks.size - 1:
            signals.requested = 15
        answers.append(vote.ask())
    return [*answers, vote.settle(), vote.settle()]


def tuned(ranks: Ranks) -> Any:
    """A search whose pairs three environments share: two on the first rank, one on the second."""
    experiment = replace(small_experiment("slots.blueprints=[conv_light]", "env.num_epochs=6"), ranks=ranks)
    twins = experiment.twins(len(experiment.share(3)), lambda done, total: None)
    return tune(experiment, twins, budget=60, controls=["schedule_best", "static_full"]).to_record()


class Kept(EventBuffer):
    """Logger that keeps the first rank's output in memory."""

    name = "kept"


def escalates(ranks: Ranks) -> Any:
    """Three iterations; in the first, actions of the last rank's last environment look far less likely than they were.

    Returns parameters, levels of telemetry after each iteration, and what the first rank is told.
    """
    experiment = replace(small_experiment(*GROWING), ranks=ranks)
    own = None if ranks.is_first else EventBuffer()
    kept = own or Kept()
    levels = []

    def update(buffer: RolloutBuffer, iteration: int) -> UpdateResult:
        if trainer.iteration == 0 and ranks.rank == ranks.size - 1:
            log_prob = buffer.data.log_prob
            log_prob[-1, :, 0] -= 3 * (log_prob[-1, :, 0] != 0)
        return algorithm.update(buffer, iteration)

    with TelemetryHub([kept], Level.normal) as hub:
        trainer = Trainer(experiment, RunFolder(Path("nowhere")), hub, own)
        algorithm = trainer.algorithm
        trainer.algorithm = SimpleNamespace(update=update)
        trainer.begin()
        for _ in range(3):
            trainer.iterate()
            levels.append((trainer.escalation.level.name, hub.level.name))
    told = [to_record(event) for event in kept.drain()] if ranks.is_first else []
    return [parameter.detach() for parameter in trainer.policy.parameters()], levels, told


SCENARIOS = (
    uneven,
    uneven_per_head,
    uneven_a2c,
    uneven_imitation,
    broken_a2c,
    kl_of_one_rank,
    broken_on_one_rank,
    merged_normaliser,
    advantages,
    exchanges,
    votes,
    tuned,
    escalates,
)


def alone() -> dict[str, Any]:
    """Return the result of a single rank with everything."""
    return {scenario.__name__: scenario(ALONE) for scenario in SCENARIOS}


def together() -> list[dict[str, Any]]:
    """Return the result of each of two ranks."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as processes:
        command = [sys.executable, "-m", "tests.runtime.scenarios", folder]
        ranks = [processes.enter_context(started([*command, rank], stdout=subprocess.DEVNULL)) for rank in ("0", "1")]
        for rank in ranks:  # one that waits for another that has failed hears of it
            assert rank.wait(LIMIT) == 0
        return [pickle.loads((Path(folder) / f"{rank}.pickle").read_bytes()) for rank in (0, 1)]


def main(folder: str, rank: int) -> None:
    """Run everything as one of two ranks."""
    torch.set_num_threads(1)
    placement = Placement(rank=rank, size=2, local_rank=rank, local_size=2, rendezvous=f"file://{folder}/rendezvous")
    with connected(placement) as ranks:
        found = {scenario.__name__: scenario(ranks) for scenario in SCENARIOS}
    (Path(folder) / f"{rank}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
