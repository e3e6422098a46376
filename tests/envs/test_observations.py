"""Observations: layout, ranges, and that every feature reads its own source and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.envs.features import (
    SLOT_INDEX,
    Feature,
    continuous_features,
    feature_table,
    num_features,
)
from esper.envs.history import HostHistory
from esper.envs.observations import observe
from esper.growth import AlphaMode, SlotState, Stage
from esper.growth.actions import NUM_BLUEPRINTS, Op
from esper.population.probes import PROBE_NAMES
from tests.tiers import few

NAN, INF = float("nan"), float("inf")
NUM_EPOCHS = 20
BUDGET = 1000


def look(history: HostHistory, state: SlotState, probes: Tensor | None = None, rents: Tensor | None = None) -> Tensor:
    budget = torch.full((state.num_envs,), BUDGET)
    features, _ = observe(
        history,
        state,
        num_epochs=NUM_EPOCHS,
        param_budget=budget,
        min_training_epochs=5,
        contribution_decay=0.995,
        probes=probes,
        rents=rents,
    )
    return features


def named(features: Tensor, num_slots: int, probes: tuple[str, ...] = ()) -> dict[str, float]:
    """Return the row of environment 0 by feature name."""
    table = feature_table(num_slots, probes)
    return {feature.name: features[0, feature.index].item() for feature in table}


def rich_state() -> SlotState:
    """One environment, three modules, every value in the middle of its range."""
    state = SlotState.empty(1, 3)
    state.stage = torch.tensor([[Stage.TRAINING, Stage.BLENDING, Stage.HOLDING]])
    state.blueprint = torch.tensor([[1, 4, 5]])
    for name, value in {
        "alpha": 0.25, "alpha_target": 0.5, "alpha_velocity": 0.1, "contribution": 2.0, "previous_contribution": 1.0,
        "gradient_norm": 3.0, "gradient_health": 0.5, "previous_health": 0.25, "interaction": 1.0, "boost": 1.0,
    }.items():  # fmt: skip
        setattr(state, name, torch.full((1, 3), value, dtype=torch.float64))
    for name, count in {"ramp_elapsed": 1, "ramp_duration": 3, "epochs_in_stage": 2, "dwell": 2}.items():
        setattr(state, name, torch.full((1, 3), count))
    state.contribution_age.fill_(10)
    state.num_parameters.fill_(50)
    return state


def rich_history() -> HostHistory:
    history = HostHistory.empty(1)
    for loss, accuracy in ((2.0, 0.1), (1.9, 0.2), (1.7, 0.35), (1.6, 0.3), (1.5, 0.4), (1.4, 0.35)):
        history.record(torch.tensor([loss]), torch.tensor([accuracy]))
    return history


# ---------------------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("num_slots", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("price", [False, True])
@pytest.mark.parametrize("probes", [(), ("effective_rank",), PROBE_NAMES])
def test_the_table_names_every_column_once(num_slots: int, probes: tuple[str, ...], price: bool) -> None:
    table = feature_table(num_slots, probes, price)
    assert len(table) == num_features(num_slots, len(probes), price)
    assert (table[-1].name == "price") == price
    assert [feature.index for feature in table] == list(range(len(table)))
    assert len({feature.name for feature in table}) == len(table)
    assert all(-2 <= feature.low < feature.high <= 2 for feature in table)
    assert continuous_features(num_slots, probes, price).tolist() == [feature.continuous for feature in table]


def test_positions_of_the_v3_layout() -> None:
    table = {feature.name: feature.index for feature in feature_table(3, PROBE_NAMES)}
    assert num_features(3) == 121
    expected = {
        "epoch": 0, "val_loss": 1, "val_accuracy_delta": 4, "stabilised": 6, "val_loss_4_ago": 7, "val_loss_0_ago": 11,
        "val_accuracy_0_ago": 16, "best_accuracy": 17, "added_params": 19, "holding_share": 23, "last_success": 24,
        "last_op_wait": 25, "last_op_extend": 30, "slot0.occupied": 31, "slot0.stage_unknown": 32, "slot0.alpha": 42,
        "slot0.alpha_mode": 44, "slot0.algorithm": 47, "slot0.contribution": 48, "slot0.freshness": 60,
        "slot1.occupied": 61, "slot2.freshness": 120, "slot0.dead_channels": 121, "slot2.log_first_order_gain": 132,
    }  # fmt: skip
    assert {name: table[name] for name in expected} == expected


def test_an_unknown_probe_is_refused_with_the_choices() -> None:
    with pytest.raises(
        ValueError, match="unknown slot probe 'rank'; the probes are dead_channels, effective_rank, log_gr"
    ):
        feature_table(3, ["dead_channels", "rank"])


# ---------------------------------------------------------------------------------------------------------- ranges

extreme = st.sampled_from([NAN, INF, -INF, 0.0, -0.3, 0.7, 1.0, 5.0, -40.0, 1e30, -1e300])


def wild_state(num_envs: int, num_slots: int, draw: Callable[[], float], generator: torch.Generator) -> SlotState:
    """Any value in any field, as far as its type and its enum allow."""
    state = SlotState.empty(num_envs, num_slots)
    shape = (num_envs, num_slots)
    limits = {
        "stage": (1, 10),
        "alpha_mode": (0, 3),
        "algorithm": (0, 3),
        "curve": (0, 5),
        "blueprint": (-1, NUM_BLUEPRINTS),
    }
    for name, values in state.to_dict().items():
        if values.dtype == torch.float64:
            values = torch.tensor([[draw() for _ in range(num_slots)] for _ in range(num_envs)], dtype=torch.float64)
        elif values.dtype == torch.bool:
            values = torch.randint(0, 2, shape, generator=generator).bool()
        else:
            low, high = limits.get(name, (0, 10_000))
            values = torch.randint(low, high, shape, generator=generator)
        setattr(state, name, values)
    return state


@pytest.mark.parametrize("num_slots", [1, 2, 3, 4, 5, 8])
@settings(max_examples=15, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**31))
@few(3)
def test_every_feature_stays_inside_its_range(num_slots: int, data: st.DataObject, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = data.draw(st.lists(extreme, min_size=20, max_size=20))
    cycle = iter(values * 1000)
    state = wild_state(2, num_slots, lambda: next(cycle), generator)
    history = HostHistory.empty(2)
    for loss in values[:8]:
        history.record(torch.tensor([abs(loss), 1.0]), torch.tensor([0.5, min(max(loss, 0.0), 1.0)]))
    probes = torch.tensor(values[:8] * num_slots, dtype=torch.float64).view(2, num_slots, 4)
    features = look(history, state, probes)
    assert features.isfinite().all()
    table = feature_table(num_slots, PROBE_NAMES)
    low = torch.tensor([feature.low for feature in table])
    high = torch.tensor([feature.high for feature in table])
    outside = ((features < low) | (features > high)).any(0)
    assert not outside.any(), [table[int(index)].name for index in outside.nonzero()]


def test_an_empty_slot_is_all_zero_whatever_its_neighbours_do() -> None:
    state = rich_state()
    state.clear(torch.tensor([[False, True, False]]))
    state.epochs_in_stage[0, 1] = 9
    row = named(look(rich_history(), state), 3)
    assert {value for name, value in row.items() if name.startswith("slot1.")} == {0.0}
    assert row["slot2.alpha_upstream"] == pytest.approx(0.25 / 2)


def test_before_the_first_epoch() -> None:
    """All zero but the feedback: the last action was a WAIT that took effect."""
    row = named(look(HostHistory.empty(1), SlotState.empty(1, 3)), 3)
    assert {name for name, value in row.items() if value != 0} == {"last_success", "last_op_wait"}


def test_features_share_nothing_with_their_sources() -> None:
    history, state = rich_history(), rich_state()
    budget = torch.tensor([BUDGET])
    features, blueprint = observe(
        history, state, num_epochs=NUM_EPOCHS, param_budget=budget, min_training_epochs=5, contribution_decay=0.995
    )
    before = features.clone()
    for values in (*state.to_dict(), *history.to_dict()):
        target = getattr(state, values, None) if hasattr(state, values) else getattr(history, values)
        assert target is not None
        target.fill_(1)
    assert torch.equal(features, before)
    assert blueprint.tolist() == [[1, 4, 5]]


def test_rows_do_not_depend_on_other_environments() -> None:
    generator = torch.Generator().manual_seed(0)
    values = iter(torch.rand(10_000, generator=generator).tolist())
    state = wild_state(4, 3, lambda: next(values), generator)
    history = HostHistory.empty(4)
    for _ in range(4):
        history.record(torch.rand(4, generator=generator), torch.rand(4, generator=generator))
    together = look(history, state)
    for env in range(4):
        row = {name: field[env : env + 1] for name, field in history.to_dict().items()}
        assert torch.equal(look(HostHistory.from_dict(row), state[env : env + 1]), together[env : env + 1])


# ------------------------------------------------------------------------------------------------- sources of features

Change = Callable[[HostHistory, SlotState], None]


def put(field: str, value: float, slot: int = 1) -> Change:
    def change(history: HostHistory, state: SlotState) -> None:
        getattr(state, field)[0, slot] = value

    return change


def remember(field: str, value: float, age: int | None = None) -> Change:
    def change(history: HostHistory, state: SlotState) -> None:
        getattr(history, field)[(0,) if age is None else (0, -1 - age)] = value

    return change


def _stage_changes() -> list[tuple[Change, set[str]]]:
    """Move from BLENDING to every other stage; slot 1's time_to_target reads the dwell clock in TRAINING."""
    shares = {Stage.TRAINING: {"training_share"}, Stage.HOLDING: {"holding_share"}}
    changes: list[tuple[Change, set[str]]] = []
    for stage in Stage:
        if stage not in (Stage.BLENDING, Stage.DORMANT):
            moved = {"blending_share", "slot1.stage_blending", f"slot1.stage_{stage.name.lower()}"}
            moved |= shares.get(stage, set())
            if stage not in (Stage.GERMINATED, Stage.TRAINING, Stage.HOLDING):
                moved.add("live_share")
            if stage is Stage.TRAINING:
                moved.add("slot1.time_to_target")
            changes.append((put("stage", stage), moved))
    return changes


