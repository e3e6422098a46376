"""Stacked parameters of one module for several environments, with their Adam optimizer.

Axis legend: R = rows (one per environment that has the module), P = parameters of one copy.

``torch.optim.Adam`` keeps one step count per parameter tensor; here every row has an independent life (an environment
resets, a module is germinated or culled), so moments and step counts are kept per row.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import log

import torch
from torch import Tensor

from esper.population.mapping import Program
from esper.runtime.state import State, copied

ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8


class Stack:
    """Parameters and optimizer state of one module as stacked rows, one for each environment that has it.

    Attributes:
        program: the module prepared for mapping.
        environments: environment of each row.
        values: ``[R, P]``, the leaf that gradients are taken for.
        live: ``[R, P]`` of 0 and 1, or ``None``: parameters that exist; the others are always zero.
        frozen: ``bool [P]``, or ``None``: parameters that never change.
        exp_avg, exp_avg_sq: ``[R, P]`` Adam moments.
        steps: ``[R, 1]`` optimizer steps taken.
    """

    def __init__(self, program: Program, device: torch.device, dtype: torch.dtype) -> None:
        empty = torch.zeros(0, program.layout.size, device=device, dtype=dtype)
        self.program = program
        self.environments: list[int] = []
        self.values = empty.clone().requires_grad_()
        self.live: Tensor | None = None
        frozen = program.layout.frozen()
        self.frozen = None if frozen is None else frozen.to(device)
        self.exp_avg = empty.clone()
        self.exp_avg_sq = empty.clone()
        self.steps = torch.zeros(0, 1, device=device, dtype=dtype)
        self._num_trained: Tensor | None = None  # counted once per ``live``: reading it waits for the device

    def __len__(self) -> int:
        return len(self.environments)

    def row(self, environment: int) -> int:
        """Return the row of an environment; raise ``ValueError`` if it has none."""
        return self.environments.index(environment)

    def num_trained(self) -> Tensor:
        """Return the number of parameters of each row that exist and are trained, ``int64 [R]``."""
        if self.live is None:
            return torch.full((len(self),), self.program.layout.num_trained)
        if self._num_trained is None:
            live = self.live if self.frozen is None else self.live.masked_fill(self.frozen, 0.0)
            self._num_trained = live.count_nonzero(dim=1).cpu()
        return self._num_trained

    def append(self, environments: Sequence[int], values: Tensor) -> None:
        """Add rows ``values [n, P]`` with fresh optimizer state."""
        self.environments += environments
        values = values.to(self.values, non_blocking=True)
        self.values = torch.cat([self.values.detach(), values]).requires_grad_()
        self.exp_avg = torch.cat([self.exp_avg, torch.zeros_like(values)])
        self.exp_avg_sq = torch.cat([self.exp_avg_sq, torch.zeros_like(values)])
        self.steps = torch.cat([self.steps, self.steps.new_zeros(len(environments), 1)])

    def remove(self, environments: Sequence[int]) -> None:
        """Free the rows of some environments, with their optimizer state."""
        gone = set(environments)
        keep = [row for row, environment in enumerate(self.environments) if environment not in gone]
        index = torch.tensor(keep, dtype=torch.long).to(self.values.device, non_blocking=True)
        self.environments = [self.environments[row] for row in keep]
        self.values = self.values.detach()[index].requires_grad_()
        self.exp_avg, self.exp_avg_sq, self.steps = self.exp_avg[index], self.exp_avg_sq[index], self.steps[index]

    def state_dict(self) -> State:
        """Return rows with their environments, in order."""
        state = {"environments": torch.tensor(self.environments, dtype=torch.long)}
        rows = {"values": self.values, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq, "steps": self.steps}
        if self.live is not None:
            rows["live"] = self.live
        return state | {name: copied(value) for name, value in rows.items()}

    def load_state_dict(self, state: State) -> None:
        """Replace all rows by those of a saved state.

        Raises:
            ValueError: rows of another length than the module's.
        """
        found, own = list(state["values"].shape[1:]), [self.program.layout.size]
        if found != own:
            raise ValueError(f"rows of {found} parameters, {type(self.program.module).__name__} has {own}")
        rows = {name: value.to(self.exp_avg, copy=True) for name, value in state.items() if name != "environments"}
        self.environments = state["environments"].tolist()
        self.values = rows["values"].requires_grad_()
        self.exp_avg, self.exp_avg_sq, self.steps = rows["exp_avg"], rows["exp_avg_sq"], rows["steps"]
        self.live = rows.get("live")
        self._num_trained = None

    def alone(self, environment: int) -> Stack:
        """Return one environment's row as a separate stack, for environment 0, that shares parameters and state."""
        stack, row = copy.copy(self), self.row(environment)
        stack.environments = [0]
        stack.values = self.values.detach()[row : row + 1].requires_grad_()
        stack.live = None if self.live is None else self.live[row : row + 1]
        stack._num_trained = None
        stack.exp_avg, stack.exp_avg_sq = self.exp_avg[row : row + 1], self.exp_avg_sq[row : row + 1]
        stack.steps = self.steps[row : row + 1]
        return stack

    @torch.no_grad()
    def restart(self, rows: Tensor, values: Tensor, live: Tensor) -> None:
        """Reset rows: values ``[n, P]``, mask of existing parameters ``[n, P]``, fresh optimizer state."""
        if self.live is None:
            self.live = torch.ones_like(self.exp_avg)
        self.live[rows] = live.to(self.live, non_blocking=True)
        self.values[rows] = values.to(self.values, non_blocking=True) * self.live[rows]
        self._num_trained = None
        for state in (self.exp_avg, self.exp_avg_sq, self.steps):
            state[rows] = 0.0


