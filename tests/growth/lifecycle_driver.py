"""A substitute for the population: complete and healthy measurements for the rules of growth."""

from __future__ import annotations

import torch
from schema_defaults import growth_rules
from torch import Tensor

from esper.growth import (
    Applied,
    GrowthRules,
    SlotState,
    Stage,
    Transitions,
    apply_actions,
    record_contributions,
    record_gradients,
    record_parameters,
    tick,
    transition,
)
from esper.growth.actions import NUM_HEADS, Head, Op

NUM_BLUEPRINTS = 4
DIGITS = growth_rules(max_developing=3, max_seeds=2, min_training_epochs=2, min_cull_age=2, embargo_epochs=1)


def act(op: Op, num_envs: int = 1, **heads: int) -> Tensor:
    """``int64 [E, 8]``: the same action everywhere."""
    action = torch.zeros(num_envs, NUM_HEADS, dtype=torch.int64)
    action[:, Head.OP] = op
    for name, value in heads.items():
        action[:, Head[name.upper()]] = value
    return action


def stage_of(state: SlotState, slot: int = 0) -> Stage:
    """Stage of a slot of environment 0."""
    return Stage(int(state.stage[0, slot]))


def measure(
    state: SlotState,
    rules: GrowthRules,
    *,
    norms: Tensor | None = None,
    finite: Tensor | None = None,
    contributions: Tensor | None = None,
) -> None:
    """Steps (3) and (4); without arguments every module has 100 finite parameters, norm 1, contribution 1."""
    ones = torch.ones(state.stage.shape, dtype=torch.float64)
    envs = torch.ones(state.num_envs)
    record_parameters(
        state,
        torch.full_like(state.stage, 100),
        torch.ones_like(state.fading) if finite is None else finite,
    )
    record_gradients(state, ones if norms is None else norms, envs, 100 * envs, rules)
    record_contributions(state, ones if contributions is None else contributions)


def step(
    state: SlotState,
    action: Tensor | None = None,
    rules: GrowthRules = DIGITS,
    *,
    norms: Tensor | None = None,
    finite: Tensor | None = None,
    contributions: Tensor | None = None,
) -> tuple[Applied, Transitions]:
    """One environment step: action, tick, measurements, transition."""
    compatible = torch.ones(state.num_slots, NUM_BLUEPRINTS, dtype=torch.bool)
    applied = apply_actions(state, act(Op.WAIT, state.num_envs) if action is None else action, compatible, rules)
    tick(state)
    measure(state, rules, norms=norms, finite=finite, contributions=contributions)
    return applied, transition(state, rules)


def grow(
    num_slots: int = 1, rules: GrowthRules = DIGITS, *, until: int, contributions: Tensor | None = None, **heads: int
) -> SlotState:
    """A state whose slot 0 holds a module in stage ``until``, grown by the rules alone."""
    state = SlotState.empty(1, num_slots)
    step(state, act(Op.GERMINATE, slot=0, **heads), rules, contributions=contributions)
    for _ in range(40):
        if state.stage[0, 0] == until:
            return state
        step(state, None, rules, contributions=contributions)
    raise AssertionError(f"stage {until} was not reached; the slot is in {int(state.stage[0, 0])}")
