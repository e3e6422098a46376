"""Users' blueprints are checked by running them; blueprints that cannot be measured or trained are refused before the
run.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import undone
from torch import Tensor, nn

from esper.blueprints import BLUEPRINTS, blueprint_ids, compatible, register_blueprint
from esper.blueprints.contract import check_blueprint, check_blueprints, users_blueprints
from esper.blueprints.residual import Residual, layers_residual
from esper.config import compose
from esper.experiment.build import build_experiment
from esper.experiment.preflight import preflight
from esper.growth.layouts import Layout
from esper.runtime.rng import GlobalStreams

SMOKE = ("+preset=smoke", "env.mapping=loop")


class Does(nn.Module):
    """A layer with a given effect."""

    def __init__(self, does: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.does = does

    def forward(self, x: Tensor) -> Tensor:
        return self.does(x)


def around(*bodies: nn.Module | Callable[[Tensor], Tensor], layout: Layout = Layout.MAP) -> Callable[[int], nn.Module]:
    """Build a residual around a convolution and further layers, which its zero scale hides at birth."""

    def build(channels: int) -> nn.Module:
        layers = [body if isinstance(body, nn.Module) else Does(body) for body in bodies]
        first = nn.Conv2d(channels, channels, 1) if layout is Layout.MAP else nn.Linear(channels, channels)
        return Residual(channels, nn.Sequential(first, *layers), layout)

    return build


class Scaled(nn.Module):
    """x + scale * f(x) in failing variants."""

    def __init__(self, channels: int, form: Callable[[Tensor, Tensor], Tensor], birth: float = 0.0) -> None:
        super().__init__()
        self.scale, self.form, self.birth = nn.Parameter(torch.zeros(channels, 1, 1)), form, birth

    def initialise(self, generator: torch.Generator) -> None:
        self.scale.data.fill_(self.birth)

    def forward(self, x: Tensor) -> Tensor:
        return self.form(x, self.scale)


def scaled(form: Callable[[Tensor, Tensor], Tensor], birth: float = 0.0) -> Callable[[int], nn.Module]:
    return lambda channels: Scaled(channels, form, birth)


class Forgets(Scaled):
    """Leaves a parameter as the builder drew it."""

    def __init__(self, channels: int, as_buffer: bool) -> None:
        super().__init__(channels, lambda x, scale: x + scale * self.table * x)
        table = torch.randn(channels, 1, 1)
        if as_buffer:
            self.register_buffer("table", table)
        else:
            self.table = nn.Parameter(table)


class Counts(Scaled):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, lambda x, scale: x + scale * self.count())
        self.register_buffer("passes", torch.ones(()))

    def count(self) -> Tensor:
        self.passes += 1
        return self.passes


def raises(channels: int) -> nn.Module:
    raise KeyError("wide")


def frozen(build: Callable[[int], nn.Module]) -> Callable[[int], nn.Module]:
    return lambda channels: build(channels).requires_grad_(False)


BAD: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "not the identity": (
        lambda channels: nn.Conv2d(channels, channels, 1),
        r"under ADD: at birth it changes its input by up to \d[\d.]*: let it add something times a scale that starts "
        r"at zero \(esper.blueprints.residual.Residual\)",
    ),
    "nearly the identity": (
        scaled(lambda x, scale: x + scale * x, birth=1e-3),
        "at birth it changes its input by up to",
    ),
    "negated": (scaled(lambda x, scale: scale - x), "at birth it changes its input"),
    "gradient that is not finite": (
        scaled(lambda x, scale: x + scale.abs().sqrt() * x),
        "under ADD: the gradient of parameter 'scale' at birth is not finite, so it never learns",
    ),
    "dead at birth": (
        scaled(lambda x, scale: x + (scale * x) ** 2),
        "under ADD: the gradient of all 8 trained parameters at birth is 0, so it never learns",
    ),
    "without a gradient": (
        scaled(lambda x, scale: x + scale.detach() * x),
        "under ADD: its backward pass fails: RuntimeError: element 0 of tensors does not require grad",
    ),
    "all frozen": (frozen(around(torch.relu)), "no parameter is trained .requires_grad., so it never learns"),
    "smaller": (
        lambda channels: nn.AvgPool2d(2),
        r"on \[2, 8, 4, 4\] it must return \[2, 8, 4, 4\], got \[2, 8, 2, 2\]",
    ),
    "wider": (
        lambda channels: nn.ZeroPad2d(1),
        r"on \[2, 8, 4, 4\] it must return \[2, 8, 4, 4\], got \[2, 8, 6, 6\]",
    ),
    "smaller in other sizes": (
        scaled(lambda x, scale: (x + scale * x)[..., :4, :4]),
        r"on \[3, 8, 5, 5\] it must return \[3, 8, 5, 5\], got \[3, 8, 4, 4\]",
    ),
    "one size only": (
        scaled(lambda x, scale: x + scale * torch.ones(4, 4)),
        r"it does not run on \[3, 8, 5, 5\]: RuntimeError: .* \(test_blueprint_contract.py:\d+\)$",
    ),
    "a tuple": (scaled(lambda x, scale: (x, scale)), "it must return one tensor, not a tuple"),  # type: ignore[return-value]
    "not a number": (
        scaled(lambda x, scale: x + scale * (x - 9).log()),
        "256 of 256 output numbers are not finite",
    ),
    "dropout": (
        around(nn.Dropout(0.1)),
        r"draws random numbers of torch.*\(layer 'body.1' is a Dropout: leave it out\)",
    ),
    "functional dropout": (around(lambda x: F.dropout(x, 0.1)), "its forward pass draws random numbers of torch"),
    "dropout while it learns": (
        around(lambda x: F.dropout(x, 0.1) if torch.is_grad_enabled() else x),
        "its forward pass draws random numbers of torch while gradients are on",
    ),
    "not the identity in other sizes": (
        scaled(lambda x, scale: (x if x.shape[-1] == 4 else x.flip(-1)) + scale * x),
        r" on \[3, 8, 5, 5\]: at birth it changes its input by up to \d",
    ),
    "another type": (
        scaled(lambda x, scale: (x + scale * x).double()),
        "it must return float32 as it is given, got float64",
    ),
    "noise of numpy": (around(lambda x: x * np.random.rand()), "draws random numbers of numpy"),  # noqa: NPY002
    "noise of random": (around(lambda x: x * random.random()), "draws random numbers of random"),
    "batch norm": (
        lambda channels: Residual(channels, nn.BatchNorm2d(channels)),
        "don't know how to init.* BatchNorm2d",
    ),
    "batch norm without parameters": (
        around(nn.BatchNorm2d(8, affine=False, track_running_stats=False)),
        r"the output for a sample changes by up to [\d.e-]+ when another one changes.*use GroupNorm",
    ),
    "batch norm by hand": (
        around(lambda x: x - x.mean(0)),
        "the output for a sample changes by up to .* when another",
    ),
    "size of the batch": (around(lambda x: x / len(x)), "changes by up to .* in a batch of 1 instead of 2"),
    "its input": (
        scaled(lambda x, scale: x.mul_(1 + scale).add_(scale - 1).add_(1)),
        r"it changes its input in place, by up to [\d.e-]+: work on a copy",
    ),
    "a counter": (Counts, "its forward pass changes 'passes' by up to 1: keep no state"),
    "a drawn parameter": (
        lambda channels: Forgets(channels, as_buffer=False),
        r"parameter 'table' of two modules born from one stream differs by up to \d.*: draw it from the generator of",
    ),
    "a drawn buffer": (
        lambda channels: Forgets(channels, as_buffer=True),
        r"buffer 'table' of two modules born from one stream differs by up to \d.*: draw none",
    ),
    "a drawn shape": (
        lambda channels: Residual(channels, nn.Conv2d(channels, channels, 1, bias=random.random() > 0.5)),
        "parameter 'body.bias' is .*not there.*; all builds must be alike but for their numbers",
    ),
    "a layer of unknown birth": (
        lambda channels: Residual(channels, nn.PReLU()),
        "its parameters cannot be drawn: ValueError: don't know how to initialise PReLU",
    ),
    "a lazy layer": (
        lambda channels: Residual(channels, nn.LazyConv2d(channels, 1)),
        "parameter 'body.weight' has no shape before the first pass",
    ),
    "no module": (lambda channels: torch.relu, "it must be a torch.nn.Module, not a builtin_function_or_method"),  # type: ignore[return-value]
    "an error": (raises, r"it cannot be built for 8 channels: KeyError: 'wide' \(test_blueprint_contract.py:\d+\)$"),
}

GOOD: dict[str, Callable[[int], nn.Module]] = {
    "plain": around(torch.relu),
    "dropout of nothing": around(nn.Dropout(0.0)),
    "instance norm": around(nn.InstanceNorm2d(8)),
    "half frozen": lambda channels: Residual(
        channels,
        nn.Sequential(nn.Conv2d(channels, channels, 1).requires_grad_(False), nn.Conv2d(channels, channels, 1)),
    ),
    "nothing at all": lambda channels: nn.Identity(),
    "in place on its own": around(nn.ReLU(inplace=True)),
}


@pytest.fixture(autouse=True)
def empty_extension() -> Iterator[None]:
    """Undo registrations after a test."""
    with undone():
        yield


@pytest.mark.parametrize("case", BAD)
def test_a_blueprint_that_could_not_be_measured_or_trained_is_refused_with_what_it_does(case: str) -> None:
    builder, line = BAD[case]
    register_blueprint("cnn", "own", builder)
    with pytest.raises(ValueError, match=line) as caught:
        check_blueprints({("cnn", 8): [(8, 5, 5)]})
    said = str(caught.value)
    assert re.match(
        r"plugins: blueprint 'own' of cnn hosts \(test_blueprint_contract.py:\d+\)(:| under [A-Z]+:| on [^:]*:) ", said
    )
    assert "\n" not in said


@pytest.mark.parametrize("case", GOOD)
def test_a_blueprint_is_not_refused_for_what_its_layers_are_called(case: str) -> None:
    register_blueprint("cnn", "own", GOOD[case])
    streams = GlobalStreams()
    check_blueprints({("cnn", 8): [(8, 5, 5), (8, 2, 2)]})
    assert bool(compatible([("cnn", 8)])[0, blueprint_ids().index("own")])
    assert streams.moved() == []


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, table in BLUEPRINTS.items() for name in table])
@pytest.mark.parametrize("channels", [8, 36])
def test_every_built_in_blueprint_keeps_the_contract(family: str, name: str, channels: int) -> None:
    shapes = {
        "cnn": [(channels, 7, 7), (channels, 1, 1)],
        "transformer": [(9, channels), (1, channels)],
        "mlp": [(channels,)],
    }
    causal = family == "transformer"
    check_blueprint(family, name, BLUEPRINTS[family][name], channels, shapes[family], causal=causal)


def test_a_token_must_not_see_later_ones_in_text() -> None:
    def build(channels: int) -> nn.Module:
        return layers_residual(channels, nn.Linear(channels, channels), Does(lambda x: x.mean(1, keepdim=True)))

    register_blueprint("transformer", "looks_ahead", build)
    sites = {("transformer", 8): [(6, 8)]}
    check_blueprints(sites, causal=False)
    with pytest.raises(
        ValueError, match=r"for a token changes by up to [\d.e-]+ when a later one changes: mask the later"
    ):
        check_blueprints(sites, causal=True)


def test_only_what_the_run_may_grow_is_looked_at() -> None:
    def even(channels: int) -> nn.Module:
        if channels % 2:
            raise ValueError("must be even")
        return nn.Conv2d(channels, channels, 1)

    register_blueprint("cnn", "even", even)
    check_blueprints({("cnn", 7): []})
    check_blueprints({("cnn", 8): []}, ["conv_light"])
    with pytest.raises(ValueError, match="blueprint 'even'"):
        check_blueprints({("cnn", 8): []}, ["conv_light", "even"])


@pytest.mark.parametrize("start", [preflight, build_experiment])
def test_a_blueprint_runs_the_batches_of_the_run_before_it_begins(start: Callable[[object], object]) -> None:
    def few(x: Tensor) -> Tensor:
        if len(x) > 40:
            raise IndexError("no more than 40")
        return x

    register_blueprint("cnn", "own", around(few))
    with pytest.raises(ValueError, match=r"'own' of cnn hosts .* does not run on \[64, .*no more than 40"):
        start(compose(*SMOKE, "env.mapping=loop", "task.batch_size=64"))


@pytest.mark.parametrize("start", [preflight, build_experiment])
def test_a_run_does_not_begin_with_one(start: Callable[[object], object]) -> None:
    register_blueprint("cnn", "own", BAD["not the identity"][0])
    with pytest.raises(ValueError, match=r"plugins: blueprint 'own' of cnn hosts .* at birth it changes its input"):
        start(compose(*SMOKE))
    start(compose(*SMOKE, "slots.blueprints=[conv_light]"))


def test_the_check_costs_a_start_a_few_passes_of_each_blueprint() -> None:
    assert users_blueprints("cnn") == {}
    passes: list[Tensor] = []

    def counted(x: Tensor) -> Tensor:
        passes.append(x)
        return x

    register_blueprint("cnn", "own", around(counted))
    check_blueprints({("cnn", 8): [(8, 4, 4)]})
    assert 0 < len(passes) < 20