@torch.no_grad()
def adam_step(
    stacks: Sequence[Stack],
    gradients: Sequence[Tensor],
    *,
    lr: float | Sequence[Tensor],
    max_grad_norm: float = 0.0,
    resting: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Take one Adam step for every row of every stack, each with its own norm, clip and step count.

    A row that rests or whose gradient is not finite keeps its parameters and state, and so does every frozen parameter.

    Args:
        stacks: owners of parameters ``[R_i, P_i]``.
        gradients: one ``[R_i, P_i]`` per stack; changed in place.
        lr: learning rate, one for all or ``[R_i, 1]`` per stack.
        max_grad_norm: clip of each row's norm; 0 is off.
        resting: rows that take no step, ``bool [R_i]`` per stack; none when ``None``.

    Returns:
        For each stack the gradient norm of its rows before clipping, ``[R_i]`` (not finite where skipped).
    """
    beta1, beta2 = ADAM_BETAS
    for stack, gradient in zip(stacks, gradients, strict=True):
        if stack.live is not None:
            gradient.mul_(stack.live)
        if stack.frozen is not None:
            gradient.masked_fill_(stack.frozen, 0.0)
    norms = [gradient.norm(dim=1, keepdim=True) for gradient in gradients]
    finite = [torch.isfinite(norm) for norm in norms]
    if resting is not None:
        finite = [ok & ~rows.unsqueeze(1) for ok, rows in zip(finite, resting, strict=True)]
    for gradient, norm, ok in zip(gradients, norms, finite, strict=True):
        gradient.masked_fill_(~ok, 0.0)
        if max_grad_norm > 0:
            gradient.mul_((max_grad_norm / norm.clamp(min=1e-12)).clamp(max=1.0).masked_fill_(~ok, 0.0))

    taken = [ok.to(gradient.dtype) for ok, gradient in zip(finite, gradients, strict=True)]
    steps = [stack.steps for stack in stacks]
    exp_avgs = [stack.exp_avg for stack in stacks]
    exp_avg_sqs = [stack.exp_avg_sq for stack in stacks]
    torch._foreach_add_(steps, taken)
    squares = [gradient * gradient for gradient in gradients]
    for moments, news, beta in ((exp_avgs, list(gradients), beta1), (exp_avg_sqs, squares, beta2)):
        # Multiply and add, not lerp: its vector and scalar paths round differently, so that a row's bits would depend
        # on how many other rows there are.
        torch._foreach_mul_(moments, [1 - (1 - beta) * ok for ok in taken])
        torch._foreach_add_(moments, [(1 - beta) * ok * new for ok, new in zip(taken, news, strict=True)])

    # Rows that never took a step would divide by zero; they have no update to scale.
    counts = [step.clamp(min=1) for step in steps]
    rates: Sequence[float | Tensor] = [lr] * len(stacks) if isinstance(lr, float | int) else lr
    sizes = [rate * ok / _debiased(beta1, count) for rate, ok, count in zip(rates, taken, counts, strict=True)]
    roots = [_debiased(beta2, count).sqrt() for count in counts]
    denominators = torch._foreach_div(torch._foreach_sqrt(exp_avg_sqs), roots)
    torch._foreach_add_(denominators, ADAM_EPS)
    updates = torch._foreach_div(exp_avgs, denominators)
    torch._foreach_mul_(updates, sizes)
    torch._foreach_sub_([stack.values.detach() for stack in stacks], updates)
    return [norm.squeeze(1) for norm in norms]


def _debiased(beta: float, count: Tensor) -> Tensor:
    """Return ``1 - beta**count``: Adam's correction of a moment that began at 0.

    Not by a power: its vector and scalar paths round differently, as lerp's do. In double precision, so that those of
    the exponential would be the same after rounding, too.
    """
    return -torch.expm1(count.double() * log(beta)).to(count.dtype)
