"""Before anything starts: names against registries, slots against the host, devices against the machine."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from processes import run

import esper.runtime.precision
from esper.config import Config, UsageError, compose
from esper.config.errors import explain
from esper.experiment.build import build_experiment, compile_lines, instance_pool
from esper.experiment.preflight import preflight
from esper.runtime.devices import resolve_devices
from esper.runtime.options import Amp
from esper.runtime.placement import CHOICES
from esper.runtime.precision import check_amp, supported
from esper.tasks import TASKS, Split, TaskData, TaskOptions, load_task
from tests.tiers import few


def tiny_task(options: TaskOptions, *, num_classes: int) -> TaskData:
    """Make a task with the requested number of classes, and two images of each in each split."""
    targets = torch.arange(2 * num_classes) % num_classes
    images = torch.rand(len(targets), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    split = Split(images, targets)
    return TaskData(name="tiny", version=1, train=split, val=split, test=split, num_classes=num_classes)


@pytest.mark.parametrize("num_classes", [2, 3, 4, 5])
def test_tasks_of_few_classes_pass_and_keep_all_but_one_in_the_family_of_few(
    num_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS._entries, "tiny", partial(tiny_task, num_classes=num_classes))
    monkeypatch.setattr("esper.tasks._loaded", {})
    config = compose("task.name=tiny", "+instances.families={few_classes: 1}")
    preflight(config)
    pool = instance_pool(config, load_task("tiny"), "train")
    assert {len(instance.classes or ()) for instance in pool} == {max(2, num_classes - 1)}
    preflight(
        compose("task.name=tiny", "+instances.families={intact: 1, few_classes: 0}", "instances.num_few_classes=9")
    )
    with pytest.raises(ValueError, match=rf"must be at most {num_classes} \(classes of the task; .*, got 9"):
        preflight(compose("task.name=tiny", "instances.num_few_classes=9"))


def test_a_task_of_one_class_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS._entries, "tiny", partial(tiny_task, num_classes=1))
    with pytest.raises(ValueError, match=r"^task.name=tiny: .*num_classes=1: .*; a task needs at least 2 classes"):
        preflight(compose("task.name=tiny"))


def test_data_that_no_host_gets_a_finite_number_from_is_refused_with_the_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All pixels are finite, but those of one sample so large that the first layer overflows."""
    whole = tiny_task(TaskOptions(), num_classes=3)
    images = whole.train.inputs.clone()
    images[4] = 3e38
    broken = replace(whole, train=Split(images, whole.train.targets))
    monkeypatch.setitem(TASKS._entries, "tiny", lambda options: broken)
    monkeypatch.setattr("esper.tasks._loaded", {})
    with pytest.raises(ValueError, match=r"on training sample 4 of task tiny: .* output numbers are not finite"):
        preflight(compose("task.name=tiny"))


def test_a_price_of_flops_needs_a_host_that_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("+preset=smoke", "reward.compute_weight=5")
    preflight(compose(*words))
    monkeypatch.setattr("esper.population.flops.count_operations", lambda run: 0)
    with pytest.raises(ValueError, match=r"^reward.compute_weight=5 charges FLOPs .*, and host=cnn has neither"):
        preflight(compose(*words))
    preflight(compose("+preset=smoke"))


