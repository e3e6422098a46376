"""Loss scaling for fp16 with a scale for each host and module, so that an overflow skips only one step of its owner.

fp16 gradients below 6e-8 are zero, so a loss is multiplied by a large power of two before its backward and the
gradients are divided by it. A scale that is too large overflows: the step is skipped and the scale halved; after a
while without overflow it is doubled again (Micikevicius et al. 2018). ``torch.amp.GradScaler`` has one scale for
everything, so that one host's overflow would stop all others; here hosts and developing modules have one each. Powers
of two change no bit of a gradient that neither overflows nor underflows.

Axis legend: E = environments, S = slots, R = rows of a stack or of the incubation pass, K = (E + 1)(1 + S) scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.runtime.state import State, copied

INITIAL_SCALE = 2.0**12
MIN_SCALE, MAX_SCALE = 2.0**-14, 2.0**24
GROWTH_INTERVAL = 100
"""Number of steps without overflow after which a scale is doubled."""


class LossScales:
    """One loss scale per host and per slot's module, kept on the device and never read back.

    Attributes:
        scale: ``float32 [E + 1, 1 + S]``: column 0 for the hosts, then for the modules; the last row is a dummy.
        finite_steps: same shape, steps since the scale last changed.
    """

    def __init__(self, num_envs: int, num_slots: int, device: torch.device) -> None:
        self.scale = torch.full((num_envs + 1, 1 + num_slots), INITIAL_SCALE, device=device)
        self.finite_steps = torch.zeros_like(self.scale)

    def state_dict(self) -> State:
        """Return scales and their ages, ``[E, 1 + S]``, without the dummy row."""
        return {"scale": copied(self.scale[:-1]), "finite_steps": copied(self.finite_steps[:-1])}

    def load_state_dict(self, state: State) -> None:
        """Restore scales and ages."""
        self.scale, self.finite_steps = self.scale.clone(), self.finite_steps.clone()
        self.scale[:-1], self.finite_steps[:-1] = state["scale"], state["finite_steps"]

    def restart_hosts(self, environments: Tensor) -> None:
        """Reset the scales of environments that start a new episode."""
        self.scale[environments] = INITIAL_SCALE
        self.finite_steps[environments] = 0

    def restart_module(self, environment: int, slot: int) -> None:
        """Reset the scale of a slot with a new module."""
        self.scale[environment, 1 + slot] = INITIAL_SCALE
        self.finite_steps[environment, 1 + slot] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Assignment of scales to losses and gradients during an epoch, as ``int64`` indices into the K scales.

    Attributes:
        scales: loss scales that the indices refer to.
        main: ``[E]``, scale of each host's loss.
        incubation: ``[R]``, scale of each developing module's loss.
        carried: per stack ``[R]``, the scale that a row's gradient is multiplied by.
        halved: per stack ``[R]``, the scale that a row's overflow halves: the one in ``carried``, or a dummy for a
            module that learns from the host's loss while it must not affect the host.
    """

    scales: LossScales
    main: Tensor
    incubation: Tensor
    carried: tuple[Tensor, ...]
    halved: tuple[Tensor, ...]

    @classmethod
    def plan(
        cls,
        scales: LossScales,
        stacks: Sequence[tuple[Sequence[int], int | None]],
        developing: Tensor,
        incubation: tuple[Tensor, Tensor] | None,
    ) -> Scaling:
        """Compute the assignment, once per epoch.

        Args:
            scales: loss scales of all hosts and modules.
            stacks: environments of the rows of each stack, and the slot that it belongs to (``None`` for hosts).
            developing: ``bool [E, S]`` modules in isolation.
            incubation: environments and slots ``int64 [R]`` of the incubation pass, ``None`` without one.
        """
        columns, device = scales.scale.shape[1], scales.scale.device
        nobody = len(developing) * columns
        carried, halved = [], []
        for environments, slot in stacks:
            rows = torch.tensor(environments, dtype=torch.long)
            host = rows * columns
            apart = torch.zeros_like(rows, dtype=torch.bool) if slot is None else developing[rows, slot]
            own = host if slot is None or incubation is None else torch.where(apart, host + 1 + slot, host)
            carried.append(own.to(device))
            halved.append((own if incubation is not None else torch.where(apart, nobody, own)).to(device))
        alone = torch.zeros(0, dtype=torch.long) if incubation is None else incubation[0] * columns + 1 + incubation[1]
        return cls(
            scales=scales,
            main=(torch.arange(len(developing)) * columns).to(device),
            incubation=alone.to(device),
            carried=tuple(carried),
            halved=tuple(halved),
        )

    def without_incubation(self) -> Scaling:
        """Return the assignment for a step in which developing modules rest."""
        return replace(self, incubation=self.incubation[:0])

    def factors(self, incubated: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return, for each part, the loss scales of its hosts and of its developing modules. All parts hold equally
        many hosts.

        Args:
            incubated: number of developing modules in each part.
        """
        scale = self.scales.scale.view(-1)
        main = scale[self.main].chunk(len(incubated))
        return list(zip(main, torch.split(scale[self.incubation], list(incubated)), strict=True))

    def unscaled(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Divide the gradients ``[R, P]`` of each stack by their scales."""
        scale = self.scales.scale.view(-1)
        return [g / scale[owners].unsqueeze(1) for g, owners in zip(gradients, self.carried, strict=True)]

    def update(self, main: Tensor, incubation: Tensor, norms: Sequence[Tensor]) -> list[Tensor]:
        """Update the scales after a step: halve those that overflowed, double those that have not overflowed for long.

        A gradient that is not finite although its loss is has overflowed. If the loss itself is not finite no scale
        helps, and the gradient counts as not finite.

        Args:
            main: ``[E]`` losses of the hosts.
            incubation: ``[R]`` losses of the developing modules.
            norms: per stack ``[R]`` norms of the unscaled gradients.

        Returns:
            Per stack ``bool [R]``, the rows that overflowed, whose step was skipped.
        """
        scales = self.scales
        sound = torch.ones(scales.scale.numel(), dtype=torch.bool, device=scales.scale.device)
        sound[self.main], sound[self.incubation] = main.isfinite(), incubation.isfinite()
        skipped = [~norm.isfinite() & sound[owner] for norm, owner in zip(norms, self.carried, strict=True)]
        votes = torch.zeros(scales.scale.numel(), device=scales.scale.device)
        votes.index_add_(0, torch.cat(self.halved), torch.cat(skipped).to(votes.dtype))
        overflowed = (votes > 0).view_as(scales.scale)
        scales.scale, scales.finite_steps = next_scales(scales.scale, scales.finite_steps, overflowed)
        return skipped


class GradientNorms:
    """Mean gradient norms of an epoch, one ``[R]`` per stack, over the steps that count.

    A step in which a row rests, or that loss scaling skipped, does not count. Any other gradient that is not finite
    counts, and makes the mean infinite.
    """

    def __init__(self, num_steps: int, scaling: Scaling | None) -> None:
        self._num_steps, self._scaling = num_steps, scaling
        self._sums: list[Tensor] = []
        self._due: list[Tensor] = []
        self._counts: list[Tensor] = []
        self.last_skipped: list[Tensor] = []

    def add(
        self, norms: list[Tensor], main: Tensor, incubation: Tensor, resting: Sequence[Tensor] | None = None
    ) -> None:
        """Add one step: norms per stack ``[R]``, the losses as for :meth:`Scaling.update`, and the rows that rest."""
        if not self._sums:
            self._sums = [torch.zeros_like(norm) for norm in norms]
            self._due = [torch.full_like(norm, self._num_steps) for norm in norms]
            self._counts = [due.clone() for due in self._due]
        if resting is not None:
            torch._foreach_sub_([*self._due, *self._counts], [rows.to(norms[0].dtype) for rows in resting] * 2)
        if self._scaling is not None:
            scaling = self._scaling if resting is None else self._scaling.without_incubation()
            self.last_skipped = scaling.update(main, incubation, norms)
            norms = [norm.masked_fill(gone, 0.0) for norm, gone in zip(norms, self.last_skipped, strict=True)]
            torch._foreach_sub_(self._counts, [gone.to(norms[0].dtype) for gone in self.last_skipped])
        torch._foreach_add_(self._sums, norms)

    def means(self) -> list[Tensor]:
        """Return the mean norms, ``[R]`` per stack; NaN in a row without a step that counts (0 / 0)."""
        sums = (total.nan_to_num(nan=torch.inf, posinf=torch.inf) for total in self._sums)
        return [total / count for total, count in zip(sums, self._counts, strict=True)]

    def num_skipped(self) -> Tensor:
        """Return the number of steps that loss scaling skipped, over all owners, ``[1]``, to be read together with the
        rest.
        """
        return (torch.cat(self._due) - torch.cat(self._counts)).sum(0, keepdim=True)


def next_scales(scale: Tensor, finite_steps: Tensor, overflowed: Tensor) -> tuple[Tensor, Tensor]:
    """Return scales and their ages after one more step, any shape."""
    finite_steps = torch.where(overflowed, 0.0, finite_steps + 1)
    grown = finite_steps >= GROWTH_INTERVAL
    scale = torch.where(overflowed, scale / 2, torch.where(grown, scale * 2, scale))
    return scale.clamp(MIN_SCALE, MAX_SCALE), finite_steps.masked_fill(grown, 0.0)
