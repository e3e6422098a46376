"""History of each host for observations: validation curves, plateau, stability, the last action.

Axis legend: E = environments, H = the last :data:`HISTORY` epochs, oldest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from esper.envs.features import HISTORY
from esper.growth.actions import OP_WAIT

IMPROVEMENT = 0.01
"""Share by which val loss must fall below its last low to restart the plateau clock."""

STABLE_CHANGE = (-0.05, 0.03)
STABLE_EPOCHS = 3

_NONE = float("nan")

# Type, trailing axes and first value of each field.
_FIRST: dict[str, tuple[torch.dtype, tuple[int, ...], float]] = {
    "epoch": (torch.int64, (), 0),
    "losses": (torch.float64, (HISTORY,), _NONE),
    "accuracies": (torch.float64, (HISTORY,), _NONE),
    "best_loss": (torch.float64, (), _NONE),
    "best_accuracy": (torch.float64, (), _NONE),
    "plateau_loss": (torch.float64, (), _NONE),
    "plateau_epochs": (torch.int64, (), 0),
    "stable_epochs": (torch.int64, (), 0),
    "stabilised": (torch.bool, (), False),
    "last_op": (torch.int64, (), OP_WAIT),
    "last_success": (torch.bool, (), True),
}


@dataclass(slots=True, kw_only=True)
class HostHistory:
    """Arrays of each host's history, on the CPU; NaN means "no such epoch yet", a loss that is not finite is kept as
    infinity.

    Attributes:
        epoch: ``int64 [E]``, trained epochs.
        losses: ``float64 [E, H]``, val loss.
        accuracies: ``float64 [E, H]``, val accuracy in [0, 1].
        best_loss, best_accuracy: ``float64 [E]``.
        plateau_loss: ``float64 [E]``, the loss that must be improved by :data:`IMPROVEMENT`.
        plateau_epochs: ``int64 [E]``, epochs since the last such improvement.
        stable_epochs: ``int64 [E]``, consecutive epochs whose relative loss change lay inside :data:`STABLE_CHANGE`.
        stabilised: ``bool [E]``, latched once there were :data:`STABLE_EPOCHS` of them.
        last_op: ``int64 [E]``. ``last_success``: ``bool [E]``, it took effect.
    """

    epoch: Tensor
    losses: Tensor
    accuracies: Tensor
    best_loss: Tensor
    best_accuracy: Tensor
    plateau_loss: Tensor
    plateau_epochs: Tensor
    stable_epochs: Tensor
    stabilised: Tensor
    last_op: Tensor
    last_success: Tensor

    @classmethod
    def empty(cls, num_envs: int) -> HostHistory:
        """Return the history before the first epoch."""
        return cls(
            **{
                name: torch.full((num_envs, *shape), value, dtype=dtype)
                for name, (dtype, shape, value) in _FIRST.items()
            }
        )

    @classmethod
    def from_dict(cls, tensors: Mapping[str, Tensor]) -> HostHistory:
        """Rebuild from :meth:`to_dict`; the tensors are copied.

        Raises:
            ValueError: fields are missing, left over, or of another type.
        """
        if set(tensors) != set(_FIRST):
            raise ValueError(f"host history: fields {sorted(set(tensors) ^ set(_FIRST))} are missing or unknown")
        for name, (dtype, shape, _) in _FIRST.items():
            found = tensors[name]
            if found.dtype != dtype or found.shape[1:] != shape or found.shape[:1] != tensors["epoch"].shape:
                raise ValueError(f"host history: {name} is {found.dtype} {tuple(found.shape)}")
        return cls(**{name: tensors[name].detach().cpu().clone() for name in _FIRST})

    def to_dict(self) -> dict[str, Tensor]:
        """Copy all fields by name."""
        return {name: getattr(self, name).clone() for name in _FIRST}

    def reset(self, which: Tensor) -> None:
        """Clear the history of the environments ``which: bool [E]``."""
        for name, (_, shape, value) in _FIRST.items():
            setattr(self, name, getattr(self, name).masked_fill(which.view(-1, *(1 for _ in shape)), value))

    def record(self, loss: Tensor, accuracy: Tensor) -> None:
        """Append the validation after a trained epoch.

        Args:
            loss: ``float [E]``.
            accuracy: ``float [E]`` in [0, 1].
        """
        loss = loss.double()
        loss = torch.where(loss.isfinite(), loss, torch.inf)
        accuracy = accuracy.double()
        previous = self.losses[:, -1]
        first = previous.isnan()
        improved = first | (loss <= (1 - IMPROVEMENT) * self.plateau_loss)
        change = (loss - previous) / previous
        low, high = STABLE_CHANGE
        stable_epochs = torch.where((change > low) & (change < high), self.stable_epochs + 1, 0)
        self._update(
            epoch=self.epoch + 1,
            losses=torch.cat([self.losses[:, 1:], loss[:, None]], dim=1),
            accuracies=torch.cat([self.accuracies[:, 1:], accuracy[:, None]], dim=1),
            best_loss=self.best_loss.fmin(loss),
            best_accuracy=self.best_accuracy.fmax(accuracy),
            plateau_loss=torch.where(improved, loss, self.plateau_loss),
            plateau_epochs=torch.where(improved, 0, self.plateau_epochs + 1),
            stable_epochs=stable_epochs,
            stabilised=self.stabilised | (stable_epochs >= STABLE_EPOCHS),
        )

    def record_action(self, op: Tensor, success: Tensor) -> None:
        """Record the last op, ``int64 [E]``, and whether it took effect, ``bool [E]``."""
        self._update(last_op=op.clone(), last_success=success.clone())

    def _update(self, **values: Tensor) -> None:
        for name, value in values.items():
            setattr(self, name, value)


assert tuple(field.name for field in fields(HostHistory)) == tuple(_FIRST), "fields and their table disagree"
