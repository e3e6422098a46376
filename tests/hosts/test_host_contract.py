"""A user's network is judged by what it does: what would learn from other numbers than its twin is refused in one line.

And what does nothing of the kind is a host, whatever its layers are called.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.config import compose
from esper.experiment.build import build_experiment
from esper.experiment.preflight import preflight
from esper.growth.actions import NUM_HEADS
from esper.hosts import CustomHost, build_host
from esper.population import Population, build_mapping
from esper.population.layout import flatten_parameters
from esper.runtime.rng import GlobalStreams, generator
from tests.tiers import few

IMAGES = torch.rand(2, 1, 8, 8, generator=generator("images"))
TICKS = itertools.count(1)


class Net(nn.Module):
    """Stem, a configurable body, head; growth is after the stem and after the body."""

    def __init__(self, body: Callable[[Tensor], Tensor] | None = None, **layers: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.body = body if isinstance(body, nn.Module) else Does(body or torch.relu, **layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)))


class Does(nn.Module):
    """A submodule with a given effect."""

    def __init__(self, does: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.does = does
        self.layers = nn.ModuleDict(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.does(x, **self.layers)


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return x + mixed.transpose(1, 2).view_as(x)


class Encoder(nn.Module):
    """A module that rounds differently without gradients, where torch uses a fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(2).transpose(1, 2)).transpose(1, 2).view_as(x)


class Counts(nn.Module):
    """A module that counts passes: in a number that the output depends on, or in a buffer that it does not depend
    on.
    """

    def __init__(self, quietly: bool, learning: bool = False) -> None:
        super().__init__()
        self.quietly, self.learning, self.passes = quietly, learning, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.quietly:
            self.seen += torch.is_grad_enabled() or not self.learning
            return x
        self.passes += 1
        return x * self.passes


class Shrinks(nn.Module):
    """A module whose weights shrink with use."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.gain.data.mul_(0.9)
        return x * self.gain.detach()


def scaled(draw: Callable[[], float]) -> Net:
    """Take head weights from outside the builder."""
    net = Net()
    net.head[2].weight.data.mul_(draw())
    return net


class Carries(nn.Module):
    """A module that multiplies by its own table."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.table.view(1, -1, 1, 1)


