"""Gradient norms of the host and of its seed modules at the optimizer's steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from esper.runtime.state import State, copied


class GradientNorms:
    """Mean gradient norms over the optimizer steps of an epoch, without synchronising with the device before they are
    read.

    Args:
        optimizer: optimizer whose steps are measured, except those with a closure, which computes gradients later.
        host: parameters of the host.
        modules: returns the parameters of each slot's seed module, none for an empty slot.

    Attributes:
        num_steps: steps measured in this epoch so far.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        host: Sequence[nn.Parameter],
        modules: Callable[[], Sequence[Sequence[nn.Parameter]]],
    ) -> None:
        self._optimizer, self._host, self._modules = optimizer, list(host), modules
        self._sums: dict[int, Tensor] = {}
        self._counts: dict[int, float | Tensor] = {}
        self.num_steps = 0
        self._handle = optimizer.register_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not any(callable(each) for each in (*args, *kwargs.values())):
            self.measure()

    @torch.no_grad()
    def measure(self) -> None:
        """Add the present gradients; called automatically before every step without a closure."""
        self.num_steps += 1
        for owner, parameters in enumerate([self._host, *self._modules()]):
            gradients = [_dense(parameter.grad) for parameter in parameters if parameter.grad is not None]
            if gradients:
                self._add(owner, total_norm(gradients))

    def not_finite(self, slot: int, broken: Tensor) -> None:
        """Record that a module had a gradient that was not finite and has been dropped, ``bool []``."""
        if broken.device.type == "cpu" and not broken:  # elsewhere the question would wait for the device
            return
        self._add(1 + slot, torch.zeros((), device=broken.device).masked_fill(broken, torch.inf), count=0.0)

    def _add(self, owner: int, norm: Tensor, count: float | Tensor = 1.0) -> None:
        scale = getattr(self._optimizer, "grad_scale", None)  # of a GradScaler whose optimizer unscales by itself
        skipped = getattr(self._optimizer, "found_inf", None)
        if scale is not None:
            norm = norm / scale
        if skipped is not None:
            norm, count = norm.masked_fill(skipped > 0, 0.0), count * (skipped <= 0)
        if owner in self._sums:
            norm, count = self._sums[owner] + norm, self._counts[owner] + count
        self._sums[owner], self._counts[owner] = norm, count

    def read(self, num_slots: int) -> tuple[Tensor, Tensor]:
        """Return mean norms of the host ``float64 [1]`` and of the modules ``[1, S]``, and reset them.

        Infinite where a gradient was not finite, NaN where there was none.
        """
        means = torch.full((1 + num_slots,), torch.nan, dtype=torch.float64)
        for owner, total in self._sums.items():
            means[owner] = total.double().nan_to_num(nan=torch.inf, posinf=torch.inf).cpu() / float(self._counts[owner])
        self._sums, self._counts, self.num_steps = {}, {}, 0
        return means[:1], means[None, 1:]

    def close(self) -> None:
        """Remove the hook from the optimizer."""
        self._handle.remove()

    def state_dict(self) -> State:
        """Return the sums of this epoch so far."""
        sums = {owner: copied(value) for owner, value in self._sums.items()}
        counts = {owner: float(count) for owner, count in self._counts.items()}
        return {"sums": sums, "counts": counts, "num_steps": self.num_steps}

    def load_state_dict(self, state: State) -> None:
        """Restore the sums."""
        self._sums = {owner: value.to(self._host[0].device) for owner, value in state["sums"].items()}
        self._counts, self.num_steps = dict(state["counts"]), state.get("num_steps", 0)


def _dense(gradient: Tensor) -> Tensor:
    """Return a gradient, or of a sparse one, as of an embedding, a dense tensor of the same norm."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of several gradients together, at least one."""
    first = gradients[0]
    if any(each.device != first.device or each.dtype != first.dtype for each in gradients):
        return get_total_norm(gradients)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))
    return norm
