"""A place behaves like the submodule it contains in every respect."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from nets import SLOTS, Net, Script, born, grower, kept, loss_of, net, train_epoch
from torch import Tensor, nn

import esper
from esper.blueprints import BLUEPRINTS
from esper.grower.place import Place
from esper.growth.actions import Blueprint

Pair = namedtuple("Pair", ["feature", "weights"])


def grown(**options: Any) -> tuple[Net, Net, esper.Grower]:
    """A network, and the same with places, one of which has a module."""
    bare, model = net(**options), net(**options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return bare, model, grower(model, optimizer, Script({0: born(0)}))


def test_names_keys_attributes_iteration_and_length_are_as_before() -> None:
    bare, model, _ = grown()
    own = [name for name, _ in model.named_parameters() if ".esper." not in name]
    assert own == [name for name, _ in bare.named_parameters()]
    keys = [key for key in model.state_dict() if ".esper." not in key]
    assert keys == list(bare.state_dict())
    assert {key.split(".esper.")[0] for key in model.state_dict() if ".esper." in key} == {"stem"}
    assert [name for name, _ in model.named_modules() if "esper" not in name] == [n for n, _ in bare.named_modules()]
    stem = model.stem
    assert isinstance(stem, Place)
    assert len(stem) == len(bare.stem) == 3
    assert [type(each) for each in stem] == [type(each) for each in bare.stem]
    assert stem[0].stride == (2, 2)
    assert isinstance(stem[1], nn.BatchNorm2d)
    assert stem[0] is model.get_submodule("stem.0")
    assert stem
    assert model.stem.pop
    assert model.get_parameter("body.0.0.weight") is model.body[0][0].weight
    with pytest.raises(AttributeError, match="nowhere"):
        _ = stem.nowhere


def test_modes_devices_types_and_loading_reach_the_submodule_and_its_module() -> None:
    _, model, _ = grown()
    model.eval()
    assert not model.stem.training
    assert not model.stem.inner.training
    assert not model.stem.esper.training
    assert not model.stem[1].training
    model.double().train()
    assert model.stem[0].weight.dtype == model.stem.esper.body.scale.dtype == torch.float64
    state = {key: value + 1 for key, value in model.state_dict().items()}
    model.load_state_dict(state)
    assert torch.equal(model.stem.inner[0].weight, state["stem.0.weight"])
    assert torch.equal(model.stem.esper.body.scale, state["stem.esper.body.scale"])
    with pytest.raises(RuntimeError, match=r"body\.0\.esper"):
        model.load_state_dict({**state, "body.0.esper.body.scale": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"stem\.esper\.body\.scale"):
        model.load_state_dict({key: value for key, value in state.items() if key != "stem.esper.body.scale"})


def test_what_is_set_on_it_is_set_on_the_submodule() -> None:
    _, model, _ = grown()
    model.stem.note = "mine"
    model.stem.add_module("extra", nn.Identity())
    model.stem[0].weight = nn.Parameter(torch.zeros(6, 1, 3, 3))
    model.stem.other = nn.Identity()
    inner = model.stem.inner
    assert inner.note == "mine"
    assert inner.extra is model.stem.extra
    assert list(dict(model.stem.named_children())) == ["0", "1", "2", "extra", "other", "esper"]
    del model.stem.other
    assert list(dict(model.stem.named_children())) == ["0", "1", "2", "extra", "esper"]
    assert list(dict(inner.named_children())) == ["0", "1", "2", "extra"]
    model.stem[2] = nn.GELU()
    assert inner[2] is model.stem[2] is dict(model.named_modules())["stem.2"]
    del model.stem[3]
    assert list(dict(model.stem.named_children())) == ["0", "1", "2", "esper"]


def test_methods_of_the_submodule_may_change_its_children() -> None:
    _, model, _ = grown()
    stem = model.stem
    assert stem.append(nn.Identity()) is stem
    stem.insert(0, nn.Identity())
    names = ["0", "1", "2", "3", "4"]
    assert list(dict(stem.named_children())) == [*names, "esper"]
    assert list(dict(stem.inner.named_children())) == names
    assert stem.pop(0) is not None
    assert next(iter(stem.named_parameters()))[0] == "0.weight"
    for child in stem.children():
        assert stem.extra_repr() == "", "what changes nothing can be called while children are listed"
        assert isinstance(child, nn.Module)


@pytest.mark.parametrize("kind", ["tuple", "named"])
def test_a_tuple_grows_its_first_element(kind: str) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Any:
            h = self.linear(x)
            return (h, x) if kind == "tuple" else Pair(h, x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = Attention(), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h, weights = self.block(x)
            out: Tensor = self.head(h) + weights.sum()
            return out

    model = Model()
    x = torch.randn(4, 5, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    esper.Grower(
        model,
        optimizer,
        slots=["block"],
        controller=Script({0: born(0, blueprint=Blueprint.MLP)}),
        num_epochs=3,
        first_loss=lambda: model(x).square().mean(),
    )
    result = model.block(x)
    assert type(result) is (tuple if kind == "tuple" else Pair)
    assert torch.equal(result[1], x)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def test_probes_are_of_the_feature_before_it_is_changed_in_place() -> None:
    found = []
    for inplace in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(inplace), nn.Flatten(), nn.Linear(216, 5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        growing = grower(model, optimizer, "never", slots=["0"])
        probes = [growing.view().slots["0"].probes]
        reports = [train_epoch(model, optimizer, None, epoch, growing) for epoch in range(2)]
        found.append([*probes, *(report.slots["0"].probes for report in reports)])
    assert found[0][0] == found[1][0]
    assert found[0][2] == found[1][2], "from the second epoch on"
    assert found[0][0]["dead_channels"] == 0


@pytest.mark.parametrize(("feature", "family"), [((4, 6), "mlp"), ((4, 7, 6), "transformer"), ((4, 6, 5, 5), "cnn")])
def test_vectors_sequences_and_maps_get_blueprints_of_their_own(feature: tuple[int, ...], family: str) -> None:
    model = nn.Sequential(Scaled(), nn.Flatten(), nn.LazyLinear(3))
    x = torch.randn(feature)
    model(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    growing = esper.Grower(
        model,
        optimizer,
        slots=["0"],
        controller="heuristic",
        num_epochs=3,
        first_loss=lambda: model(x).square().mean(),
    )
    view = growing.view().slots["0"]
    four_heads = {"attention", "flex_attention"} if family == "transformer" else set()
    assert set(view.blueprints) == set(BLUEPRINTS[family]) - four_heads, "which do not divide six channels"
    assert set(view.probes) == {"dead_channels", "effective_rank", "log_gradient_norm", "log_first_order_gain"}


def test_slots_are_named_by_path_in_every_record() -> None:
    _, _, growing = grown()
    assert tuple(growing.view().slots) == tuple(growing.reports()) == SLOTS
    assert growing.view().last_action == esper.FactoredAction(
        op="GERMINATE", slot="stem", blueprint="conv_light", style="LINEAR_ADD", tempo="FAST", alpha_target=1.0
    )


@pytest.mark.parametrize("incubation", ["auxiliary", "straight_through"])
def test_a_module_that_begins_with_a_norm_trains_on_a_detached_channels_last_feature(incubation: str) -> None:
    """In that layout the kernel of torch ends the process."""
    model = net(norm=False).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    growing = grower(model, optimizer, Script({0: born(0, blueprint=Blueprint.NORM)}), incubation=incubation)
    x = torch.randn(4, 1, 8, 8).contiguous(memory_format=torch.channels_last)
    model(x).square().sum().backward()
    growing.incubate(lambda: model(x).square().sum())
    assert float(model.stem.esper.body.scale.grad.norm()) > 0


def test_a_submodule_with_several_names_grows_under_all_of_them() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
            self.stack = nn.Sequential(*self.blocks)

        def forward(self, x: Tensor) -> Tensor:
            return self.stack(x)  # type: ignore[no-any-return]

    for path in ("blocks.0", "stack.0"):
        model, x = Named(), torch.randn(4, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        growing = esper.Grower(
            model,
            optimizer,
            slots=[path],
            controller=Script({0: born(0, blueprint=Blueprint.MLP)}),
            num_epochs=2,
            first_loss=lambda model=model, x=x: model(x).square().mean(),  # type: ignore[misc]
        )
        growing.incubate(lambda model=model, x=x: model(x).square().mean())  # type: ignore[misc]
        module = model.blocks[0].esper
        assert model.stack[0].esper is module
        assert all(parameter.grad is not None for parameter in module.parameters())
        growing.finish()
        assert type(model.blocks[0]) is type(model.stack[0]) is nn.Linear


def test_nothing_is_blended_at_alpha_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net(norm=False, dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    growing = grower(model, optimizer, Script({0: born(0), 8: kept(0)}))
    for epoch in range(10):
        train_epoch(model, optimizer, None, epoch, growing)
    assert growing.view().slots["stem"].alpha == 1.0
    expected = loss_of(model)()

    def refuse(*given: object) -> None:
        raise AssertionError("blended")

    monkeypatch.setattr(torch, "lerp", refuse)
    assert torch.equal(loss_of(model)(), expected)
    assert growing.finish() is model
    torch.testing.assert_close(loss_of(model)(), expected)
