"""Start from another run's policy: completely where it fits, in part on request, otherwise refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import SMALL

from esper.blueprints import blueprint_ids
from esper.config import Config, UsageError, compose, to_plain
from esper.config.root import CheckpointConfig
from esper.envs.features import NUM_BASE_FEATURES, NUM_SLOT_FEATURES, continuous_features, feature_kinds, num_features
from esper.experiment.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from esper.experiment.preflight import preflight
from esper.experiment.transfer import check_source, transfer
from esper.policy import GrowthPolicy, Normaliser
from esper.policy.normaliser import moments
from esper.population.probes import PROBE_NAMES
from esper.runtime.records import read_jsonl
from esper.training.run import train
from tests.tiers import few

DOCS = Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md"
SLOT_COUNTS = (1, 2, 3, 5, 8)


@cache
def config_of(num_slots: int, *words: str) -> Config:
    slots = [f"host={'digits' if num_slots <= 3 else 'digits_deep'}", f"slots.num_slots={num_slots}"]
    return compose(*SMALL, *slots, *words)


def policy_of(num_slots: int, seed: int, **options: Any) -> tuple[GrowthPolicy, Normaliser]:
    """Make a policy from a seed, and a normaliser with statistics."""
    torch.manual_seed(seed)
    widths = {"encoder_dim": 16, "lstm_dim": 16, "head_dim": 16, "blueprint_head_dims": (16, 16), "value_dim": 16}
    policy = GrowthPolicy(num_slots, len(blueprint_ids()), num_probes=len(PROBE_NAMES), **widths, **options)
    kinds = feature_kinds(num_slots, PROBE_NAMES) if policy.for_any_slots else None
    normaliser = Normaliser(continuous_features(num_slots, PROBE_NAMES), kinds)
    size = policy.num_features
    normaliser.merge(moments(torch.randn(50, size) * (1 + torch.arange(size)) + seed))
    return policy, normaliser


def saved(path: Path, num_slots: int, *words: str, **options: Any) -> dict[str, Any]:
    policy, normaliser = policy_of(num_slots, seed=1, **options)
    config = to_plain(config_of(num_slots, *words))
    save_checkpoint(path, policy=policy, normaliser=normaliser, iteration=5, config=config)
    return load_checkpoint(path)


def outcome(record: dict[str, Any], path: Path, num_slots: int) -> str:
    """Try both ways: return ``full`` if it loads completely, ``partial`` if only in part."""
    found = []
    for partial in (False, True):
        config = replace(config_of(num_slots), checkpoint=CheckpointConfig(path=str(path), partial=partial))
        policy, normaliser = policy_of(num_slots, seed=2)
        try:
            check_source(record, config)
        except CheckpointError:
            continue
        transfer(record, policy, normaliser, partial)
        assert all(value.isfinite().all() for value in (*policy.state_dict().values(), normaliser.mean, normaliser.m2))
        found.append("partial" if partial else "full")
    return found[0]


@pytest.mark.slow
def test_the_table_in_the_documentation_is_what_happens(tmp_path: Path) -> None:
    rows = ["| policy of ↓, loaded into → | " + " | ".join(_slots(n) for n in SLOT_COUNTS) + " |"]
    rows.append("|---|" + "---|" * len(SLOT_COUNTS))
    for number in SLOT_COUNTS:
        path = tmp_path / f"{number}.pt"
        record = saved(path, number)
        cells = [outcome(record, path, other) for other in SLOT_COUNTS]
        rows.append(f"| {_slots(number)} | " + " | ".join(cells) + " |")
    assert "\n".join(rows) in DOCS.read_text(encoding="utf-8")


def test_a_policy_of_any_number_of_slots_loads_completely_into_every_number(tmp_path: Path) -> None:
    record = saved(tmp_path / "a.pt", 3, "policy.body=shared", body="shared")
    assert record["num_slots"] is None
    for number in SLOT_COUNTS:
        config = config_of(number, "policy.body=shared")
        config = replace(config, checkpoint=CheckpointConfig(path=str(tmp_path / "a.pt")))
        check_source(record, config)
        policy, normaliser = policy_of(number, seed=2, body="shared")
        assert transfer(record, policy, normaliser, partial=False) == []
        for name, value in record["policy"].items():
            assert torch.equal(policy.state_dict()[name], value)
        assert torch.equal(normaliser.mean, record["normaliser"]["mean"])


def test_a_policy_of_a_run_before_there_were_other_bodies_is_of_the_body_of_then(tmp_path: Path) -> None:
    record = saved(tmp_path / "a.pt", 3)
    for key in ("body", "slot_depth"):
        del record["config"]["policy"][key]
    config = config_of(3)
    check_source(record, replace(config, checkpoint=CheckpointConfig(path=str(tmp_path / "a.pt"))))


def _slots(number: int) -> str:
    return f"{number} slot{'s'[: number != 1]}"


@pytest.mark.parametrize(("before", "now"), [(3, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize("options", [{}, {"slot_head": "pointer"}, {"conditional_heads": False}])
def test_in_part_everything_is_taken_over_but_what_is_said(
    tmp_path: Path, before: int, now: int, options: dict[str, Any]
) -> None:
    record = saved(tmp_path / "a.pt", before, **options)
    policy, normaliser = policy_of(now, seed=2, **options)
    young = {name: value.clone() for name, value in policy.state_dict().items()}
    left = transfer(record, policy, normaliser, partial=True)
    said = {name.partition(" ")[0] for name in left}
    assert {"encoder.0.weight", "encoder.0.bias"} <= said
    assert any(name.startswith("heads.networks.slot.") for name in said)
    for name, value in policy.state_dict().items():
        old: torch.Tensor = record["policy"][name]
        if name in said and f"{name} (inputs for the slot's number)" not in left:
            assert torch.equal(value, young[name]), name
        elif name not in said:
            assert torch.equal(value, old), name
        else:
            at = policy.lstm_dim + 6
            assert torch.equal(value[:, :at], old[:, :at])
            assert torch.equal(value[:, at : at + now], young[name][:, at : at + now])
            assert torch.equal(value[:, at + now :], old[:, at + before :])


def test_statistics_of_slots_become_those_of_all_slots_together(tmp_path: Path) -> None:
    """Two slots whose features are samples of one distribution each: the third slot's are samples of both."""
    record = saved(tmp_path / "a.pt", 2)
    base, width, probes = NUM_BASE_FEATURES, NUM_SLOT_FEATURES, len(PROBE_NAMES)
    samples = torch.randn(40, num_features(2, probes)).double() * 3 + torch.arange(num_features(2, probes))
    seen = moments(samples)
    record["normaliser"] = {"count": seen.count, "mean": seen.mean, "m2": seen.m2}
    policy, normaliser = policy_of(3, seed=2)
    transfer(record, policy, normaliser, partial=True)
    slots = samples[:, base : base + 2 * width].reshape(-1, width)
    evidence = samples[:, base + 2 * width :].reshape(-1, probes)
    expected = torch.cat([samples.mean(0)[:base], slots.mean(0).repeat(3), evidence.mean(0).repeat(3)])
    variance = [part.var(0, correction=0) for part in (samples[:, :base], slots, evidence)]
    torch.testing.assert_close(normaliser.mean, expected)
    torch.testing.assert_close(
        normaliser.m2 / normaliser.count, torch.cat([variance[0], variance[1].repeat(3), variance[2].repeat(3)])
    )
    assert float(normaliser.count) == 40


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("slots.num_slots=2",),
            r"a policy of 3 slots, slots.num_slots is 2: train from scratch, or use checkpoint",
        ),
        (("policy.lstm_dim=8",), r"has policy.lstm_dim=16, not 8: use the same, or train from scratch"),
        (
            ("observation.slot_probes=[effective_rank,dead_channels,log_gradient_norm,log_first_order_gain]",),
            r"has observation.slot_probes=.*: use the same",
        ),
        (("plugins=[json]",), r"has plugins=\[\], not \['json'\]: use the same, or train from scratch"),
    ],
)
@few(2)
def test_what_does_not_fit_is_refused_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "a.pt"
    saved(path, 3)
    with pytest.raises(CheckpointError, match=message) as caught:
        preflight(compose(*SMALL, *words, f"checkpoint.path={path}"))
    assert "\n" not in str(caught.value)


