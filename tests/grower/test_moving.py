"""A network that moves, changes its type or is sharded while it grows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from nets import Net, Script, batch, born, grower, kept, loss_of, net, score_of
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

import esper


def running() -> tuple[Net, torch.optim.Optimizer, esper.Grower]:
    model = net(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, grower(model, optimizer, Script({0: born(0), 4: born(1), 7: kept(0)}))


def epoch(
    model: Net, optimizer: torch.optim.Optimizer, growing: esper.Grower, to: torch.device | torch.dtype | None = None
) -> None:
    """Train an epoch of one step, at the end of which the network may move."""

    def on_its_own(number: int, size: int) -> tuple[Tensor, Tensor]:
        like, (x, y) = next(model.parameters()), batch(number, size)
        return x.to(like), y.to(like.device)

    def loss() -> Tensor:
        x, y = on_its_own(0, 12)
        return F.cross_entropy(model(x), y)

    optimizer.zero_grad()
    loss().backward()
    growing.incubate(loss)
    optimizer.step()
    if to is not None:
        model.to(to)
    growing.end_epoch(lambda: esper.classification_score(model, [on_its_own(10_000, 60)]))


def moved(to: torch.device | torch.dtype, number: int) -> Net:
    """Return a grown network that moved in an epoch."""
    model, optimizer, growing = running()
    for each in range(9):
        epoch(model, optimizer, growing, to if each == number else None)
    slots = growing.view().slots
    assert slots["stem"].stage.name == "FOSSILIZED"
    assert slots["body.0"].blueprint is not None
    return model


@pytest.mark.parametrize("number", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_a_network_that_changes_its_type_goes_on_growing(number: int) -> None:
    """Before its module is blended in, and after; a new module has the new type."""
    state = moved(torch.float64, number).state_dict()
    assert {value.dtype for value in state.values() if value.is_floating_point()} == {torch.float64}


@pytest.mark.gpu
@pytest.mark.parametrize("number", [2, 5])
def test_a_network_that_moves_to_a_device_goes_on_growing(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.default_generators:  # a pretend device has none, so nothing to restore
        monkeypatch.setattr("esper.grower.untouched._gpus", lambda model: set())
    assert {value.device.type for value in moved(torch.device("cuda"), number).state_dict().values()} == {"cuda"}


@pytest.mark.filterwarnings("ignore:.*NO_SHARD")
@pytest.mark.parametrize("way", ["fully_shard", "FullyShardedDataParallel"])
def test_a_network_that_is_sharded_while_it_grows_is_refused(way: str, tmp_path: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    model, optimizer, growing = running()
    epoch(model, optimizer, growing)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        if way == "fully_shard":
            fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        else:
            FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        message = "the model's parameter 'stem.0.weight' was replaced .* cannot be sharded"
        with pytest.raises(ValueError, match=f"incubate: {message}"):
            growing.incubate(loss_of(model))
        with pytest.raises(ValueError, match=f"end_epoch: {message}"):
            growing.end_epoch(lambda: score_of(model))
    finally:
        dist.destroy_process_group()


def test_a_parameter_that_is_replaced_is_refused_and_one_that_has_another_name_is_not() -> None:
    model, optimizer, growing = running()
    register_parametrization(model.head, "weight", nn.Identity())
    epoch(model, optimizer, growing)
    model.head.bias = nn.Parameter(torch.zeros(5))
    with pytest.raises(ValueError, match=r"incubate: the model's parameter 'head\.bias' was replaced after"):
        growing.incubate(loss_of(model))
