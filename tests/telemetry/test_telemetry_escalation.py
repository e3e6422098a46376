"""After an anomaly a run records more for a while, and then falls back."""

from __future__ import annotations

import json

import pytest

from esper.runtime.records import Metrics
from esper.telemetry.anomalies import ADVICE, AnomalyLimits
from esper.telemetry.escalation import Escalation
from esper.telemetry.events import Anomaly, Level, LevelChanged

HEALTHY: Metrics = {"losses/grad_norm": 0.5}
SICK: Metrics = {"losses/grad_norm": 1e4}


def levels(escalation: Escalation, *metrics: Metrics) -> list[str]:
    """Level after each iteration."""
    found = []
    for iteration, record in enumerate(metrics, start=1):
        escalation.observe(iteration, record)
        found.append(escalation.level.name)
    return found


def test_an_anomaly_raises_the_level_for_so_many_iterations_and_then_it_falls_back() -> None:
    after = levels(Escalation(Level.normal, 2), HEALTHY, SICK, HEALTHY, HEALTHY, HEALTHY)
    assert after == ["normal", "debug", "debug", "normal", "normal"]


def test_another_anomaly_starts_the_iterations_anew() -> None:
    after = levels(Escalation(Level.normal, 2), SICK, HEALTHY, SICK, HEALTHY, HEALTHY)
    assert after == ["debug", "debug", "debug", "debug", "normal"]


@pytest.mark.parametrize(("base", "iterations"), [("off", 3), ("debug", 3), ("normal", 0)])
def test_what_is_not_to_change_does_not(base: str, iterations: int) -> None:
    escalation = Escalation(Level(base), iterations)
    message = f"gradient norm 1e+04 > 100: {ADVICE['gradient_norm']}"
    assert escalation.observe(1, SICK) == [Anomaly(iteration=1, name="gradient_norm", message=message, value=1e4)]
    assert escalation.level is Level(base)


def test_both_changes_are_events_that_say_why() -> None:
    escalation = Escalation(Level.normal, 1)
    *_, raised = escalation.observe(1, SICK | {"losses/ratio_outside": 0.5})
    assert raised == LevelChanged(iteration=1, now="debug", reason="ratio_explosion, gradient_norm")
    assert escalation.observe(2, SICK | {})[1:] == []  # still debug: nothing changed
    assert escalation.observe(3, HEALTHY) == [
        LevelChanged(iteration=3, now="normal", reason="1 iterations without an anomaly")
    ]


def test_accuracy_is_compared_with_that_of_iterations_before() -> None:
    escalation = Escalation(Level.normal, 1, AnomalyLimits(accuracy_window=2))
    names = []
    for iteration, accuracy in enumerate((0.8, 0.8, 0.5, 0.5), start=1):
        events = escalation.observe(iteration, {"charts/final_val_accuracy": accuracy})
        names.append([event.name for event in events if isinstance(event, Anomaly)])
    assert names == [[], [], ["accuracy_drop"], ["accuracy_drop"]]  # 0.8 then 0.65 is usual


def test_a_restored_one_goes_on_as_the_first_would_have() -> None:
    metrics = [{"charts/final_val_accuracy": value} for value in (0.8, 0.8, 0.8, 0.8, 0.8, 0.5, 0.9, 0.9, 0.9, 0.4)]
    whole, half = Escalation(Level.normal, 2), Escalation(Level.normal, 2)
    for iteration, record in enumerate(metrics[:6], start=1):
        assert whole.observe(iteration, record) == half.observe(iteration, record)
    again = Escalation(Level.normal, 2)
    again.load_state_dict(json.loads(json.dumps(half.state_dict())))
    for iteration, record in enumerate(metrics[6:], start=7):
        assert again.observe(iteration, record) == whole.observe(iteration, record)
        assert again.level is whole.level