CHANGES: list[tuple[Change, set[str]]] = [
    *_stage_changes(),
    (put("stage", Stage.DORMANT), {"slot1.occupied", "slot1.stage_blending"}),
    (put("alpha", 0.5), {"slot1.alpha", "slot0.alpha_downstream", "slot2.alpha_upstream"}),
    (put("alpha", 0.5, slot=0), {"slot0.alpha", "slot1.alpha_upstream", "slot2.alpha_upstream"}),
    (put("alpha", 0.5, slot=2), {"slot2.alpha", "slot0.alpha_downstream", "slot1.alpha_downstream"}),
    (put("alpha_target", 1.0), {"slot1.alpha_target"}),
    (put("alpha_mode", AlphaMode.STEP), {"slot1.alpha_mode"}),
    (put("alpha_velocity", -0.4), {"slot1.alpha_velocity"}),
    (put("ramp_elapsed", 2), {"slot1.time_to_target"}),
    (put("ramp_duration", 8), {"slot1.time_to_target"}),
    (put("dwell", 4), set()),
    (put("dwell", 4, slot=0), {"slot0.time_to_target"}),
    (put("algorithm", 2), {"slot1.algorithm"}),
    (put("contribution", 7.0), {"slot1.contribution", "slot1.contribution_velocity"}),
    (put("previous_contribution", 7.0), {"slot1.contribution_velocity"}),
    (put("contribution_age", 50), {"slot1.freshness"}),
    (put("contribution", NAN), {"slot1.contribution", "slot1.contribution_velocity", "slot1.freshness"}),
    (put("epochs_in_stage", 6), {"slot1.epochs_in_stage"}),
    (put("gradient_norm", 6.0), {"slot1.gradient_norm"}),
    (put("gradient_norm", NAN), {"slot1.gradient_norm"}),
    (put("gradient_health", 0.9), {"slot1.gradient_health"}),
    (put("previous_health", 0.9), {"slot1.previous_health"}),
    (put("vanishing", 1), {"slot1.vanishing"}),
    (put("exploding", 1), {"slot1.exploding"}),
    (put("interaction", -3.0), {"slot1.interaction"}),
    (put("boost", -3.0), {"slot1.boost"}),
    (put("fading", 1), {"live_share"}),
    (put("num_parameters", 400), {"added_params"}),
    (remember("epoch", 12), {"epoch"}),
    (remember("losses", 1.0, 0), {"val_loss", "val_loss_0_ago", "val_loss_delta"}),
    (remember("losses", 1.0, 1), {"val_loss_1_ago", "val_loss_delta"}),
    (remember("losses", 1.0, 2), {"val_loss_2_ago"}),
    (remember("losses", 1.0, 3), {"val_loss_3_ago"}),
    (remember("losses", 1.0, 4), {"val_loss_4_ago"}),
    (remember("accuracies", 0.38, 0), {"val_accuracy", "val_accuracy_0_ago", "val_accuracy_delta"}),
    (remember("accuracies", 0.38, 1), {"val_accuracy_1_ago", "val_accuracy_delta"}),
    (remember("accuracies", 0.9, 2), {"val_accuracy_2_ago"}),
    (remember("accuracies", 0.9, 3), {"val_accuracy_3_ago"}),
    (remember("accuracies", 0.9, 4), {"val_accuracy_4_ago"}),
    (remember("best_loss", 0.5), {"best_loss"}),
    (remember("best_accuracy", 0.9), {"best_accuracy"}),
    (remember("plateau_epochs", 7), {"plateau_epochs"}),
    (remember("stabilised", 1), {"stabilised"}),
    (remember("last_success", 0), {"last_success"}),
    *((remember("last_op", op), {"last_op_wait", f"last_op_{op.name.lower()}"}) for op in Op if op is not Op.WAIT),
]


