"""Optimizer step that all ranks take together."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from esper.policy.network import GrowthPolicy
from esper.runtime.precision import policy_scaler
from esper.runtime.ranks import ALONE, Ranks
from esper.runtime.state import Stateful


class EagerAdam(torch.optim.Adam):
    """PyTorch's Adam without its wrappers for ``torch.compile``, which import the compiler when they are first called:
    as long as importing torch, at the start of every run.

    All parameters in one call, which takes a sixth of the time of a call for each on a CPU and rounds otherwise. A run
    that is resumed from a checkpoint written without it stays without it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float, eps: float) -> None:
        super().__init__(parameters, lr=lr, eps=eps, fused=True)

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class PolicyOptimizer:
    """Adam on a policy, with gradients summed over all ranks and clipped.

    Every rank steps and skips at the same minibatches, so that their policies stay equal to the bit. A minibatch whose
    loss or gradient is not finite on any of them is skipped: parameters and optimizer stay as they are.

    Call :meth:`backward`, then :meth:`step` unless there is a reason not to.

    Args:
        policy: changed in place.
        lr: learning rate; set :attr:`lr` for a schedule.
        eps: Adam's epsilon.
        max_grad_norm: largest norm of a gradient, over all parameters.
        ranks: the ranks of the run.

    Attributes:
        optimizer: PyTorch's.
        scaler: loss scaler, for a policy that computes in fp16. Its overflows are skipped minibatches like any other.
    """

    def __init__(
        self, policy: GrowthPolicy, *, lr: float, max_grad_norm: float, eps: float = 1e-8, ranks: Ranks = ALONE
    ) -> None:
        self._policy, self._max_grad_norm, self._ranks = policy, max_grad_norm, ranks
        self.optimizer: torch.optim.Optimizer = EagerAdam(policy.parameters(), lr=lr, eps=eps)
        self.scaler = policy_scaler(next(policy.parameters()).device, policy.autocast_dtype)

    @property
    def components(self) -> Mapping[str, Stateful]:
        """Components whose state checkpoints hold; equal on every rank."""
        return {"optimizer": self.optimizer} | ({} if self.scaler is None else {"scaler": self.scaler})

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    @lr.setter
    def lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def backward(self, loss: Tensor, numbers: Sequence[Tensor] = ()) -> list[float] | None:
        """Compute the gradient of a minibatch over all ranks, and sum numbers over the ranks in the same exchange.

        Args:
            loss: ``[]``, this rank's sums over counts of all ranks, so that the ranks' gradients add up to that of the
                whole minibatch.
            numbers: ``[]`` each, as many on every rank.

        Returns:
            The numbers' sums, or ``None`` if the loss is not finite on some rank: there is no gradient then, and
            :meth:`step` does nothing.
        """
        self.optimizer.zero_grad(set_to_none=True)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        # The flag is separate, because 0 times a sum that is not finite would not be 0.
        broken = ~loss.detach().isfinite()
        *sums, broken_ranks = self._add_up(torch.stack([part.detach().float() for part in (*numbers, broken)])).tolist()
        if broken_ranks:
            self.optimizer.zero_grad(set_to_none=True)
            return None
        return sums

    def step(self) -> float | None:
        """Take one step; return the gradient's norm before clipping, or ``None`` if the step was skipped."""
        if all(parameter.grad is None for parameter in self._policy.parameters()):
            return None
        if self.scaler is not None:
            # After summing, so that an overflow on any rank lowers the scale on all.
            self.scaler.unscale_(self.optimizer)
        norm = float(nn.utils.clip_grad_norm_(self._policy.parameters(), self._max_grad_norm))
        finite = math.isfinite(norm)
        if finite:
            self.optimizer.step()
        else:
            self.optimizer.zero_grad(set_to_none=True)
        if self.scaler is not None:
            self.scaler.update()  # uses the result of unscaling: a lower scale after an overflow
        return norm if finite else None

    def _add_up(self, numbers: Tensor) -> Tensor:
        """Sum every gradient and the numbers ``[n]`` over the ranks, in one exchange; return the numbers.

        The gradient of an unused parameter counts as 0.
        """
        if self._ranks.size == 1:
            return numbers
        parameters = list(self._policy.parameters())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        summed = self._ranks.sum(torch.cat([*(gradient.flatten() for gradient in gradients), numbers]))
        pieces = torch.split(summed, [*(p.numel() for p in parameters), len(numbers)])
        for parameter, piece in zip(parameters, pieces, strict=False):
            parameter.grad = piece.view_as(parameter)
        return pieces[-1]
