"""The finished model: an ordinary network with the same output as the growing one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from nets import QUICK, Script, born, grower, kept, loss_of, net, restyled, score_of, train_epoch
from torch import nn

import esper
from esper.blueprints.residual import Residual
from esper.growth.actions import AlphaTarget, Style
from esper.growth.blending import BlendedModule
from tests.tiers import few

RULES = replace(QUICK, min_training_epochs=1)


@pytest.mark.parametrize("style", Style)
@few(2)
def test_a_kept_module_is_an_ordinary_layer_and_others_are_gone(style: Style) -> None:
    """At alpha 0.7, so that there is something to fold."""
    model = net(dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    script = {0: born(0, style), 5: restyled(0, style, AlphaTarget.MOST), 8: kept(0), 9: born(1)}
    growing = grower(model, optimizer, Script(script), rules=RULES, num_epochs=11)
    for epoch in range(10):
        train_epoch(model, optimizer, None, epoch, growing, steps=2)
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64)
    before = model.eval()(x)
    parameters = {id(parameter) for parameter in model.stem.parameters()}
    momenta = {id(p): optimizer.state[p]["momentum_buffer"] for p in model.stem.parameters()}
    network = growing.finish()
    assert network is model
    torch.testing.assert_close(network(x), before, rtol=0, atol=1e-12)
    assert {id(parameter) for parameter in model.stem.parameters()} == parameters
    assert all(optimizer.state[p]["momentum_buffer"] is momenta[id(p)] for p in model.stem.parameters())
    assert type(model.body[0]) is nn.Sequential, "an empty place is its submodule again"
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert held == {id(each) for each in model.parameters()}
    layer = model.stem.esper
    if style in (Style.SIGMOID_ADD, Style.LINEAR_ADD):
        assert type(layer) is Residual
    else:
        assert type(layer) is BlendedModule
        assert float(layer.alpha) == (0.7 if style is Style.LINEAR_MULTIPLY else 1.0)
    sheet = growing.sheet()
    assert sheet["removed"] == ["body.0"]
    assert list(sheet["kept"]) == ["stem"]
    assert sheet["kept"]["stem"]["alpha"] == 0.7
    assert growing.finish() is model
    loss_of(model)().backward()
    optimizer.step()
    for call in (
        lambda: growing.incubate(loss_of(model)),
        lambda: growing.end_epoch(lambda: score_of(model)),
        growing.measure,
        growing.view,
        growing.reports,
        growing.state_dict,
        lambda: growing.load_state_dict({}),
    ):
        with pytest.raises(RuntimeError, match=r"finish\(\) was called: .*read sheet\(\)"):
            call()


@pytest.mark.parametrize("again", ["stem", "stem.0", "stem.esper"])
def test_a_network_that_keeps_modules_grows_again(again: str) -> None:
    """At the same place, inside of it, and behind what it keeps: names stay, and it is a network like any other."""
    model = net(dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64)

    def grow(slots: list[str]) -> torch.Tensor:
        script = Script({0: born(0), 8: kept(0)})
        growing = grower(model, optimizer, script, slots=slots, rules=RULES, num_epochs=10)
        assert torch.equal(model.eval()(x), before), "nothing is blended yet"
        for epoch in range(10):
            train_epoch(model.train(), optimizer, None, epoch, growing, steps=1)
        grown = model.eval()(x)
        assert growing.finish() is model
        torch.testing.assert_close(model(x), grown, rtol=0, atol=1e-12)
        return grown.detach()

    before = model.eval()(x)
    before = grow(["stem"])
    keys, parameters = list(model.state_dict()), dict(model.named_parameters())
    second = grow([again])
    assert not torch.equal(second, before)
    assert set(keys) < set(model.state_dict())
    assert all(dict(model.named_parameters())[name] is parameter for name, parameter in parameters.items())
    new = {key.rpartition(".body.")[0] for key in model.state_dict()} - {key.rpartition(".body.")[0] for key in keys}
    assert new == {"stem.esper2" if again == "stem" else f"{again}.esper"}
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert held == {id(each) for each in model.parameters()}
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()})
    assert torch.equal(model(x), second)


def test_hooks_on_a_place_stay() -> None:
    model = net()
    growing = grower(model, torch.optim.SGD(model.parameters(), lr=0.02), Script({0: born(0)}))
    seen: list[object] = []
    handle = model.stem.register_forward_hook(lambda *given: seen.append(given))
    assert growing.finish() is model
    loss_of(model)()
    assert len(seen) == 1
    handle.remove()
    loss_of(model)()
    assert len(seen) == 1
    assert type(model.body[0]) is nn.Sequential


def test_nothing_of_the_grower_is_left_where_nothing_was_kept() -> None:
    bare, model = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    grower(model, optimizer, Script({0: born(0)})).finish()
    assert [type(module) for module in model.modules()] == [type(module) for module in bare.modules()]
    assert not model._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks
    second = grower(model, optimizer, "never")
    assert isinstance(second, esper.Grower), "which may grow anew"


def test_scores_are_means_over_all_targets_and_leave_the_mode() -> None:
    logits = torch.randn(7, 5)
    targets = torch.randint(5, (7,))
    model = nn.Identity().train()
    score = esper.classification_score(model, [(logits[:4], targets[:4]), (logits[4:], targets[4:])])
    assert score.loss == pytest.approx(float(nn.functional.cross_entropy(logits, targets)), rel=1e-5)
    right = logits.softmax(1)[torch.arange(7), targets]
    assert score.points == pytest.approx(100 * float(right.mean()), rel=1e-5)
    assert score.accuracy == pytest.approx(float((logits.argmax(1) == targets).float().mean()))
    assert model.training
    with pytest.raises(ValueError, match="loader: it has no samples"):
        esper.classification_score(model, [])


@pytest.mark.parametrize(
    ("model", "batch", "message"),
    [
        (nn.Identity(), {"x": torch.zeros(2, 3)}, r"loader: its batches must be \(inputs, targets\), got a mapping"),
        (nn.LSTM(3, 3), (torch.zeros(2, 3), torch.zeros(2)), "model: it must return logits, got a tuple"),
        (nn.Identity(), (torch.zeros(2, 3), torch.eye(3)[:2]), r"loader: targets \[2, 3\] must be the numbers of the"),
    ],
)
def test_what_cannot_be_scored(model: nn.Module, batch: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        esper.classification_score(model, [batch])


def test_text_is_scored_by_next_tokens_that_count() -> None:
    tokens = torch.randint(6, (3, 5))
    model = nn.Embedding(6, 6)
    targets = tokens[:, 1:].clone()
    targets[0, 0] = -100
    logits = model(tokens[:, :-1]).detach()
    expected = float(nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    assert esper.language_score(model, [(tokens[:, :-1], targets)]).loss == pytest.approx(expected, rel=1e-5)
    whole = float(nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
    assert esper.language_score(model, [tokens]).loss == pytest.approx(whole, rel=1e-5)
