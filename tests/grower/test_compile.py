"""A network that is compiled grows as one that is not, and a change of alpha compiles nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from nets import Net, Script, born, grower, kept, net, train_epoch
from torch import Tensor
from torch._dynamo.utils import counters

import esper

SCRIPT = {0: born(0), 1: born(1), 6: kept(0)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_alpha_compiles_nothing_and_a_compiled_network_grows_as_one_that_is_not() -> None:
    def run(prepare: Callable[[Net], Callable[[Tensor], Tensor]]) -> tuple[Net, list[esper.GrowthReport], list[int]]:
        model = net(dropout=0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        one = grower(model, optimizer, Script(SCRIPT))
        called, reports, compiled = prepare(model), [], []
        for epoch in range(9):
            reports.append(train_epoch(called, optimizer, None, epoch, one))  # type: ignore[arg-type]
            compiled.append(counters["stats"]["unique_graphs"])
        return model, reports, compiled

    model, reports, _ = run(lambda model: model)
    torch._dynamo.reset()
    counters.clear()
    with pytest.warns(UserWarning, match="torch.compile: modules that are blended in or removed") as told:
        other, others, compiled = run(lambda model: torch.compile(model, backend="aot_eager"))
    assert len(told) == 1
    assert others == reports
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    assert compiled[4] == compiled[-1] > compiled[0], "ramps, settling and keeping"


@pytest.fixture
def fresh() -> None:
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_measurements_and_incubation_compile_nothing(fresh: None) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    one = grower(model, optimizer, Script(SCRIPT))
    train_epoch(torch.compile(model, backend="eager"), optimizer, None, 0, one, steps=1)  # type: ignore[arg-type]
    assert counters["stats"]["unique_graphs"] == 2, "one for each place"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.compile:UserWarning")
def test_a_limit_that_growth_exceeds_is_named(fresh: None) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    one = grower(model, optimizer, Script(SCRIPT))
    compiled = torch.compile(model, backend="eager")

    def train() -> None:
        for epoch in range(4):
            train_epoch(compiled, optimizer, None, epoch, one, steps=1)  # type: ignore[arg-type]

    message = r"torch.compile: growth needs more .* than torch._dynamo.config.recompile_limit=1 allows"
    with torch._dynamo.config.patch(recompile_limit=1), pytest.raises(RuntimeError, match=message):
        train()
