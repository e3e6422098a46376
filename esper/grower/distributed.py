"""Growing one network on several ranks, each of which trains a replica on its own data.

``DistributedDataParallel`` averages the gradients of the parameters that it was built with, and no others; seed
modules are born later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from esper.grower.scores import Score
from esper.runtime.ranks import ALONE, Ranks


class Replicas:
    """The replicas of a network, one on each rank of the default process group; one alone without such a group.

    Attributes:
        ranks: ranks of the process group, for the exchange of picklable values.
    """

    def __init__(self) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.ranks = Ranks(rank=dist.get_rank(), size=dist.get_world_size()) if several else ALONE
        # A group of their own: in backward they come between the exchanges of DistributedDataParallel.
        self._group = dist.new_group() if several else None

    def average(self, gradient: Tensor) -> Tensor:
        """Average a gradient over all ranks in place, with equal bits on every rank."""
        if self._group is not None:
            with torch.no_grad():
                dist.all_reduce(gradient, group=self._group)
                gradient /= self.ranks.size
        return gradient

    def follow(self, parameter: nn.Parameter) -> None:
        """Average the gradient of a parameter whenever ``backward`` has added to it.

        What was added up before is equal on all ranks and stays so.
        """
        if self._group is not None:
            parameter.register_post_accumulate_grad_hook(self._average_gradient)  # type: ignore[no-untyped-call]

    def _average_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.average(parameter.grad)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over ranks of measurements, NaN where one of them is NaN; equal bits on every rank."""
        every = self.ranks.all_gather(values.cpu())
        return every[0] if len(every) == 1 else torch.stack(every).mean(dim=0)

    def mean_scores(self, scores: Sequence[Score]) -> list[Score]:
        """Return the means of scores over ranks."""
        if self.ranks is ALONE:
            return list(scores)
        table = torch.tensor([astuple(score) for score in scores], dtype=torch.float64)
        return [Score(*row) for row in self.mean(table).tolist()]


@contextmanager
def outside_wrapper(argument: str) -> Iterator[None]:
    """Refuse passes through ``DistributedDataParallel``, which would wait for their ``backward``.

    Args:
        argument: the loss that makes the passes, for the message.
    """

    def refuse(module: nn.Module, given: object) -> None:
        if isinstance(module, DistributedDataParallel):
            raise ValueError(
                f"{argument}: it runs a DistributedDataParallel, which would wait for its backward: run the model "
                "inside of it (its .module)"
            )

    if not dist.is_available() or not dist.is_initialized():
        yield
        return
    handle = register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()