def test_a_policy_of_another_task_needs_the_word_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    record = saved(path, 3)
    record["config"]["task"]["name"] = "chess"
    config = compose(*SMALL, f"checkpoint.path={path}")
    with pytest.raises(
        CheckpointError, match=r"was trained on task 'chess', task is 'digits': train from scratch, or use"
    ):
        check_source(record, config)
    check_source(record, replace(config, checkpoint=replace(config.checkpoint, partial=True)))


def test_partial_without_a_checkpoint_is_refused() -> None:
    with pytest.raises(UsageError, match=r"checkpoint.partial=true has no checkpoint to load: use checkpoint.path="):
        compose("checkpoint.partial=true")


@pytest.mark.slow
def test_a_run_starts_from_a_policy_and_says_what_it_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pt"
    saved(path, 3)
    words = (*SMALL, "trainer.num_iterations=1", "evaluation.controllers=[never]", "telemetry.plots=false")
    words = (*words, "evaluation.num_hosts=3", "ppo.lr=1e-12", "telemetry.console=plain")
    train(compose(*words), tmp_path / "fresh")
    train(compose(*words, f"checkpoint.path={path}"), tmp_path / "whole")
    assert "as initialised stay" not in capsys.readouterr().out
    train(compose(*words, "slots.num_slots=2", f"checkpoint.path={path}", "checkpoint.partial=true"), tmp_path / "part")
    assert (
        "checkpoint.partial: initial values are kept for encoder.0.weight, encoder.0.bias, " in capsys.readouterr().out
    )
    whole = load_checkpoint(tmp_path / "whole" / "checkpoints" / "last.pt")
    torch.testing.assert_close(whole["policy"], load_checkpoint(path)["policy"])
    metrics = [read_jsonl(tmp_path / name / "metrics.jsonl")[0]["losses/value_loss"] for name in ("fresh", "whole")]
    assert metrics[0] != metrics[1]
