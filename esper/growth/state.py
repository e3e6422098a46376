"""Lifecycle state of all slots of all environments, as a struct of arrays.

Axis legend: E = environments, S = slots in canonical order. One environment is E = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from esper.growth.stages import NUM_STAGES, STAGE_NAMES, AlphaMode, Stage

_NOT_MEASURED = float("nan")

# Type of each field, and its value in an empty slot.
_EMPTY: dict[str, tuple[torch.dtype, float]] = {
    "stage": (torch.int64, Stage.DORMANT),
    "blueprint": (torch.int64, -1),
    "algorithm": (torch.int64, 0),
    "alpha": (torch.float64, 0.0),
    "alpha_start": (torch.float64, 0.0),
    "alpha_target": (torch.float64, 0.0),
    "alpha_mode": (torch.int64, AlphaMode.HOLD),
    "alpha_velocity": (torch.float64, 0.0),
    "ramp_elapsed": (torch.int64, 0),
    "ramp_duration": (torch.int64, 0),
    "curve": (torch.int64, 0),
    "tempo_epochs": (torch.int64, 0),
    "fading": (torch.bool, False),
    "epochs_in_stage": (torch.int64, 0),
    "age": (torch.int64, 0),
    "dwell": (torch.int64, 0),
    "num_parameters": (torch.int64, 0),
    "parameters_finite": (torch.bool, False),
    "gradient_norm": (torch.float64, _NOT_MEASURED),
    "gradient_health": (torch.float64, _NOT_MEASURED),
    "previous_health": (torch.float64, _NOT_MEASURED),
    "gradient_ratio": (torch.float64, _NOT_MEASURED),
    "vanishing": (torch.bool, False),
    "exploding": (torch.bool, False),
    "contribution": (torch.float64, _NOT_MEASURED),
    "previous_contribution": (torch.float64, _NOT_MEASURED),
    "contribution_age": (torch.int64, 0),
    "measured_since_ramp": (torch.bool, False),
    "interaction": (torch.float64, _NOT_MEASURED),
    "boost": (torch.float64, _NOT_MEASURED),
}


def stage_table(*stages: Stage) -> Tensor:
    """Return a table ``bool [10]``, true at the given stages, to be indexed by a stage tensor."""
    table = torch.zeros(NUM_STAGES, dtype=torch.bool)
    table[list(stages)] = True
    return table


_PRESENT = stage_table(Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
_LIVE = stage_table(Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
_DEVELOPING = stage_table(Stage.GERMINATED, Stage.TRAINING)
_KEPT = stage_table(Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)


@dataclass(slots=True, kw_only=True)
class SlotState:
    """State of every slot under the rules of growth: CPU tensors ``[E, S]``.

    Functions of this package replace fields rather than write into them, so a field read earlier does not change.

    Attributes:
        stage: int64, a :class:`Stage`.
        blueprint: int64, -1 where there is no module.
        algorithm: int64, a :class:`~esper.growth.actions.BlendAlgorithm`.
        alpha: float64, share of the module in the host's forward pass, as of the last tick.
        alpha_start: float64, alpha at which the present or last ramp started.
        alpha_target: float64, alpha at which the present, last or (before BLENDING) first ramp ends.
        alpha_mode: int64, an :class:`AlphaMode`.
        alpha_velocity: float64, change of alpha at the last tick.
        ramp_elapsed: int64, epochs of the present ramp; equals ``ramp_duration`` after its end.
        ramp_duration: int64, epochs.
        curve: int64, an :class:`~esper.growth.actions.AlphaCurve`: of the present, last or first ramp.
        tempo_epochs: int64, length of the first ramp, chosen at GERMINATE.
        fading: bool, culled and on the way to alpha 0.
        epochs_in_stage: int64.
        age: int64, epochs the module was trained.
        dwell: int64, epochs trained in TRAINING since the last dwell restart.
        num_parameters: int64, parameters of the module.
        parameters_finite: bool, parameters allocated and, when last looked at, finite.
        gradient_norm, gradient_health, previous_health, gradient_ratio: float64, NaN where not measured.
        vanishing, exploding: bool, false where not measured.
        contribution, previous_contribution: float64, points, the last two measurements; NaN where not measured.
        contribution_age: int64, epochs since ``contribution`` was measured.
        measured_since_ramp: bool, contribution measured since the last ramp ended.
        interaction, boost: float64, points, sum and strongest of the module's interactions; NaN where not measured.
    """

    stage: Tensor
    blueprint: Tensor
    algorithm: Tensor
    alpha: Tensor
    alpha_start: Tensor
    alpha_target: Tensor
    alpha_mode: Tensor
    alpha_velocity: Tensor
    ramp_elapsed: Tensor
    ramp_duration: Tensor
    curve: Tensor
    tempo_epochs: Tensor
    fading: Tensor
    epochs_in_stage: Tensor
    age: Tensor
    dwell: Tensor
    num_parameters: Tensor
    parameters_finite: Tensor
    gradient_norm: Tensor
    gradient_health: Tensor
    previous_health: Tensor
    gradient_ratio: Tensor
    vanishing: Tensor
    exploding: Tensor
    contribution: Tensor
    previous_contribution: Tensor
    contribution_age: Tensor
    measured_since_ramp: Tensor
    interaction: Tensor
    boost: Tensor

    @classmethod
    def empty(cls, num_envs: int, num_slots: int) -> SlotState:
        """Return a state with all slots DORMANT."""
        shape = (num_envs, num_slots)
        return cls(**{name: torch.full(shape, value, dtype=dtype) for name, (dtype, value) in _EMPTY.items()})

    @classmethod
    def from_dict(cls, tensors: Mapping[str, Tensor]) -> SlotState:
        """Rebuild from :meth:`to_dict`; the tensors are copied.

        Raises:
            ValueError: fields are missing or left over, shapes or types differ, or a stage is UNKNOWN.
        """
        if set(tensors) != set(_EMPTY):
            raise ValueError(f"slot state: fields {sorted(set(tensors) ^ set(_EMPTY))} are missing or unknown")
        shape = tensors["stage"].shape
        for name, (dtype, _) in _EMPTY.items():
            found = tensors[name]
            if found.shape != shape or found.ndim != 2 or found.dtype != dtype:
                raise ValueError(
                    f"slot state: {name} is {found.dtype} {tuple(found.shape)}, expected {dtype} {tuple(shape)}"
                )
        stage = tensors["stage"]
        unknown = (stage <= Stage.UNKNOWN) | (stage >= NUM_STAGES)
        if unknown.any():
            env, slot = unknown.nonzero()[0].tolist()
            raise ValueError(
                f"slot state: environment {env}, slot {slot} has stage {int(stage[env, slot])}, "
                f"which is none of {', '.join(STAGE_NAMES[1:])}"
            )
        return cls(**{name: tensors[name].detach().cpu().clone() for name in _EMPTY})

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the fields that :meth:`to_dict` returned; arguments and errors as for :meth:`from_dict`."""
        loaded = SlotState.from_dict(tensors)
        for name in _EMPTY:
            setattr(self, name, getattr(loaded, name))

    def to_dict(self) -> dict[str, Tensor]:
        """Copy all fields by name."""
        return {name: getattr(self, name).clone() for name in _EMPTY}

    def clone(self) -> SlotState:
        """Return an independent copy."""
        return SlotState(**self.to_dict())

    def __getitem__(self, index: Tensor | slice) -> SlotState:
        """Select environments (a slice shares their tensors)."""
        return SlotState(**{name: getattr(self, name)[index] for name in _EMPTY})

    def reset(self, which: Tensor) -> None:
        """Empty all slots of the environments ``which: bool [E]``."""
        self.clear(which[:, None].expand_as(self.stage))

    def clear(self, which: Tensor) -> None:
        """Reset the slots ``which: bool [E, S]`` to the values of an empty one."""
        if which.any():
            for name, (_, value) in _EMPTY.items():
                setattr(self, name, getattr(self, name).masked_fill(which, value))

    def assign(self, which: Tensor, **values: Tensor | float) -> None:
        """Set fields of the slots ``which: bool [E, S]`` to numbers or tensors broadcastable to it."""
        if not which.any():
            return
        for name, value in values.items():
            old: Tensor = getattr(self, name)
            new = value.to(old.dtype) if isinstance(value, Tensor) else torch.tensor(value, dtype=old.dtype)
            setattr(self, name, torch.where(which, new, old))

    @property
    def num_envs(self) -> int:
        """Number of environments, E."""
        return self.stage.shape[0]

    @property
    def num_slots(self) -> int:
        """Number of slots, S."""
        return self.stage.shape[1]

    @property
    def present(self) -> Tensor:
        """Slots that hold a module, ``bool [E, S]``."""
        return _PRESENT[self.stage]

    @property
    def live(self) -> Tensor:
        """Slots with a module that the controller can still act on, neither FOSSILIZED nor fading, ``bool [E, S]``."""
        return _LIVE[self.stage] & ~self.fading

    @property
    def developing(self) -> Tensor:
        """Slots that count towards ``max_developing``, ``bool [E, S]``."""
        return _DEVELOPING[self.stage]

    @property
    def kept(self) -> Tensor:
        """Slots that count towards ``max_seeds``, ``bool [E, S]``."""
        return _KEPT[self.stage] | self.fading


assert tuple(field.name for field in fields(SlotState)) == tuple(_EMPTY), "fields and their table disagree"
