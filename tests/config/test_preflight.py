"""Before anything starts: names against registries, slots against the host, devices against the machine."""

from __future__ import annotations

import pytest
import torch

from esper.config import compose
from esper.config.preflight import preflight
from esper.devices import resolve_device


@pytest.mark.parametrize("preset", ["digits", "digits_deep", "smoke"])
def test_presets_pass(preset: str) -> None:
    preflight(compose(f"+preset={preset}"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.name=mnist"], "task.name: unknown 'mnist'; choose from digits"),
        (["host.name=cn"], "host.name: unknown 'cn' (did you mean 'cnn'?); choose from cnn"),
        (["reward.family=pared"], "reward.family: unknown 'pared' (did you mean 'paired'?); choose from"),
        (["evaluation.controllers=[lerned]"], "evaluation.controllers: unknown 'lerned' (did you mean 'learned'?)"),
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
        (["instances.num_few_classes=11"], "instances.num_few_classes must be at most 10 (classes of the task), got"),
        (["devices=99"], "devices=99 is not there; visible: cpu"),
    ],
)
def test_what_cannot_run_is_refused_by_key_with_the_choices(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        preflight(compose(*overrides))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_auto_takes_cuda_only_where_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert resolve_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda", 0)
    assert resolve_device("1") == torch.device("cuda", 1)
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="devices=2 is not there; visible: cpu, 0, 1"):
        resolve_device("2")
