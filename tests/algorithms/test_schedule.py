"""Schedules follow the iteration."""

from __future__ import annotations

import pytest
from schema_defaults import constant

from esper.algorithms import Schedule


def test_a_schedule_is_a_line_over_iterations_and_then_constant() -> None:
    schedule = Schedule(lr=0.1, lr_final=0.0, ent_coef=0.02, ent_coef_final=0.002, num_iterations=10)
    learning_rates, coefficients = zip(*(schedule.at(iteration) for iteration in (1, 6, 11, 1001)), strict=True)
    assert learning_rates == pytest.approx([0.1, 0.05, 0.0, 0.0])
    assert coefficients == pytest.approx([0.02, 0.011, 0.002, 0.002])


def test_a_constant_schedule_stays_to_the_bit() -> None:
    assert {constant(1e-3, 0.3).at(iteration) for iteration in range(1, 9)} == {(1e-3, 0.3)}
