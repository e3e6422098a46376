"""Growing on two ranks in separate processes: ``python two_ranks.py <rank> <folder>`` leaves what it found there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from nets import QUICK, Net, Script, batch, born, faded, grower, kept, net, restyled, score_of  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import esper  # noqa: E402
from esper.grower.distributed import Replicas  # noqa: E402
from esper.growth.actions import FactoredAction, Style  # noqa: E402
from esper.growth.reports import SeedReport  # noqa: E402

EPOCHS, STEPS = 12, 2
SCRIPT = {0: born(0), 1: born(1, Style.GATED_GATE), 7: restyled(0, Style.GATED_GATE), 8: kept(1), 9: faded(0)}

Found = dict[str, Any]


def half(step: int, rank: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Share of a rank in a batch of 12."""
    x, y = batch(step, dtype=dtype)
    return x.chunk(size)[rank], y.chunk(size)[rank]


def parameters(model: Net) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def grown(
    rank: int, size: int, controller: Any, *, clip: bool = False, broken_on: int | None = None, **options: Any
) -> tuple[list[dict[str, Tensor]], dict[str, SeedReport]]:
    """Train and grow; parameters after every epoch, one more step without the Grower included.

    Args:
        rank, size: of the process.
        controller: who decides.
        clip: clip gradients before modules are incubated.
        broken_on: rank on which one loss of modules that develop is not a number.
        options: of the network.
    """
    model = net(**options)
    called = DistributedDataParallel(model) if size > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    growing = grower(model, optimizer, controller, rules=QUICK, num_epochs=EPOCHS, seed=rank)
    history = []
    torch.manual_seed(rank)
    for epoch in range(EPOCHS + 1):
        for step in range(STEPS):
            x, y = half(100 * epoch + step, rank, size, next(model.parameters()).dtype)

            def loss(inside: bool = True, x: Tensor = x, y: Tensor = y) -> Tensor:
                return F.cross_entropy(model(x) if inside else called(x), y)

            optimizer.zero_grad()
            loss(inside=False).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if epoch < EPOCHS:
                broken = (epoch, step, rank) == (1, 1, broken_on)
                growing.incubate(lambda loss=loss, broken=broken: loss() * (torch.nan if broken else 1.0))  # type: ignore[misc]
            optimizer.step()
        if epoch < EPOCHS:
            growing.end_epoch(lambda: score_of(model, 20 + 20 * rank))
        if epoch == EPOCHS - 1:
            reports = growing.reports()
            growing.finish()
        history.append(parameters(model))
    return history, reports


def script(rank: int, size: int) -> Any:
    return grown(rank, size, Script(SCRIPT), clip=True, broken_on=1)


def without_exchange(rank: int, size: int) -> Any:
    average = Replicas.average
    Replicas.average = lambda self, gradient: gradient  # type: ignore[method-assign]
    try:
        return grown(rank, size, Script(SCRIPT))
    finally:
        Replicas.average = average  # type: ignore[method-assign]


def of_two_minds(rank: int, size: int) -> Any:
    """A function that would decide something else on each rank."""

    def mine(view: esper.GrowthView) -> FactoredAction | None:
        place = ("stem", "body.0")[rank]
        free = "GERMINATE" in view.slots[place].ops
        return FactoredAction(op="GERMINATE", slot=place, blueprint="norm") if free else None

    return grown(rank, size, mine)


def as_one(rank: int, size: int) -> Any:
    """Without batch norm and dropout two halves of a batch are the batch."""
    return grown(rank, size, Script(SCRIPT), dtype=torch.float64, norm=False, dropout=0.0)[0]


def through_the_wrapper(rank: int, size: int) -> list[str]:
    messages = []
    model = net()
    wrapper = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = batch()
    growing = grower(model, optimizer, Script(SCRIPT))
    attempts: list[Callable[[], Any]] = [
        lambda: growing.incubate(lambda: F.cross_entropy(wrapper(x), y)),
        lambda: esper.Grower(
            other := net(),
            torch.optim.SGD(other.parameters(), lr=0.05),
            slots=["stem"],
            controller="never",
            num_epochs=1,
            first_loss=lambda: F.cross_entropy(DistributedDataParallel(other)(x), y),
        ),
    ]
    for attempt in attempts:
        try:
            attempt()
        except ValueError as error:
            messages.append(str(error))
    return messages


SCENARIOS: dict[str, Callable[[int, int], Any]] = {
    each.__name__: each for each in (script, without_exchange, of_two_minds, as_one, through_the_wrapper)
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    own, folder = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=own, world_size=2)
    found = {name: scenario(own, 2) for name, scenario in SCENARIOS.items()}
    torch.save(found, folder / f"{own}.pt")
    dist.destroy_process_group()