@pytest.mark.parametrize("index", range(len(CHANGES)))
def test_a_source_moves_its_features_and_no_other(index: int) -> None:
    change, expected = CHANGES[index]
    history, state = rich_history(), rich_state()
    before = named(look(history, state), 3)
    change(history, state)
    after = named(look(history, state), 3)
    moved = {name for name in before if before[name] != after[name]}
    if "slot1.occupied" in expected:  # the whole slot goes dark
        assert moved >= expected
    else:
        assert moved == expected


def test_every_feature_has_a_source() -> None:
    """The list above covers the table (slot 1 stands for all slots)."""
    moved = set().union(*(expected for _, expected in CHANGES))
    slot_names = {name.split(".")[1] for name in moved if "." in name} | {"stage_dormant"}
    assert slot_names == set(SLOT_INDEX)
    assert {name for name in moved if "." not in name} == {f.name for f in feature_table(1) if "." not in f.name}


@pytest.mark.parametrize("probes", [None, torch.arange(16.0).view(2, 2, 4) / 9])
def test_the_price_stands_last_by_its_logarithm(probes: Tensor | None) -> None:
    history, state = HostHistory.empty(2), SlotState.empty(2, 2)
    for (low, high), seen in {(1, 4): [0, 0.5], (0.25, 256): [-0.5, 2], (0, 1e9): [-2, 2]}.items():
        features = look(history, state, probes, torch.tensor([low, high]).double())
        assert features[:, -1].tolist() == seen
        assert torch.equal(features[:, :-1], look(history, state, probes)), "and moves nothing else"


