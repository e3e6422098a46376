"""Events and metrics become JSON that says no more than was measured."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from esper.config import compose, to_plain
from esper.config.identity import flat
from esper.growth import Stage
from esper.growth.actions import OP_NAMES, Op
from esper.runtime.records import json_safe, read_jsonl, without_times
from esper.telemetry import events
from esper.telemetry.anomalies import ADVICE, AnomalyLimits, accuracy_gain, detect
from esper.telemetry.events import (
    Anomaly,
    EpisodeEnded,
    LastAction,
    Level,
    RatioExplosion,
    to_record,
)
from esper.telemetry.results import OF_TRAINING, ResultRow
from esper.telemetry.statistics import Mean, mean_sem
from esper.views.palette import OP_COLOURS, STAGE_COLOURS


def test_kinds_are_unique_and_only_actions_need_debug() -> None:
    kinds = [item for item in vars(events).values() if isinstance(item, type) and "kind" in vars(item)]
    kinds = [item for item in kinds if dataclasses.is_dataclass(item)]
    assert len(kinds) > 5
    assert len({event.kind for event in kinds}) == len(kinds)
    assert [event for event in kinds if event.level is Level.debug] == [LastAction]


def test_a_record_holds_every_field_and_non_finite_numbers_are_null() -> None:
    entry: dict[str, float | int | str] = {
        "environment": 3,
        "head": "slot",
        "ratio": math.inf,
        "new_log_prob": math.nan,
        "advantage": 0.5,
    }
    event = RatioExplosion(iteration=2, update_epoch=1, minibatch=0, count=1, worst=(entry,))
    record = json.loads(json.dumps(to_record(event), allow_nan=False))
    assert record.keys() == {"kind", *(field.name for field in fields(event))}
    assert record["kind"] == "ratio_explosion"
    assert record["worst"] == [
        {"environment": 3, "head": "slot", "ratio": None, "new_log_prob": None, "advantage": 0.5}
    ]


def test_not_measured_stays_null() -> None:
    event = EpisodeEnded(
        environment=0,
        iteration=1,
        instance=5,
        family="intact",
        episode_return=0.0,
        val_accuracy=0.7,
        test_accuracy=None,
        val_bits=None,
        added_parameters=0,
        num_fossilized=0,
        crashed=False,
    )
    assert to_record(event)["test_accuracy"] is None


def test_a_tensor_is_refused_rather_than_written_as_text() -> None:
    with pytest.raises(TypeError, match="Tensor"):
        json_safe({"value": torch.tensor(1.0)})


def test_every_stage_and_op_has_a_colour_of_its_own() -> None:
    assert list(STAGE_COLOURS) == [stage.name for stage in Stage]
    assert list(OP_COLOURS) == list(OP_NAMES)
    assert len(set(STAGE_COLOURS.values())) == len(Stage)
    assert len(set(OP_COLOURS.values())) == len(Op)


def test_without_times_removes_the_clock_and_nothing_else() -> None:
    record = {"iteration": 1, "time/rollout": 3.2, "charts/SPS": 400.0, "charts/episodic_return": 0.5}
    assert without_times(record) == {"iteration": 1, "charts/episodic_return": 0.5}


def test_a_line_cut_off_by_a_kill_is_left_out_but_a_broken_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{"iteration": 2}\n{"iterat')
    assert [record["iteration"] for record in read_jsonl(path)] == [1, 2]
    path.write_text('{"iteration": 1}\n{"iterat\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2"):
        read_jsonl(path)
    path.write_text("[1]\n")
    with pytest.raises(ValueError, match="line 1: not a JSON object"):
        read_jsonl(path)


def test_mean_and_standard_error_by_hand() -> None:
    # Deviations of 2, 4, 6 from their mean 4: s = 2, so the standard error is 2 / sqrt(3).
    mean = mean_sem(torch.tensor([2.0, 4.0, 6.0]))
    assert mean is not None
    assert mean.mean == 4.0
    assert mean.sem == pytest.approx(2 / math.sqrt(3), rel=1e-12)
    assert mean_sem(torch.tensor([3])) == Mean(3.0, None)
    assert mean_sem(torch.tensor([])) is None


def test_a_record_names_mean_and_error_and_keeps_null() -> None:
    row = ResultRow(name="never", num_runs=1, num_hosts=2, val_accuracy=Mean(0.7, 0.01), added_parameters=Mean(0, None))
    record = row.to_record(OF_TRAINING)
    assert record["val_accuracy"] == {"mean": 0.7, "sem": 0.01}
    assert record["added_parameters"] == {"mean": 0.0, "sem": None}
    assert record["wait_share"] is record["test_accuracy"] is None
    assert tuple(record) == OF_TRAINING


def test_healthy_and_unmeasured_metrics_raise_no_anomaly() -> None:
    healthy = {"losses/entropy/op": 0.6, "losses/explained_variance": 0.4, "losses/grad_norm": 0.7}
    assert detect(1, healthy) == []
    assert detect(1, dict.fromkeys(healthy)) == []
    assert detect(1, {}) == []


@pytest.mark.parametrize(
    ("metric", "value", "name"),
    [
        ("losses/policy_loss", math.nan, "non_finite"),
        ("charts/episodic_return", -math.inf, "non_finite"),
        ("losses/entropy/slot", 0.001, "entropy_collapse"),
        ("losses/explained_variance", -3.0, "value_collapse"),
        ("losses/grad_norm", 1e4, "gradient_norm"),
        ("losses/ratio_outside", 0.03, "ratio_explosion"),
        ("losses/skipped_minibatches", 2.0, "non_finite"),
    ],
)
def test_each_detector_names_what_it_saw(metric: str, value: float, name: str) -> None:
    (anomaly,) = detect(14, {"losses/value_loss": 0.1, metric: value})
    assert isinstance(anomaly, Anomaly)
    assert (anomaly.iteration, anomaly.name) == (14, name)
    assert anomaly.value is value
    assert anomaly.message.endswith(f": {ADVICE[name]}")


def test_a_rare_action_that_became_likely_is_no_anomaly() -> None:
    assert detect(14, {"losses/ratio_max": 20.0, "losses/ratio_min": 0.01, "losses/ratio_outside": 0.002}) == []


def test_advice_names_keys_that_there_are() -> None:
    keys = flat(to_plain(compose()))
    named = {key for text in ADVICE.values() for key in re.findall(r"(?:ppo|trainer)\.\w+", text)}
    assert named
    assert {key for key in named if not any(known.startswith(key) for known in keys)} == set()


SEVERAL = {
    "non_finite": {"losses/policy_loss": math.nan, "losses/value_loss": math.inf, "losses/skipped_minibatches": 4.0},
    "entropy_collapse": {f"losses/entropy/{head}": 0.0 for head in ("op", "slot", "blueprint", "style", "tempo")},
}


@pytest.mark.parametrize("name", SEVERAL)
def test_what_one_detector_sees_in_several_metrics_is_one_anomaly(name: str) -> None:
    (anomaly,) = detect(14, SEVERAL[name])
    assert anomaly.name == name
    named = anomaly.message.removesuffix(f": {ADVICE[name]}").split("; ")
    assert len(named) == min(len(SEVERAL[name]), 4)
    assert named[3:] == ["and 2 more"] * (len(SEVERAL[name]) > 3)


def test_an_iteration_has_at_most_one_anomaly_of_each_name() -> None:
    sick = {key: value for metrics in SEVERAL.values() for key, value in metrics.items()}
    names = [anomaly.name for anomaly in detect(14, sick | {"losses/grad_norm": 1e4})]
    assert names == [*SEVERAL, "gradient_norm"]


HEALTHY_STARTS = (
    # explained variance of runs that went on to learn: presets digits (four of them) and digits_deep
    (-3.44, -1.09, -0.14, 0.02, 0.05, 0.18, -0.1, 0.34, -0.21, 0.13, 0.18, -0.06),
    (-2.29, -1.37, -0.46, -0.07, -0.25, -0.09, -0.5, 0.15, 0.03, 0.12, -0.84, -0.18),
    (-0.84, -0.31, -0.95, -0.19, -0.0, 0.3, -1.33, -0.42, -0.03, -0.26, -0.47, 0.06),
    (-0.31, -1.64, -0.17, -0.05, -0.33, 0.07, 0.13, 0.19, 0.08, 0.26, 0.29, 0.33),
    (-2.68, -2.54, -0.45, -0.07, -0.08, 0.03, -0.11, -0.47, -0.25),
)


@pytest.mark.parametrize("start", HEALTHY_STARTS)
def test_a_value_function_that_has_had_no_time_is_no_anomaly(start: tuple[float, ...]) -> None:
    found = [detect(number, {"losses/explained_variance": value}) for number, value in enumerate(start, start=1)]
    assert found == [[]] * len(start)


def test_a_value_function_that_misleads_later_is_one_in_the_very_iteration() -> None:
    learned, lost = [-3.0, -2.0, *[0.6] * 18], [-1.5, -4.0]
    found = [
        anomaly
        for number, value in enumerate([*learned, *lost], start=1)
        for anomaly in detect(number, {"losses/explained_variance": value})
    ]
    assert [(anomaly.iteration, anomaly.name) for anomaly in found] == [(21, "value_collapse"), (22, "value_collapse")]


def test_a_value_function_that_never_learns_is_one_as_soon_as_it_has_had_its_time() -> None:
    limits = AnomalyLimits(value_start=2)
    found = [detect(number, {"losses/explained_variance": -5.0}, limits) for number in (1, 2, 3)]
    assert [bool(anomalies) for anomalies in found] == [False, False, True]


def test_times_are_never_anomalies_so_that_all_ranks_see_the_same() -> None:
    assert detect(1, {"time/rollout": math.nan, "charts/SPS": math.inf}) == []


def test_accuracy_that_falls_below_its_last_iterations_is_an_anomaly() -> None:
    low = {"charts/final_val_accuracy": 0.5}
    assert [found.name for found in detect(9, low, earlier=[0.7] * 5)] == ["accuracy_drop"]
    assert detect(9, low, earlier=[0.59] * 5) == []
    assert detect(9, low, earlier=[0.7] * 4) == []  # too few to know what is usual
    assert [found.value for found in detect(9, low, earlier=[0.0, 0.7, 0.7, 0.7, 0.7, 0.7])] == [pytest.approx(0.2)]


def test_hosts_that_are_poorer_by_themselves_are_no_accuracy_drop() -> None:
    poorer = {"charts/final_val_accuracy": 0.5, "charts/never_val_accuracy": 0.45}
    assert accuracy_gain(poorer) == pytest.approx(0.05)
    assert detect(9, poorer, earlier=[0.06] * 5) == []
    assert accuracy_gain({"charts/final_val_accuracy": None, "charts/never_val_accuracy": 0.45}) is None


def test_limits_move_the_verdict() -> None:
    metrics = {"losses/grad_norm": 5.0}
    assert detect(1, metrics) == []
    assert [found.name for found in detect(1, metrics, AnomalyLimits(max_gradient_norm=4.0))] == ["gradient_norm"]