class Shuffles(Carries):
    """A module that reorders channels by its own table."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.table]


def own_stream(x: Tensor) -> Tensor:
    stream = torch.Generator()
    stream.seed()
    return x + torch.randn(x.shape, generator=stream)


def seeded_dropout(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return F.dropout(x, 0.1)


def plain_number() -> Net:
    factor = float(torch.rand(()))
    return Net(lambda x: x * factor)


def zero_head(net: Net) -> Net:
    nn.init.zeros_(net.head[2].weight)
    return net


@cache
def once() -> Net:
    return Net()


def with_weight(value: float, net: Net | None = None) -> Net:
    net = net or Net()
    net.stem.weight.data[0, 0, 0, 0] = value
    return net


def frozen(net: nn.Module) -> nn.Module:
    return net.requires_grad_(False)


def double_head() -> Net:
    net = Net()
    net.head[2].double()
    net.head.insert(2, Does(lambda x: x.double()))
    return net


def old_weight_norm() -> Net:
    net = Net()
    net.body = nn.utils.weight_norm(nn.Conv2d(4, 4, 1))
    return net


def dead() -> Net:
    net = zero_head(Net(lambda x: torch.relu(x) * 0))
    nn.init.zeros_(net.head[2].bias)
    net.head.append(nn.ReLU())
    return net


@torch.no_grad()
def unlearning(x: Tensor) -> Tensor:
    return x * 1.0


def without_gradient() -> Net:
    net = Net()
    net.head.append(Does(unlearning))
    return net


BAD: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "functional dropout": (
        lambda: Net(lambda x: F.dropout(x, 0.1)),
        r"its forward pass draws random numbers of torch, two passes on one input differ by up to 0\.\d+: leave them",
    ),
    "dropout that seldom shows": (lambda: Net(lambda x: F.dropout(x, 1e-9)), "draws random numbers of torch"),
    "dropout behind a zero": (lambda: zero_head(Net(lambda x: F.dropout(x, 0.5))), "draws random numbers of torch"),
    "dropout that seeds": (lambda: Net(seeded_dropout), "draws random numbers of torch, .* differ by up to 0"),
    "noise": (lambda: Net(lambda x: x + torch.randn_like(x)), "draws random numbers of torch"),
    "noise of numpy": (lambda: Net(lambda x: x + float(np.random.rand())), "draws random numbers of numpy"),  # noqa: NPY002
    "noise of random": (lambda: Net(lambda x: x * random.random()), "draws random numbers of random"),
    "noise of its own": (lambda: Net(own_stream), r"two forward passes on one input differ by up to \d.*generator"),
    "a clock": (lambda: Net(lambda x: x + time.perf_counter_ns() % 1009), "two forward passes on one input differ by"),
    "a global counter": (lambda: Net(lambda x: x * next(TICKS)), "two forward passes on one input differ by"),
    "a counter": (lambda: Net(Counts(quietly=False)), r"two forward passes on one input differ by up to \d"),
    "a counting buffer": (
        lambda: Net(Counts(quietly=True)),
        "its forward pass changes 'body.seen' by up to 1: ",
    ),
    "its weights": (lambda: Net(Shrinks()), "its forward pass changes 'body.gain' by up to 0.[0-9]+: "),
    "attention's dropout": (
        lambda: Net(Attention(0.1)),
        r"draws random numbers of torch.*\(layer 'body.attention' is a MultiheadAttention: give it dropout=0\)",
    ),
    "dropout while it learns": (
        lambda: Net(lambda x: F.dropout(x, 0.1) if torch.is_grad_enabled() else x),
        r"draws random numbers of torch while gradients are on, outputs differ by up to 0\.\d+: let it do the",
    ),
    "noise of its own while it learns": (
        lambda: Net(lambda x: own_stream(x) if torch.is_grad_enabled() else x),
        r"its forward pass computes another result while gradients are on, outputs differ by up to \d",
    ),
    "a memory of what it learns from": (
        lambda: Net(Counts(quietly=True, learning=True)),
        "its forward pass changes 'body.seen' by up to 1: ",
    ),
    "spectral norm": (
        lambda: Net(nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 1))),
        r"its forward pass changes 'body.parametrizations.weight.0._[uv]' by up to 0\.\d+.*use weight_norm",
    ),
    "batch norm": (
        lambda: Net(nn.BatchNorm2d(4)),
        r"changes 'body\.\w+' by .*\(layer 'body' is a BatchNorm2d: use GroupNorm or LayerNorm\)",
    ),
    "batch norm without statistics": (
        lambda: Net(nn.BatchNorm2d(4, track_running_stats=False)),
        r"the output for a sample changes by up to 0\.\d+ when another one changes.*use GroupNorm",
    ),
    "batch norm by hand": (
        lambda: Net(lambda x: (x - x.mean(0)) / (1 + x.std(0, correction=0))),
        r"the output for a sample changes by up to [\d.e-]+ when another one changes: let samples not see",
    ),
    "batch norm behind a zero": (lambda: zero_head(Net(lambda x: x - x.mean(0))), "changes by .* when another one"),
    "the size of the batch": (
        lambda: Net(lambda x: x / len(x)),
        r"the output for a sample changes by up to [\d.e-]+ in a batch of 1 instead of 2",
    ),
    "a batch of one": (
        lambda: nn.Sequential(Net(), Does(lambda x: x.squeeze())),
        r"on \[1, 1, 8, 8\] it must return \[1, 10\], got \[10\]",
    ),
    "batches of two": (
        lambda: Net(lambda x: x * torch.ones(2, 1, 1, 1)),
        r"it must return|the output for a sample|does not run on \[3, 1, 8, 8\]",
    ),
    "its input": (
        lambda: nn.Sequential(Does(lambda x: x.sub_(0.5)), Net()),
        r"it changes its input in place, by up to 0.5: work on a copy \(x = x - 1 instead of x.sub_\(1\)",
    ),
    "a feature": (
        lambda: Net(nn.ReLU(inplace=True)),
        r"what follows 'stem': it changes its input in place, by up to [\d.]+: .*no inplace=True",
    ),
    "a logarithm": (lambda: Net(lambda x: (x - 9).log()), "20 of 20 output numbers are not finite$"),
    "a weight that is no number": (
        lambda: with_weight(np.nan),
        "output numbers are not finite, nor is its parameter 'stem.w",
    ),
    "an infinite weight": (
        lambda: with_weight(np.inf),
        "output numbers are not finite, nor is its parameter 'stem.weight'",
    ),
    "a weight that is no number behind what hides it": (
        lambda: with_weight(np.nan, Net(torch.nan_to_num)),
        r"parameter 'stem.weight' is not finite at birth; start it from numbers$",
    ),
    "one module again and again": (once, "two builds share parameter 'stem.weight': let every call make a new one"),
    "a gradient": (
        lambda: Net(lambda x: (x * 0).sqrt() + x),
        "the gradient of parameter 'stem.weight' at birth is not finite, so it never learns",
    ),
    "no gradient": (
        without_gradient,
        "its backward pass fails: RuntimeError: element 0 of tensors does not require grad",
    ),
    "a dead network": (dead, r"the gradient of all \d+ trained parameters at birth is 0, so it never learns"),
    "nothing to train": (
        lambda: frozen(Net()),
        "no parameter is trained .requires_grad.; leave at least its last layer",
    ),
    "weights from the system": (
        lambda: scaled(lambda: 1 + os.urandom(1)[0] / 256 + next(TICKS)),
        r"two builds from one random stream differ in parameter 'head.2.weight' by up to \d.*global generators of",
    ),
    "weights of its own stream": (
        lambda: scaled(lambda: np.random.default_rng().random()),
        "two builds from one random stream differ in parameter 'head.2.weight'",
    ),
    "a buffer from the system": (
        lambda: Net(Carries(torch.tensor([float(next(TICKS)), 1, 1, 1]))),
        "two builds from one random stream differ in buffer 'body.table'",
    ),
    "a drawn order": (
        lambda: Net(Shuffles(torch.randperm(4))),
        r"buffer 'body.table' \(torch.int64\) is drawn in the builder; only float32 can differ",
    ),
    "a drawn number": (
        plain_number,
        r"another build computes another result than that build; keep what the builder draws in parameters or buffers "
        r"\(outputs differ by up to [\d.e-]+\)",
    ),
    "a drawn width": (
        lambda: Net(nn.Sequential(nn.Conv2d(4, 1 + next(TICKS), 1), nn.LazyConv2d(4, 1))),
        "has no shape|is float32 .* in one build and float32 .* in another",
    ),
    "a drawn depth": (
        lambda: Net(nn.Sequential(*(nn.Conv2d(4, 4, 1) for _ in range(next(TICKS))))),
        "parameter 'body.*' is not there in one build and float32 .* in another; all builds must be alike",
    ),
    "a lazy layer": (
        lambda: Net(nn.LazyConv2d(4, 1)),
        r"parameter 'body.weight' has no shape before the first pass \(a lazy layer\); give it its shape",
    ),
    "double precision": (double_head, "parameter 'head.3.weight' is float64; make it float32, or a buffer"),
    "what cannot be copied": (old_weight_norm, r"it cannot be copied \(copy.deepcopy\): RuntimeError: "),
}

GOOD: dict[str, Callable[[], nn.Module]] = {
    "plain": Net,
    "batch norm that is frozen": lambda: Net(nn.BatchNorm2d(4).eval()),
    "dropout of nothing": lambda: Net(nn.Dropout(0.0)),
    "dropout that is off": lambda: Net(nn.Dropout(0.5)).eval(),
    "instance norm": lambda: Net(nn.InstanceNorm2d(4)),
    "attention": lambda: Net(Attention(0.0)),
    "attention that is faster where nothing learns": lambda: Net(Encoder()).eval(),
    "weight norm": lambda: Net(nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1))),
    "in place on its own": lambda: Net(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(inplace=True))),
    "zeros at birth": lambda: zero_head(Net()),
    "numbers of numpy": lambda: scaled(lambda: 1 + np.random.rand()),  # noqa: NPY002
    "numbers of random": lambda: scaled(lambda: 1 + random.random()),
    "a drawn table": lambda: Net(Carries(torch.rand(4))),
    "one table for all": lambda: Net(Shuffles(torch.tensor([3, 2, 1, 0]))),
    "a frozen half": lambda: Net(frozen(nn.Conv2d(4, 4, 1))),
}

CASES: dict[str, Callable[[], nn.Module]] = {name: build for name, (build, _) in BAD.items()} | GOOD


def build(case: str) -> nn.Module:
    return CASES[case]()


def slots_of(case: str) -> list[str]:
    prefixes = [name.removesuffix("stem") for name, _ in build(case).named_modules() if name.endswith("stem")]
    return [f"{prefixes[0]}stem", f"{prefixes[0]}body"]


def host_of(case: str, slots: list[str] | None = None) -> CustomHost:
    host = build_host(
        "custom",
        target=f"{__name__}:build",
        arguments={"case": case},
        slots=slots or slots_of(case),
        sample=IMAGES.clone(),
        num_classes=10,
    )
    assert isinstance(host, CustomHost)
    return host


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("case", BAD)
def test_a_network_that_would_not_compute_what_its_twin_does_is_refused_with_what_it_does(case: str) -> None:
    with pytest.raises(ValueError, match=BAD[case][1]) as caught:
        host_of(case)
    line = str(caught.value)
    assert line.startswith(f"host.target: {__name__}:build: "), line
    assert "\n" not in line


@pytest.mark.parametrize("case", GOOD)
def test_a_network_is_not_refused_for_what_its_layers_are_called(case: str) -> None:
    slots, streams = slots_of(case), GlobalStreams()
    host = host_of(case, slots)
    assert streams.moved() == []
    births = []
    for number in (0, 1, 0):
        host.reset(generator("host", number))
        births.append((flatten_parameters(host.segments).clone(), host(IMAGES)))
    assert torch.equal(births[0][0], births[2][0])
    assert torch.equal(births[0][1], births[2][1])
    assert not torch.equal(births[0][0], births[1][0])


def drawn_hosts(mapping: str) -> Population:
    host = host_of("a drawn table")
    population = Population(host, host.slot_ids, 2, build_mapping(mapping))
    values = []
    for number in range(2):
        host.reset(generator("host", number))
        values.append(flatten_parameters(host.segments))
    population.reset(range(2), torch.stack(values), torch.ones(2, len(values[0]), dtype=torch.bool))
    return population


@pytest.mark.parametrize("mapping", ["loop", "vmap"])
def test_what_a_builder_draws_into_a_buffer_belongs_to_one_host(mapping: str) -> None:
    population = drawn_hosts(mapping)
    host = host_of("a drawn table")
    for number in range(2):
        host.reset(generator("host", number))
        module = host.fresh(generator("host", number))
        grown = population.grown(number, [0.0, 0.0])
        assert torch.equal(grown(IMAGES), module(IMAGES))
        assert torch.equal(dict(grown.named_host_parameters())["segments.1.whole.body.table"], module.body.table)
    assert population.num_host_parameters().tolist() == [40 + 50] * 2


def test_arguments_that_a_builder_changes_are_what_they_were_in_the_next_build() -> None:
    host = build_host(
        "custom",
        target=f"{__name__}:popping",
        arguments={"widths": [4, 8]},
        slots=["0"],
        sample=IMAGES,
        num_classes=10,
    )
    host.reset(generator("host"))
    assert host(IMAGES).shape == (2, 10)


def popping(widths: list[int]) -> nn.Module:
    layers = [nn.Conv2d(1, widths[0], 3), nn.Conv2d(widths.pop(0), widths[0], 3)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths.pop(0), 10))


@pytest.mark.parametrize("case", ["numbers of numpy", "numbers of random", "a drawn table", "a frozen half"])
@few(2)
def test_a_host_that_never_grows_is_its_twin_whatever_its_builder_draws_from(
    case: str,
) -> None:
    small = ["env.num_epochs=3", "env.steps_per_epoch=1", "task.batch_size=8", "trainer.num_envs=4", "env.mapping=loop"]
    slots = f"host.slots=[{','.join(slots_of(case))}]"
    target = [f"host.target={__name__}:build", f"+host.arguments={{case: {case}}}", slots]
    experiment = build_experiment(compose("task=digits", "host=custom", *target, *small, "slots.num_slots=2"))
    pool = experiment.pool("train", 4)
    env = experiment.env(range(2), pool, experiment.twins(2, lambda done, total: None), run_seed=0, measure_test=False)
    env.reset()
    for _ in range(3):
        result = env.step(torch.zeros(2, NUM_HEADS, dtype=torch.int64))
    assert [record.episode_return for record in result.episodes] == [0, 0]


class Table(nn.Module):
    """A module with one row for each sample of a batch, up to a limit."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.rows = nn.Parameter(torch.zeros(rows, 4, 1, 1))
        self.head = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.conv(x)
        result: Tensor = self.head((features + self.rows[: features.shape[0]]).mean((2, 3)))
        return result


@pytest.mark.parametrize("start", [preflight, build_experiment])
@pytest.mark.parametrize(("rows", "batch"), [(20, 32), (40, 50)], ids=["training", "validation"])
@few(2)
def test_a_host_runs_the_batches_of_the_run_before_it_begins(
    start: Callable[[object], object], rows: int, batch: int
) -> None:
    """A mapping is tried on a few samples, and timed on no more than it takes."""
    own = [f"host.target={__name__}:Table", "host.slots=[conv]", "slots.num_slots=1", "env.mapping=loop"]
    sizes = ["task.batch_size=32", "task.max_samples=50"]
    with pytest.raises(ValueError, match=rf"host.target: {__name__}:Table: it does not run on \[{batch}, 1, 8, 8\]"):
        start(compose("task=digits", "host=custom", *own, *sizes, f"+host.arguments={{rows: {rows}}}"))
    start(compose("task=digits", "host=custom", *own, *sizes, "+host.arguments={rows: 60}"))