def test_probes_stand_behind_the_slots_and_are_seen_for_empty_ones() -> None:
    probes = torch.arange(8.0).view(1, 2, 4) / 4
    row = named(look(HostHistory.empty(1), SlotState.empty(1, 2), probes), 2, PROBE_NAMES)
    for slot in range(2):
        found = [row[f"slot{slot}.{name}"] for name in PROBE_NAMES]
        assert found == probes[0, slot].tolist()


# --------------------------------------------------------------------------------------------------- worked numbers


def test_values_by_hand() -> None:
    row = named(look(rich_history(), rich_state()), 3)
    scale = log(11)
    expected = {
        "epoch": 6 / 20, "val_loss": log(2.4) / scale, "val_loss_delta": -0.1 / 2, "val_accuracy": 0.35,
        "val_accuracy_delta": -5 / 10, "plateau_epochs": 0, "val_loss_4_ago": log(2.9) / scale,
        "val_accuracy_4_ago": 0.2, "best_accuracy": 0.4, "best_loss": log(2.4) / scale,
        "added_params": log(151) / log(1001), "live_share": 1, "training_share": 1 / 3, "holding_share": 1 / 3,
        "slot0.time_to_target": (5 - 2) / 8, "slot1.time_to_target": (3 - 1) / 8, "slot1.contribution": log(3) / scale,
        "slot1.contribution_velocity": log(2) / scale, "slot1.epochs_in_stage": 2 / 20, "slot1.gradient_norm": 0.3,
        "slot1.interaction": 0.1, "slot1.boost": 0.2, "slot1.alpha_upstream": 0.25 / 2, "slot0.alpha_downstream": 0.25,
        "slot1.freshness": 0.995**10,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_unmeasured_values_look_unmeasured() -> None:
    """Norm, flags, health, contribution and freshness are 0; previous health is 1; a dead gradient saturates
    instead.
    """
    state = SlotState.empty(1, 1)
    state.stage.fill_(Stage.TRAINING)
    row = named(look(HostHistory.empty(1), state), 1)
    zero = ("gradient_norm", "gradient_health", "vanishing", "exploding", "contribution", "freshness", "interaction")
    assert [row[f"slot0.{name}"] for name in zero] == [0.0] * len(zero)
    assert row["slot0.previous_health"] == 1
    state.gradient_norm.fill_(INF)
    assert named(look(HostHistory.empty(1), state), 1)["slot0.gradient_norm"] == 1


def test_negative_contributions_are_mirrored() -> None:
    state = rich_state()
    state.contribution[0] = torch.tensor([-10.0, 10.0, -1e9])
    row = named(look(rich_history(), state), 3)
    assert [row[f"slot{slot}.contribution"] for slot in range(3)] == pytest.approx([-1.0, 1.0, -2.0])


def test_flags_and_enum_values_are_not_normalised() -> None:
    discrete = {f.name for f in feature_table(1) if not f.continuous}
    expected = {"stabilised", "last_success", *(f"last_op_{op.name.lower()}" for op in Op)}
    stages = {f"slot0.stage_{stage.name.lower()}" for stage in Stage}
    expected |= stages | {f"slot0.{name}" for name in ("occupied", "alpha_mode", "algorithm", "vanishing", "exploding")}
    assert discrete == expected
    assert isinstance(feature_table(1)[0], Feature)
