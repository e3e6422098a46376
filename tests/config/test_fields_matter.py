"""Every field has an effect: changing it changes the files or the output of a run."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import SMALL

from esper.config import Config, compose
from esper.config.wandb import TrainWandbConfig
from esper.experiment.checkpoint import load_checkpoint
from esper.runtime.records import read_jsonl, without_times
from esper.training.run import train

pytestmark = pytest.mark.slow

BASE = (
    *SMALL,
    "telemetry.console=plain",
    "trainer.num_iterations=1",
    "evaluation.num_hosts=1",
    "evaluation.controllers=[never]",
    "telemetry.plots=false",
    "instances.families={intact:1,starved_0:1,starved_1:0,starved_2:0,centre_tap_all:0,centre_tap_12:0,few_classes:1}",
    "slots.max_seeds=2",
    "env.mapping=grouped",
    "reward.twin=none",
    "task.max_samples=240",
    "task.num_val=120",
)

# For what only the comparison with other controllers shows.
JUDGED = "evaluation.num_hosts=3 evaluation.controllers=[learned] evaluation.deterministic=false"

# Field to the words that change it, after words (if any) that both runs get, because it matters only there.
CHANGES: dict[str, tuple[str, str]] = {
    "seed": ("", "seed=1"),
    "amp": ("", "amp=bf16"),
    "num_threads": ("", "num_threads=2"),
    "name": ("", "name=other"),
    "task.name": ("", "task.name=synthetic_images"),
    "task.batch_size": ("", "task.batch_size=8"),
    "task.num_val": ("", "task.num_val=60"),
    "task.max_samples": ("", "task.max_samples=200"),
    "task.crop": ("", "task.crop=1"),
    "task.flip": ("", "task.flip=true"),
    "task.cutout": ("", "task.cutout=3"),
    "host.widths": ("", "host.widths=[8,4,8]"),
    "host.kernel_sizes": ("", "host.kernel_sizes=[3,1,3]"),
    "host.strides": ("", "host.strides=[1,1,1]"),
    "host.pools": ("", "host.pools=[false,false,false]"),
    "host.norm_groups": ("", "host.norm_groups=4"),
    "host.place_rows": ("slots.num_slots=1", "host.place_rows=[1]"),
    "host.lr": ("", "host.lr=0.02"),
    "host.max_grad_norm": ("", "host.max_grad_norm=0.1"),
    "instances.families": ("", "instances.families.intact=0"),
    "instances.num_train": ("", "instances.num_train=3"),
    "instances.num_held_out": (
        f"{JUDGED} instances.families.starved_0=5 instances.families.few_classes=0",
        "instances.num_held_out=60",
    ),
    "instances.alive_channels": ("", "instances.alive_channels=3"),
    "instances.num_few_classes": (JUDGED, "instances.num_few_classes=3"),
    "instances.held_out_families": (JUDGED, "+instances.held_out_families={intact:1}"),
    "instances.block_faults": ("", "+instances.block_faults={starved:0.5}"),
    "instances.host_faults": (
        "+instances.block_faults={starved:0.5,centre_tap:0.5}",
        "+instances.host_faults={lr_over_3:1}",
    ),
    "instances.num_validation": (
        f"{JUDGED} evaluation.split=validation instances.families.starved_0=5 instances.families.few_classes=0",
        "instances.num_validation=4",
    ),
    "instances.base_seed": ("", "instances.base_seed=1"),
    "instances.data_fraction": ("+instances.families={few_samples:5}", "instances.data_fraction=0.5"),
    "instances.label_noise_rate": ("+instances.families={label_noise:5}", "instances.label_noise_rate=0.6"),
    "instances.arrival.classes": ("", "instances.arrival.classes=2"),
    "instances.arrival.earliest": (
        "instances.arrival.classes=2 instances.arrival.latest=0.9",
        "instances.arrival.earliest=0.9",
    ),
    "instances.arrival.latest": (
        "instances.arrival.classes=2 instances.arrival.earliest=0.1",
        "instances.arrival.latest=0.1",
    ),
    "env.num_epochs": ("", "env.num_epochs=9"),
    "env.steps_per_epoch": ("", "env.steps_per_epoch=2"),
    "env.mapping": ("", "env.mapping=vmap"),
    "slots.num_slots": ("", "slots.num_slots=2"),
    "slots.ids": ("slots.num_slots=1", "slots.ids=[r0c2]"),
    "slots.max_developing": ("", "slots.max_developing=1"),
    "slots.max_seeds": ("", "slots.max_seeds=1"),
    "slots.min_training_epochs": ("", "slots.min_training_epochs=3"),
    "slots.min_cull_age": ("", "slots.min_cull_age=3"),
    "slots.embargo_epochs": ("", "slots.embargo_epochs=3"),
    "slots.resetting_epochs": ("", "slots.resetting_epochs=3"),
    "slots.min_gradient_health": ("slots.vanish_norm=1.0", "slots.min_gradient_health=0.0"),
    "slots.vanish_norm": ("", "slots.vanish_norm=10.0"),
    "slots.explode_norm": ("", "slots.explode_norm=1e-4"),
    "slots.isolate_until": ("", "slots.isolate_until=fossilized"),
    "slots.incubation": ("", "slots.incubation=straight_through"),
    "slots.incubate_every": ("env.steps_per_epoch=2", "slots.incubate_every=2"),
    "slots.param_budget": ("", "slots.param_budget=1.0"),
    "slots.blueprints": ("", "slots.blueprints=[norm]"),
    "observation.slot_probes": ("", "observation.slot_probes=[effective_rank]"),
    "observation.probe_every": ("observation.slot_probes=[effective_rank]", "observation.probe_every=3"),
    "observation.scale_free": ("", "observation.scale_free=true"),
    "observation.price": ("reward.rent_weights=[0.5,9]", "observation.price=true"),
    "observation.contribution_decay": ("counterfactual.every=2", "observation.contribution_decay=0.5"),
    "counterfactual.every": ("", "counterfactual.every=2"),
    "counterfactual.shapley_permutations": ("", "counterfactual.shapley_permutations=4"),
    "counterfactual.max_configurations": (
        "slots.max_seeds=3 env.num_epochs=20 counterfactual.pairs_every=1",
        "counterfactual.max_configurations=4",
    ),
    "counterfactual.pairs_every": ("slots.max_seeds=3 env.num_epochs=20", "counterfactual.pairs_every=1"),
    "policy.embedding_dim": ("", "policy.embedding_dim=3"),
    "policy.encoder_dim": ("", "policy.encoder_dim=12"),
    "policy.lstm_dim": ("", "policy.lstm_dim=12"),
    "policy.head_dim": ("", "policy.head_dim=12"),
    "policy.blueprint_head_dims": ("", "policy.blueprint_head_dims=[12]"),
    "policy.value_dim": ("", "policy.value_dim=12"),
    "policy.conditional_heads": ("", "policy.conditional_heads=false"),
    "policy.slot_head": ("", "policy.slot_head=flat"),
    "policy.choices.op": ("", "policy.choices.op=[WAIT]"),
    "policy.choices.style": ("", "policy.choices.style=[LINEAR_ADD]"),
    "policy.choices.tempo": ("", "policy.choices.tempo=[FAST]"),
    "policy.choices.alpha_target": ("", "policy.choices.alpha_target=[1.0]"),
    "policy.choices.alpha_speed": ("", "policy.choices.alpha_speed=[INSTANT]"),
    "policy.choices.alpha_curve": ("", "policy.choices.alpha_curve=[SIGMOID]"),
    **{
        f"policy.initial_op_logits.{op}": ("", f"policy.initial_op_logits.{op}=2")
        for op in ("wait", "germinate", "cull", "fossilize", "set_alpha_target", "extend")
    },
    "policy.critic": ("", "policy.critic=state"),
    "policy.body": ("", "policy.body=shared"),
    "policy.slot_depth": ("policy.body=shared", "policy.slot_depth=false"),
    "algorithm": ("", "algorithm=a2c"),
    "a2c.lr": ("algorithm=a2c", "a2c.lr=0.01"),
    "a2c.adam_eps": ("algorithm=a2c", "a2c.adam_eps=0.1"),
    "a2c.gae_lambda": ("algorithm=a2c", "a2c.gae_lambda=0.5"),
    "a2c.ent_coef": ("algorithm=a2c", "a2c.ent_coef=0.5"),
    "a2c.ent_coef_final": ("algorithm=a2c trainer.num_iterations=2", "a2c.ent_coef_final=0.5"),
    "a2c.anneal_iterations": ("algorithm=a2c trainer.num_iterations=2", "a2c.anneal_iterations=2"),
    "a2c.vf_coef": ("algorithm=a2c", "a2c.vf_coef=1.0"),
    "a2c.max_grad_norm": ("algorithm=a2c", "a2c.max_grad_norm=0.01"),
    "ppo.lr": ("", "ppo.lr=0.01"),
    "ppo.adam_eps": ("", "ppo.adam_eps=0.1"),
    "ppo.gamma": ("", "ppo.gamma=0.9"),
    "ppo.gae_lambda": ("", "ppo.gae_lambda=0.5"),
    "ppo.num_minibatches": ("", "ppo.num_minibatches=1"),
    "ppo.update_epochs": ("", "ppo.update_epochs=1"),
    "ppo.norm_adv": ("", "ppo.norm_adv=false"),
    "ppo.clip_coef": ("ppo.lr=0.1 ppo.target_kl=null", "ppo.clip_coef=0.01"),
    "ppo.clip_vloss": ("ppo.lr=0.1 ppo.target_kl=null", "ppo.clip_vloss=true"),
    "ppo.ent_coef": ("", "ppo.ent_coef=0.5"),
    "ppo.ent_coef_final": ("trainer.num_iterations=2", "ppo.ent_coef_final=0.5"),
    "ppo.anneal_iterations": ("trainer.num_iterations=2", "ppo.anneal_iterations=2"),
    "ppo.vf_coef": ("", "ppo.vf_coef=1.0"),
    "ppo.max_grad_norm": ("", "ppo.max_grad_norm=0.01"),
    "ppo.target_kl": ("", "ppo.target_kl=1e-6"),
    "ppo.anneal_lr": ("trainer.num_iterations=2", "ppo.anneal_lr=true"),
    "ppo.ratio": ("ppo.lr=0.1 ppo.target_kl=null", "ppo.ratio=per_head"),
    **{
        f"ppo.entropy_multipliers.{head}": ("ppo.ent_coef=0.5", f"ppo.entropy_multipliers.{head}=7")
        for head in ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
    },
    "imitation.controller": ("", "imitation.controller=schedule"),
    "imitation.iterations": (
        "imitation.controller=schedule trainer.num_iterations=2",
        "imitation.iterations=2",
    ),
    **{
        f"imitation.{change.split('=')[0]}": (
            "imitation.controller=schedule",
            f"imitation.{change}",
        )
        for change in (
            *("update_epochs=3", "num_minibatches=1", "lr=0.01", "adam_eps=0.1", "ent_coef=0.5", "vf_coef=1.0"),
            "max_grad_norm=0.01",
        )
    },
    "reward.family": ("", "reward.family=loss"),
    "reward.rent_weight": ("", "reward.rent_weight=9"),
    "reward.rent_weights": ("", "reward.rent_weights=[0.5,9]"),
    "reward.rent": ("", "reward.rent=log"),
    "reward.compute_weight": ("", "reward.compute_weight=5"),
    "reward.twin": ("", "reward.twin=cached"),
    "reward.stage_shaping": ("", "reward.stage_shaping=2.0"),
    "reward.crash_penalty": ("host.lr=1e30", "reward.crash_penalty=50"),
    "reward.scale": ("", "reward.scale=1.0"),
    "trainer.num_envs": ("", "trainer.num_envs=4"),
    "trainer.num_steps": ("", "trainer.num_steps=5"),
    "trainer.num_iterations": ("", "trainer.num_iterations=2"),
    "trainer.checkpoint_every": ("trainer.num_iterations=2", "trainer.checkpoint_every=2"),
    "evaluation.controllers": (JUDGED, "evaluation.controllers=[never]"),
    "evaluation.num_hosts": (JUDGED, "evaluation.num_hosts=2"),
    "evaluation.split": (JUDGED, "evaluation.split=validation"),
    "evaluation.deterministic": (JUDGED, "evaluation.deterministic=true"),
    "evaluation.greedy": (f"{JUDGED} evaluation.deterministic=true", "evaluation.greedy=hazard"),
    "evaluation.schedule.first.epoch": ("evaluation.controllers=[schedule]", "evaluation.schedule.first.epoch=2"),
    "evaluation.schedule.first.slot": ("evaluation.controllers=[schedule]", "evaluation.schedule.first.slot=1"),
    "evaluation.schedule.first.blueprint": (
        "evaluation.controllers=[schedule]",
        "evaluation.schedule.first.blueprint=norm",
    ),
    "evaluation.save_grown": (JUDGED, "evaluation.save_grown=all"),
    "telemetry.level": ("", "telemetry.level=debug"),
    "telemetry.escalation_iterations": ("trainer.num_iterations=2 ppo.lr=0.1", "telemetry.escalation_iterations=0"),
    "telemetry.console": ("", "telemetry.console=off"),
    "telemetry.plots": ("", "telemetry.plots=true"),
    "telemetry.loggers": ("", "telemetry.loggers=[csv]"),
}

ELSEWHERE = {
    **{f"wandb.{item.name}": "tests/telemetry/test_wandb.py" for item in dataclasses.fields(TrainWandbConfig)},
    "devices": "tests/ranks",
    "plugins": "tests/launch/test_plugins.py",
    "resume": "tests/launch/test_cli.py and tests/training/test_resume.py",
    "checkpoint.path": "tests/experiment/test_transfer.py",
    "checkpoint.partial": "tests/experiment/test_transfer.py",
    "policy.compile": "tests/policy",
    "observation.num_features": "tests/config/test_derived.py: follows from other fields; another number is refused",
    "observation.num_blueprints": "tests/config/test_derived.py: follows from what is registered; another is refused",
    "task.root": "tests/tasks/test_published.py, test_text.py: only some tasks have files",
    "task.url": "tests/tasks/test_published.py, test_text.py: only some tasks are downloaded",
    "task.verify": "tests/tasks/test_as_published.py: only other data than the published shows it",
    "task.context_length": "tests/tasks/test_text.py: for text only",
    "task.vocab_size": "tests/tasks/test_text.py: for text only",
    "host.name": "tests/config/test_host_choice.py: the group chooses it, and with it the other keys",
}
"""Fields that need more than another argument, or have only one value, with the tests that cover them."""


def fields(section: object, prefix: str = "") -> Iterator[str]:
    for item in dataclasses.fields(section):  # type: ignore[arg-type]
        value = getattr(section, item.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{prefix}{item.name}.")
        elif item.name == "schedule":
            for name, step in value.items():
                yield from fields(step, f"{prefix}schedule.{name}.")
        else:
            yield f"{prefix}{item.name}"


def traces(words: str, run_dir: Path, printed: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return all files and output of a run with these arguments, except the configuration itself and times."""
    train(compose(*BASE, *words.split()), run_dir)
    result = json.loads((run_dir / "result.json").read_text())
    for key in ("wall_seconds", "env_epochs_per_second", "command", "git_sha", "git_dirty"):
        del result[key]
    metrics = [without_times(record) for record in read_jsonl(run_dir / "metrics.jsonl")]
    policy = load_checkpoint(run_dir / "checkpoints" / "last.pt")["policy"]
    return {
        "files": sorted(str(path.relative_to(run_dir)) for path in run_dir.rglob("*")),
        "metrics": json.dumps(metrics),
        "events": (run_dir / "events.jsonl").read_text(),
        "result": json.dumps(result),
        "policy": [float(value.double().sum()) for value in policy.values()],
        "printed": bool(re.search(r"^iter ", printed.readouterr().out, re.MULTILINE)),
    }


def test_every_field_is_changed_here_or_tested_elsewhere() -> None:
    assert set(CHANGES) | set(ELSEWHERE) == set(fields(Config()))


_before: dict[str, dict[str, Any]] = {}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("field", CHANGES)
def test_changing_a_field_changes_what_a_run_leaves(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if field == "name":
        assert compose("name=other").name != compose().name
        return
    both, change = CHANGES[field]
    threads = torch.get_num_threads()
    try:
        if both not in _before:
            _before[both] = traces(both, tmp_path / "before", capsys)
        after = traces(f"{both} {change}", tmp_path / "after", capsys)
    finally:
        torch.set_num_threads(threads)
    assert after != _before[both], f"{change} changes nothing"