@pytest.mark.parametrize(
    "preset", ["digits", "digits_arrival", "digits_deep", "digits_hidden", "digits_natural", "smoke"]
)
def test_presets_pass(preset: str) -> None:
    preflight(compose(f"+preset={preset}"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["task.name=digit"],
            "task.name: unknown 'digit' (did you mean 'digits'?); choose from digits, fashion_mnist,",
        ),
        (
            ["+instances.block_faults={starved:0.0}"],
            "makes too few different hosts: none is in the split",
        ),
        (["task.num_val=1400"], "task.num_val must be from 1 to 1399, of 1400 images of digits; got 1400"),
        (["task.crop=8"], "task.crop must be at most 7 (images of digits have a side of 8), got 8"),
        (["task.cutout=9"], "task.cutout must be at most 8 (images of digits have a side of 8), got 9"),
        (["task.context_length=8"], "task.context_length=8 is for text; digits has images"),
        (
            ["task=synthetic_text", "host=transformer", "task.flip=true"],
            "task.flip=true is for images; synthetic_text has text",
        ),
        (
            ["task=synthetic_text"],
            "host=cnn reads images, but task synthetic_text has tokens: choose host=",
        ),
        (["task=tinystories", "task.root=/dev/null"], "task tinystories: cannot write to /dev/null/tinystories (Not a"),
        (["host.name=cn"], "host.name: unknown 'cn' (did you mean 'cnn'?); choose from cnn"),
        (["algorithm=pppo"], "algorithm: unknown 'pppo' (did you mean 'ppo'?); choose from ppo, a2c"),
        (["reward.family=pared"], "reward.family: unknown 'pared' (did you mean 'paired'?); choose from"),
        (
            ["evaluation.controllers=[learned,schedule_best]"],
            "'schedule_best' needs parameters tuned on training instances, so it belongs to python -m esper.evaluate",
        ),
        (
            ["evaluation.controllers=[static_final]"],
            "needs the networks that a trained controller ended with, so it belongs to python -m esper.evaluate",
        ),
        (["evaluation.controllers=[lerned]"], "evaluation.controllers: unknown 'lerned' (did you mean 'learned'?)"),
        (
            ["imitation.controller=schedul"],
            "imitation.controller: unknown 'schedul' (did you mean 'schedule'?); choose from learned, heuristic,",
        ),
        (
            ["imitation.controller=learned"],
            "imitation.controller: 'learned' needs a policy, which is what learns; choose from heuristic, schedule,",
        ),
        (
            ["imitation.controller=schedule_best"],
            "imitation.controller: 'schedule_best' needs parameters tuned on training instances; choose from heuristic",
        ),
        (["slots.num_slots=9"], "slots.num_slots=9 asks for more places than there are; the host has 3: r0c0, r0c1"),
        (["slots.ids=[r0c0,r0c1,r0c7]"], "slots.ids: no such place for a slot: r0c7; the host has 3: r0c0, r0c1, r0c2"),
        (
            ["evaluation.schedule.first.blueprint=x"],
            "evaluation.schedule.first.blueprint: unknown 'x'; choose from conv_light, attention",
        ),
        (["slots.blueprints=[lora]"], "slots.blueprints: 'lora' does not fit this cnn host; choose from conv_light"),
        (
            ["slots.blueprints=[conv_lite]"],
            "slots.blueprints: unknown 'conv_lite' (did you mean 'conv_light'?); choose from conv_light, attention",
        ),
        (["evaluation.schedule.first.blueprint=mlp"], "evaluation.schedule.first.blueprint: 'mlp' does not fit"),
        (
            ["observation.slot_probes=[effective_rank,dead]"],
            "observation.slot_probes: unknown 'dead'; choose from dead_channels, effective_rank, log_gradient_norm,",
        ),
        (
            ["instances.num_few_classes=11"],
            "must be at most 10 (classes of the task; instances.families.few_classes=0 leaves such hosts out), got 11",
        ),
        (
            ["task.max_samples=1", "instances.num_few_classes=9"],
            "instances.num_few_classes=9: val of task digits has no sample of classes ",
        ),
        (["devices=99"], "devices=99: 99 is not there; visible: cpu"),
    ],
)
@few(12)
def test_what_cannot_run_is_refused_by_key_with_the_choices(overrides: list[str], message: str) -> None:
    with pytest.raises((ValueError, UsageError)) as caught:
        preflight(compose(*overrides))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_a_precision_that_the_device_has_not_is_refused_with_what_works(
    amp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(device: torch.device, dtype: torch.dtype) -> None:
        if dtype is Amp(amp).dtype:
            raise RuntimeError("could not create a primitive descriptor\nfor something")

    monkeypatch.setattr(esper.runtime.precision, "_train_something", fail)
    supported.cache_clear()
    with pytest.raises(ValueError) as caught:
        preflight(compose("+preset=smoke", f"amp={amp}"))
    other = {"bf16": "fp16", "fp16": "bf16"}[amp]
    assert str(caught.value) == f"amp={amp} does not work on this device (cpu); use amp=off or amp={other}"
    supported.cache_clear()


def test_a_gpu_without_bf16_is_refused_by_its_name_although_it_could_emulate_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(esper.runtime.precision, "_train_something", lambda device, dtype: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    supported.cache_clear()
    with pytest.raises(ValueError, match=r"amp=bf16 does not work on this device \(Old GPU\); use amp=off or amp=fp16"):
        check_amp(Amp.bf16, torch.device("cuda", 0))
    supported.cache_clear()


def test_asking_for_a_precision_draws_from_no_global_generator() -> None:
    supported.cache_clear()
    before = torch.random.get_rng_state()
    check_amp(Amp.bf16, torch.device("cpu"))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_unknown_precision_names_the_choices() -> None:
    with pytest.raises(Exception, match="amp") as caught:
        compose("amp=fp8")
    assert explain(caught.value, Config) == "amp: unknown 'fp8'; choose from off, bf16, fp16"


def test_auto_is_every_gpu_or_else_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpus = torch.device("cpu"), [torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert resolve_devices("auto") == [cpu]
    assert resolve_devices("auto", num_local=3) == [cpu] * 3, "a launcher's ranks share the CPU"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_devices("auto") == gpus
    assert resolve_devices(["1", "cuda:0"]) == gpus[::-1]
    assert resolve_devices(1) == gpus[1:]
    assert resolve_devices(["cpu", "cpu"]) == [cpu, cpu]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_devices("auto", num_local=2) == gpus[:1] * 2, "a launcher that shows each rank a GPU of its own"


def test_a_device_that_is_not_there_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(ValueError) as caught:
        resolve_devices([0, 4])
    assert str(caught.value) == "devices=[0,4]: 4 is not there; visible: cpu, 0, 1 (CUDA_VISIBLE_DEVICES is '4,5')"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES is not set"):
        resolve_devices(7)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"visible: cpu \(.*\); devices=cpu runs without one$"):
        resolve_devices([0, 1])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"devices=\[0,1\] gives 2 devices to the 3 ranks that were started"):
        resolve_devices([0, 1], num_local=3)


REFUSED_DEVICES = """
import sys
from hydra.core.global_hydra import GlobalHydra
from esper import evaluate, train

for module, *words in (
    (train, "+preset=smoke", "devices=[0,1]"),
    (train, "+preset=smoke", "devices=mps"),
    (train, "-m", "+preset=smoke", "devices=0", "seed=0,1"),
    (evaluate, "checkpoint=nowhere", "devices=[0,1]"),
    (evaluate, "checkpoint=nowhere", "devices=mps"),
):
    sys.argv = ["esper", *words]
    try:
        module.main()
    except SystemExit as ended:
        print(ended.code, file=sys.stderr)
heavy = ("esper.policy", "esper.population", "torch._dynamo")
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.slow
def test_devices_that_are_not_there_are_refused_at_once(tmp_path: Path) -> None:
    """Every command refuses each in one line, before the imports that only a run needs."""
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = run([sys.executable, "-c", REFUSED_DEVICES], check=True, cwd=tmp_path, env=hidden)
    absent = "0 is not there; visible: cpu (CUDA_VISIBLE_DEVICES is ''); devices=cpu runs without one"
    unknown = f"error: devices must be {CHOICES}; got mps"
    said = [
        f"error: devices=[0,1]: {absent}",
        unknown,
        f"error: devices=0: {absent}",
        f"error: devices=[0,1]: {absent}",
    ]
    assert done.stderr.splitlines() == [line for message in [*said, unknown] for line in (message, "2")]
    assert done.stdout.splitlines()[-1] == "[]", "heavy imports"
    assert list(tmp_path.iterdir()) == []


def test_an_experiments_device_repeats_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    build_experiment(compose("+preset=smoke", "env.mapping=loop"))
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark


def test_compiling_on_a_cpu_is_told_before_it_begins() -> None:
    """Compiling there takes a minute or more without a speed-up; on a GPU it may pay off."""
    cpu, config = torch.device("cpu"), compose("+preset=smoke", "policy.compile=true", "env.mapping=matmul_compiled")
    policy, mapping = compile_lines(config, cpu)
    assert policy.startswith("policy.compile=true on a CPU: compiling takes a minute or more")
    assert policy.endswith("policy.compile=false starts at once")
    assert mapping.startswith("env.mapping=matmul_compiled on a CPU: compiling takes")
    assert mapping.endswith("env.mapping=matmul starts at once")
    assert compile_lines(config, cpu, learns=False) == [mapping], "a policy that does not learn is not compiled"
    assert compile_lines(config, torch.device("cuda", 0)) == []
    assert compile_lines(compose("+preset=smoke"), cpu) == []
