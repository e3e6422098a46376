"""While modules develop, the host is equal to the bit to one without them."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from nets import SLOTS, STEPS, Net, Script, born, grower, loss_of, net, score_of, train_epoch
from schema_defaults import growth_rules
from torch import Tensor, nn

from esper.growth.actions import Blueprint, Style

EPOCHS = 5
NEVER_BLENDS = growth_rules(max_developing=2, max_seeds=2, min_training_epochs=99, min_cull_age=1)
SCRIPT = {0: born(0, Style.GATED_GATE, Blueprint.ATTENTION), 1: born(1, Style.LINEAR_MULTIPLY)}


def parts(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of the host."""
    return {name: value.clone() for name, value in model.state_dict().items() if ".esper." not in name}


def set_up(model: Net) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.OneCycleLR]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=EPOCHS * STEPS)


@pytest.mark.parametrize("poisoned", [False, True])
@pytest.mark.parametrize("incubation", ["auxiliary", "straight_through"])
def test_a_host_is_bit_equal_to_the_bare_loop_in_every_epoch(incubation: str, poisoned: bool) -> None:
    """Includes batch norm, dropout, momentum and a schedule, and a module with NaN."""
    bare = net()
    optimizer, scheduler = set_up(bare)
    torch.manual_seed(1)
    expected = []
    for epoch in range(EPOCHS):
        train_epoch(bare, optimizer, scheduler, epoch)
        expected.append((parts(bare), scheduler.get_last_lr(), torch.get_rng_state()))

    model = net()
    optimizer, scheduler = set_up(model)
    torch.manual_seed(1)
    growing = grower(model, optimizer, Script(SCRIPT), rules=NEVER_BLENDS, incubation=incubation, num_epochs=EPOCHS)
    for epoch in range(EPOCHS):
        if poisoned and epoch == 3:
            with torch.no_grad():
                model.stem.esper.body.scale.fill_(torch.nan)
        report = train_epoch(model, optimizer, scheduler, epoch, growing)
        found, rates, stream = expected[epoch]
        for name, value in parts(model).items():
            assert torch.equal(value, found[name]), (epoch, name)
        assert scheduler.get_last_lr() == rates
        assert torch.equal(torch.get_rng_state(), stream)
    assert [report.slots[path].stage.name for path in SLOTS] == ["TRAINING", "TRAINING"]
    learned = report.slots["body.0"].gradient_norm
    assert learned is not None
    assert 0 < learned < 100
    assert (report.slots["stem"].gradient_health == 0) == poisoned
    assert report.slots["body.0"].preview is not None


def test_a_module_that_is_not_a_number_leaves_what_clips_or_scales_gradients_alone() -> None:
    model = net()
    optimizer, _ = set_up(model)
    growing = grower(model, optimizer, Script(SCRIPT), rules=NEVER_BLENDS)
    with torch.no_grad():
        model.stem.esper.body.scale.fill_(torch.nan)
    loss = loss_of(model)
    loss().backward()
    growing.incubate(loss)
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())


def test_incubation_reaches_one_module_alone_and_scales_with_its_factor() -> None:
    gradients = []
    for scale in (1.0, 4.0):
        model = net(dropout=0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        growing = grower(model, optimizer, Script(SCRIPT), rules=NEVER_BLENDS)
        growing.incubate(loss_of(model), scale)
        grown = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        assert grown
        assert all(name.startswith("stem.esper.") for name in grown)
        gradients.append(grown)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], 4 * gradient)


def test_the_loss_is_not_called_while_nothing_develops_nor_under_straight_through() -> None:
    def never() -> Tensor:
        raise AssertionError("called")

    for incubation, script in (("auxiliary", {}), ("straight_through", SCRIPT)):
        model = net()
        optimizer, _ = set_up(model)
        grower(model, optimizer, Script(script), incubation=incubation).incubate(never)


def test_nobody_else_s_random_numbers_are_drawn_from() -> None:
    model = net()
    optimizer, _ = set_up(model)
    loss_of(model)().backward()
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    growing = grower(model, optimizer, "random", num_epochs=3)
    loss = loss_of(model)
    growing.incubate(loss)
    optimizer.step()

    def evaluate():  # type: ignore[no-untyped-def]
        np.random.rand()  # noqa: NPY002
        random.random()
        list(torch.utils.data.DataLoader(range(4), shuffle=True))
        model.eval()
        return score_of(model)

    growing.end_epoch(evaluate)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert random.getstate() == before[2]
