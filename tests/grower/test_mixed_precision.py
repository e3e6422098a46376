"""Mixed precision, loss scaling, accumulation and clipping in a user's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from nets import Net, Script, batch, born, grower, kept, loss_of, net, score_of
from schema_defaults import growth_rules
from torch import Tensor
from torch.nn import functional as F

import esper
from esper.growth.actions import Style
from tests.tiers import few

NEVER_BLENDS = growth_rules(max_developing=2, max_seeds=2, min_training_epochs=99, min_cull_age=1)
DEVELOPING = {0: born(0), 1: born(1, Style.GATED_GATE)}
GROWING = {0: born(0), 1: born(1, Style.GATED_GATE), 8: kept(0)}


def bf16() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def cast(loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A loss whose pass through the model is in bf16."""

    def inside() -> Tensor:
        with bf16():
            return loss()

    return inside


def steps(model: Net, epoch: int) -> Iterator[Callable[[], Tensor]]:
    return (loss_of(model, 100 * epoch + step) for step in range(3))


def host(model: Net) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if ".esper." not in name}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("whole_step", [False, True], ids=["the pass", "the whole step"])
def test_a_host_in_bf16_is_bit_equal_to_the_bare_loop(whole_step: bool) -> None:
    """Also where one autocast holds passes with and without a graph, whose casts it remembers."""
    hosts, learned = [], []
    for grows in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        growing = grower(model, optimizer, Script(DEVELOPING), rules=NEVER_BLENDS) if grows else None
        torch.manual_seed(1)
        for epoch in range(3):
            for loss in steps(model, epoch):
                with bf16() if whole_step else nullcontext():
                    optimizer.zero_grad()
                    cast(loss)().backward()
                    if growing is not None:
                        growing.incubate(cast(loss))
                        learned = [p.grad for p in model.stem.esper.parameters() if p.grad is not None]
                optimizer.step()
            if growing is not None:
                growing.end_epoch(lambda: score_of(model))  # noqa: B023
        hosts.append(host(model))
    assert same(*hosts)
    assert learned
    assert max(float(gradient.norm()) for gradient in learned) > 0


def test_a_network_in_bf16_grows_through_all_stages() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    growing = grower(model, optimizer, Script(GROWING), num_epochs=10)
    for epoch in range(10):
        for loss in steps(model, epoch):
            optimizer.zero_grad()
            cast(loss)().backward()
            growing.incubate(cast(loss))
            optimizer.step()
        with bf16():
            report = growing.end_epoch(lambda: score_of(model))
    assert report.slots["stem"].stage.name == "FOSSILIZED"
    assert report.slots["stem"].probes
    assert growing.sheet()["illegal_actions"] == 0
    with bf16():
        assert growing.finish()(batch()[0]).dtype == torch.bfloat16


def test_gradients_of_parts_of_a_batch_add_up_to_those_of_the_batch() -> None:
    found = []
    for parts in (1, 3):
        model = net(dtype=torch.float64, norm=False, dropout=0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        growing = grower(model, optimizer, Script(DEVELOPING), rules=NEVER_BLENDS)
        for step in range(2):
            x, y = batch(step, dtype=torch.float64)
            optimizer.zero_grad()
            for inputs, targets in zip(x.chunk(parts), y.chunk(parts), strict=True):

                def loss(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                    return F.cross_entropy(model(inputs), targets)  # noqa: B023

                (loss() / parts).backward()
                growing.incubate(loss, 1 / parts)
            optimizer.step()
        report = growing.end_epoch(lambda: score_of(model))  # noqa: B023
        norms = torch.tensor([report.slots["stem"].gradient_norm], dtype=torch.float64)
        found.append({**model.state_dict(), "norm of the epoch": norms})
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clipped", [False, True])
@few(2)
def test_a_loss_scaler_changes_nothing(fused: bool, clipped: bool) -> None:
    """A power of two scales without rounding: the same weights, norms and health, clipped or not."""
    found = []
    for scaled in (False, True):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        growing = grower(model, optimizer, Script(DEVELOPING), rules=NEVER_BLENDS)
        torch.manual_seed(1)
        for epoch in range(2):
            for loss in steps(model, epoch):
                optimizer.zero_grad()
                scaler.scale(loss()).backward()
                if clipped:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                growing.incubate(loss, 1.0 if clipped else scaler.get_scale())
                scaler.step(optimizer)
                scaler.update()
            report = growing.end_epoch(lambda: score_of(model))  # noqa: B023
        found.append((host(model), model.stem.esper.state_dict(), report.slots))
    for one, other in zip(found[0][:2], found[1][:2], strict=True):
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-7, msg=name)
    for path, slot in found[0][2].items():
        assert found[1][2][path].gradient_norm == pytest.approx(slot.gradient_norm, rel=1e-5)
        assert found[1][2][path].gradient_health == slot.gradient_health


def test_an_overflow_under_a_loss_scale_is_not_the_module_s_fault() -> None:
    for scale, expected in ((1.0, 0.0), (4.0, 1.0)):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        growing = grower(model, optimizer, Script(DEVELOPING), rules=NEVER_BLENDS)
        for number, loss in enumerate(steps(model, 0)):
            optimizer.zero_grad()
            loss().backward()
            overflow = torch.inf if number == 0 else 1.0
            growing.incubate(lambda loss=loss, overflow=overflow: overflow * loss(), scale)  # type: ignore[misc]
            assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
            optimizer.step()
        report = growing.end_epoch(lambda: score_of(model))  # noqa: B023
        assert report.slots["stem"].gradient_health == expected


def test_clipping_before_incubation_does_not_see_what_develops() -> None:
    """The documented order: the host is clipped as if nothing grew."""
    clip: Callable[[Net], Any] = lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # noqa: E731
    hosts = []
    for order in ("bare", "clip first", "clip last"):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        growing: esper.Grower | None = None
        if order != "bare":
            growing = grower(model, optimizer, Script(DEVELOPING), rules=NEVER_BLENDS)
        torch.manual_seed(1)
        for loss in steps(model, 0):
            optimizer.zero_grad()
            loss().backward()
            if order != "clip last":
                clip(model)
            if growing is not None:
                growing.incubate(loss)
            if order == "clip last":
                clip(model)
            optimizer.step()
        hosts.append(host(model))
    assert same(hosts[0], hosts[1])
    assert not same(hosts[0], hosts[2])
