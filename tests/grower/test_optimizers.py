"""Parameters come and go while optimizers and schedulers run, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from nets import QUICK, Net, Script, batch, born, faded, grower, kept, net, restyled, train_epoch
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim import lr_scheduler as schedulers

import esper
from esper.controllers.base import on_slot
from esper.growth.actions import Op, Style
from tests.tiers import few

EPOCHS, STEPS = 11, 2
TOTAL = EPOCHS * STEPS
RULES = replace(QUICK, min_training_epochs=1)
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda groups: SGD(groups, lr=0.02, momentum=0.9),
    "adam": lambda groups: Adam(groups, lr=1e-3),
    "adamw": lambda groups: AdamW(groups, lr=1e-3, fused=True),
    "rmsprop": lambda groups: RMSprop(groups, lr=1e-3, momentum=0.5),
}
SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "step": lambda optimizer: schedulers.StepLR(optimizer, 7, 0.5),
    "lambda": lambda optimizer: schedulers.LambdaLR(optimizer, [lambda step: 1 / (1 + step), lambda step: 0.9**step]),
    "one_cycle": lambda optimizer: schedulers.OneCycleLR(optimizer, [0.05, 0.01], total_steps=TOTAL),
    "cosine": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, TOTAL),
    "sequential": lambda optimizer: schedulers.SequentialLR(
        optimizer,
        [schedulers.ConstantLR(optimizer, 0.5), schedulers.ExponentialLR(optimizer, 0.9)],
        milestones=[10],
    ),
    "plateau": lambda optimizer: schedulers.ReduceLROnPlateau(optimizer, patience=1),
}
SCRIPT = {
    0: born(0, Style.GATED_GATE),
    1: born(1),
    5: restyled(0, Style.LINEAR_ADD),
    6: kept(1),
    7: faded(0),
}


def middling(model: Net) -> esper.Score:
    model(batch(size=2)[0])
    return esper.Score(50.0, 1.0, 0.5)


def groups(model: Net) -> list[dict[str, Any]]:
    return [{"params": [*model.stem.parameters(), *model.body.parameters()]}, {"params": model.head.parameters()}]


@pytest.mark.parametrize("scheduler_name", SCHEDULERS)
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@few(6)
def test_rates_and_states_of_others_are_as_without_growth(optimizer_name: str, scheduler_name: str) -> None:
    bare = net()
    optimizer = OPTIMIZERS[optimizer_name](groups(bare))
    scheduler = SCHEDULERS[scheduler_name](optimizer)
    expected = []
    for epoch in range(EPOCHS):
        train_epoch(bare, optimizer, scheduler, epoch, steps=STEPS)
        expected.append([group["lr"] for group in optimizer.param_groups])

    model = net()
    optimizer = OPTIMIZERS[optimizer_name](groups(model))
    scheduler = SCHEDULERS[scheduler_name](optimizer)
    growing = grower(model, optimizer, Script(SCRIPT), rules=RULES, num_epochs=EPOCHS)
    states: dict[torch.Tensor, Any] = {}
    seen = set()
    for epoch in range(EPOCHS):
        report = train_epoch(model, optimizer, scheduler, epoch, growing, steps=STEPS, evaluate=lambda: middling(model))
        assert [group["lr"] for group in optimizer.param_groups] == expected[epoch]
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        own = list(model.parameters())
        assert len(held) == len(own) == len({id(parameter) for parameter in held})
        assert {id(parameter) for parameter in held} == {id(parameter) for parameter in own}
        assert {id(parameter) for parameter in optimizer.state} <= {id(parameter) for parameter in own}
        assert len(optimizer.param_groups[1]["params"]) == 2, "modules join the group of their place"
        for parameter in {id(each): each for each in own if each in states}.values():
            assert optimizer.state[parameter] is states[parameter]
        states = dict(optimizer.state)
        seen |= {each.stage.name for each in report.slots.values()}
    assert {"TRAINING", "BLENDING", "HOLDING", "FOSSILIZED", "CULLED"} <= seen
    assert growing.sheet()["illegal_actions"] == 0
    assert not [name for name, _ in model.named_parameters() if name.startswith("stem.esper")]
    assert [name for name, _ in model.named_parameters() if name.startswith("body.0.esper")]


def test_a_frozen_place_s_modules_join_the_group_of_what_comes_next() -> None:
    model = net()
    model.stem.requires_grad_(False)
    optimizer = SGD([{"params": model.head.parameters()}, {"params": model.body.parameters()}], lr=0.1)
    grower(model, optimizer, Script({0: born(0)}))
    modules = {id(parameter) for parameter in model.stem.esper.parameters()}
    assert modules
    assert modules <= {id(parameter) for parameter in optimizer.param_groups[1]["params"]}


def test_names_of_parameters_go_along_where_an_optimizer_keeps_them() -> None:
    model = net()
    optimizer = SGD(model.named_parameters(), lr=0.1)
    growing = grower(model, optimizer, Script({0: born(0), 3: on_slot(Op.CULL, 0)}))
    (group,) = optimizer.param_groups
    assert len(group["param_names"]) == len(group["params"]) == len(list(model.parameters()))
    for epoch in range(4):
        train_epoch(model, optimizer, None, epoch, growing)
    assert group["param_names"] == [name for name, _ in model.named_parameters()]
