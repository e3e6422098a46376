"""Readable records of slots, for code that should not depend on the state arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from esper.growth.actions import BlendAlgorithm
from esper.growth.gates import NO_GATE, evaluate_gates
from esper.growth.stages import Gate, GrowthRules, Reason, Stage
from esper.growth.state import SlotState

# Gates that a module in each stage has passed.
_BEHIND: dict[Stage, tuple[Gate, ...]] = {
    Stage.GERMINATED: (Gate.G0,),
    Stage.TRAINING: (Gate.G0, Gate.G1),
    Stage.BLENDING: (Gate.G0, Gate.G1, Gate.G2),
    Stage.HOLDING: (Gate.G0, Gate.G1, Gate.G2, Gate.G3),
    Stage.FOSSILIZED: (Gate.G0, Gate.G1, Gate.G2, Gate.G3, Gate.G5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport:
    """A slot and its module. ``None`` means "no module" or "not measured", never a substitute number.

    Attributes:
        alpha, alpha_target: share of the module in the host's forward pass.
        age: trained epochs. ``dwell``: those in TRAINING since the last dwell restart.
        seed_params, host_params: parameter counts.
        contribution: points; a preview while in TRAINING. ``contribution_velocity``: change since the previous
            measurement.
        contribution_age: epochs since it was measured.
        gates: by gate name: true where passed, the present result of the gate that is faced next, ``None`` for gates
            that are not evaluated.
    """

    slot_id: str
    stage: Stage
    fading: bool
    epochs_in_stage: int
    blueprint: str | None
    algorithm: BlendAlgorithm | None
    alpha: float
    alpha_target: float
    age: int
    dwell: int
    seed_params: int
    host_params: int
    gradient_norm: float | None
    gradient_health: float | None
    gradient_ratio: float | None
    contribution: float | None
    contribution_velocity: float | None
    contribution_age: int | None
    gates: Mapping[str, bool | None]


def reports(
    state: SlotState,
    environment: int,
    slot_ids: Sequence[str],
    host_params: int,
    rules: GrowthRules,
    blueprint_ids: Sequence[str],
) -> dict[str, SeedReport]:
    """Report on all slots of one environment, empty ones included, by slot id in the order of ``slot_ids``.

    ``blueprint_ids`` are in index order, those of plugins included.
    """
    assert len(slot_ids) == state.num_slots, f"{len(slot_ids)} slot ids for {state.num_slots} slots"
    one = state[environment : environment + 1]
    faced = evaluate_gates(one, rules)
    rows = {name: values[0].tolist() for name, values in one.to_dict().items()}
    gates, reasons = faced.gate[0].tolist(), faced.reason[0].tolist()
    return {
        slot_id: _report(
            slot_id,
            {name: values[slot] for name, values in rows.items()},
            host_params,
            _gates(Stage(rows["stage"][slot]), gates[slot], reasons[slot]),
            blueprint_ids,
        )
        for slot, slot_id in enumerate(slot_ids)
    }


def _report(
    slot_id: str,
    row: Mapping[str, float],
    host_params: int,
    gates: Mapping[str, bool | None],
    blueprint_ids: Sequence[str],
) -> SeedReport:
    blueprint = int(row["blueprint"])
    contribution = _measured(row["contribution"])
    return SeedReport(
        slot_id=slot_id,
        stage=Stage(int(row["stage"])),
        fading=bool(row["fading"]),
        epochs_in_stage=int(row["epochs_in_stage"]),
        blueprint=blueprint_ids[blueprint] if blueprint >= 0 else None,
        algorithm=BlendAlgorithm(int(row["algorithm"])) if blueprint >= 0 else None,
        alpha=row["alpha"],
        alpha_target=row["alpha_target"],
        age=int(row["age"]),
        dwell=int(row["dwell"]),
        seed_params=int(row["num_parameters"]),
        host_params=host_params,
        gradient_norm=_measured(row["gradient_norm"]),
        gradient_health=_measured(row["gradient_health"]),
        gradient_ratio=_measured(row["gradient_ratio"]),
        contribution=contribution,
        contribution_velocity=_measured(row["contribution"] - row["previous_contribution"]),
        contribution_age=None if contribution is None else int(row["contribution_age"]),
        gates=gates,
    )


def _measured(value: float) -> float | None:
    return None if value != value else value  # NaN


def _gates(stage: Stage, faced: int, reason: int) -> dict[str, bool | None]:
    states: dict[str, bool | None] = {gate.name: None for gate in Gate}
    states.update({gate.name: True for gate in _BEHIND.get(stage, ())})
    if faced != NO_GATE:
        states[Gate(faced).name] = reason == Reason.PASSED
    return states
