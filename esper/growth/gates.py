"""Gates: the next gate of each module, its result, and the reason if it fails.

A value that was not measured (NaN) never passes: every comparison is written so that NaN makes it false.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esper.growth.stages import NUM_STAGES, REASONS, AlphaMode, Gate, GrowthRules, Reason, Stage
from esper.growth.state import SlotState

NO_GATE = -1

_FACED = torch.full((NUM_STAGES,), NO_GATE)
_FACED[Stage.GERMINATED] = Gate.G1
_FACED[Stage.TRAINING] = Gate.G2
_FACED[Stage.BLENDING] = Gate.G3
_FACED[Stage.HOLDING] = Gate.G5


@dataclass(frozen=True, slots=True, kw_only=True)
class GateEvaluation:
    """One evaluation of a gate."""

    environment: int
    slot: int
    gate: str
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResults:
    """Results of evaluated gates, for all slots at once.

    Attributes:
        gate: ``int64 [E, S]``, a :class:`Gate`, -1 where none was evaluated.
        reason: ``int64 [E, S]``, a :class:`Reason`; PASSED where ``gate`` is -1.
    """

    gate: Tensor
    reason: Tensor

    def passed(self, gate: Gate) -> Tensor:
        """Return where this gate was evaluated and passed, ``bool [E, S]``."""
        return (self.gate == gate) & (self.reason == Reason.PASSED)

    def only(self, which: Tensor) -> GateResults:
        """Drop the results everywhere except at ``which: bool [E, S]``."""
        return GateResults(gate=self.gate.where(which, NO_GATE), reason=self.reason.where(which, int(Reason.PASSED)))

    def records(self) -> list[GateEvaluation]:
        """Return readable records of the evaluated gates, by environment and slot."""
        return [
            GateEvaluation(
                environment=environment,
                slot=slot,
                gate=Gate(int(self.gate[environment, slot])).name,
                passed=bool(self.reason[environment, slot] == Reason.PASSED),
                reason=REASONS[int(self.reason[environment, slot])],
            )
            for environment, slot in (self.gate != NO_GATE).nonzero().tolist()
        ]


def faced_gate(state: SlotState) -> Tensor:
    """Return the gate that each module faces next.

    Returns:
        ``int64 [E, S]``, -1 where there is none: no gate applies to a fading module.
    """
    return _FACED[state.stage].masked_fill(state.fading, NO_GATE)


def at_target(state: SlotState) -> Tensor:
    """Return where no ramp is pending and alpha is exactly its target, ``bool [E, S]``."""
    return (state.alpha_mode == AlphaMode.HOLD) & (state.alpha == state.alpha_target)


def evaluate_gates(state: SlotState, rules: GrowthRules) -> GateResults:
    """Evaluate the gate that each module faces, without changing the state."""
    gate = faced_gate(state)
    if (gate == NO_GATE).all():
        return GateResults(gate=gate, reason=torch.full_like(gate, Reason.PASSED))
    healthy = state.gradient_health >= rules.min_gradient_health
    finite = state.parameters_finite
    # The first criterion that fails names the reason. Places go last: only a module that is otherwise ready takes one.
    failures = (
        (~finite, Reason.NOT_FINITE),
        ((gate == Gate.G2) & (state.dwell < rules.min_training_epochs), Reason.DWELL),
        ((gate == Gate.G2) & state.gradient_health.isnan(), Reason.GRADIENT_UNMEASURED),
        ((gate == Gate.G2) & ~healthy, Reason.GRADIENT_UNHEALTHY),
        ((gate == Gate.G3) & ~at_target(state), Reason.ALPHA),
        ((gate == Gate.G5) & ~state.measured_since_ramp, Reason.CONTRIBUTION_UNMEASURED),
    )
    reason = torch.full_like(gate, Reason.PASSED)
    for failed, name in reversed(failures):
        reason = reason.masked_fill(failed, int(name))
    reason = reason.masked_fill(gate == NO_GATE, int(Reason.PASSED))
    ready = (gate == Gate.G2) & (reason == Reason.PASSED)
    if ready.any():
        reason = torch.where(ready & ~_takes_place(state, ready, rules), int(Reason.NO_PLACE), reason)
    return GateResults(gate=gate, reason=reason)


def _takes_place(state: SlotState, ready: Tensor, rules: GrowthRules) -> Tensor:
    """Return which ready modules get a free kept place: best measured preview first, then canonical order.

    Args:
        ready: ``bool [E, S]``.

    Returns:
        ``bool [E, S]``.
    """
    free = rules.max_seeds - state.kept.sum(1)  # [E]
    preview = state.contribution.nan_to_num(nan=-torch.inf)
    order = torch.arange(state.num_slots)
    mine, other = preview[:, :, None], preview[:, None, :]  # [E, S, 1], [E, 1, S]
    better = (other > mine) | ((other == mine) & (order[None, :] < order[:, None]))
    ahead = (better & ready[:, None, :]).sum(2)  # [E, S]
    return ready & (ahead < free[:, None])
