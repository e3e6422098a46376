"""Distribution of environments over ranks and devices, printed at the start and kept in the result."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass

import torch

from esper.experiment.build import Experiment
from esper.population import Population


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """Description of one rank of a run.

    Attributes:
        rank: number of the rank.
        node: name of its machine.
        device, device_name: device of its hosts and of its copy of the policy.
        environments: numbers of its first and its last environment.
        num_threads: threads of tensor operations.
        hosts_on: device of its hosts' parameters, ``None`` before there are any.
        peak_gpu_bytes: largest amount of tensor memory on its GPU so far; ``None`` on a CPU.
    """

    rank: int
    node: str
    device: str
    device_name: str
    environments: tuple[int, int]
    num_threads: int
    hosts_on: str | None
    peak_gpu_bytes: int | None

    def __str__(self) -> str:
        first, last = self.environments
        threads = f"{self.num_threads} thread{'s' if self.num_threads > 1 else ''}"
        return f"rank {self.rank} on {self.device} ({self.device_name}): environments {first} to {last}, {threads}"

    def to_record(self) -> dict[str, object]:
        """Convert to a plain dict for ``result.json``."""
        return asdict(self)


def gather_rank_info(experiment: Experiment, population: Population | None = None) -> list[RankInfo]:
    """Describe all ranks of the run, in order, on each of them."""
    device, ranks = experiment.device, experiment.ranks
    share = experiment.share(experiment.config.trainer.num_envs)
    on_gpu = device.type == "cuda"
    own = RankInfo(
        rank=ranks.rank,
        node=platform.node(),
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        environments=(share.start, share.stop - 1),
        num_threads=torch.get_num_threads(),
        hosts_on=None if population is None else str(population.hosts.values.device),
        peak_gpu_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else None,
    )
    return ranks.all_gather(own)
