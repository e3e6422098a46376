"""Any module can be a host: divided at its places, or refused with the obstacle. The manual's example comes first."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from esper.blueprints import build_blueprint
from esper.config import compose
from esper.experiment.build import build_experiment
from esper.experiment.preflight import preflight
from esper.growth.actions import NUM_HEADS, BlendAlgorithm
from esper.growth.blending import BlendedModule
from esper.hosts import CustomHost, Place, build_host, reset_parameters
from esper.runtime.rng import generator

MANUAL = Path(__file__).parents[2] / "docs" / "custom_host.md"

IMAGES = torch.randn(2, 1, 8, 8, generator=generator("images"))
TOKENS = torch.randint(12, (2, 6), generator=generator("tokens"))


class Attention(nn.Module):
    """Attention with branches on shapes and a buffer, as users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.register_buffer("mask", torch.ones(6, 6).tril())

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 6:
            raise ValueError("too long")
        return x + self.mask[: x.shape[1], : x.shape[1]] @ self.mix(x)


class Text(nn.Module):
    """A tied head, positions from the input's size, and an optional argument."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(12, 8)
        self.position = nn.Embedding(6, 8)
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(0, tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        if targets is not None:
            raise AssertionError
        return self.head(x)


class Skipped(nn.Module):
    """A network with a skip connection around its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)) + x)


class Branching(nn.Module):
    """A network with a branch on values beside a place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 4, 3), nn.Sequential(nn.Flatten(), nn.Linear(144, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x if x.sum() > 0 else -x)


class Twice(nn.Module):
    """A network that calls one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(self.conv(x)))


class Pair(nn.Module):
    """A network that returns more than logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), x


def chain(*middle: nn.Module, classes: int = 10) -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3, padding=1), *middle]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


class Wrong(nn.Module):
    """A network whose forward pass reads a missing attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        return self.nothing(x)


TARGETS = {
    "wrong": Wrong,
    "missing": lambda: torch.load("nowhere.pt"),
    "text": Text,
    "skipped": Skipped,
    "branching": Branching,
    "twice": Twice,
    "pair": Pair,
    "plain": lambda: chain(nn.ReLU()),
    "batchnorm": lambda: chain(nn.BatchNorm2d(4)),
    "dropout": lambda: chain(nn.Dropout(0.1)),
    "few": lambda: chain(classes=7),
    "number": lambda: 3,
}
globals().update(TARGETS)


def custom(target: str, slots: Sequence[str], sample: Tensor = IMAGES, num_classes: int = 10) -> CustomHost:
    where = target if ":" in target or "." in target else f"{__name__}:{target}"
    host = build_host("custom", target=where, arguments={}, slots=slots, sample=sample, num_classes=num_classes)
    assert isinstance(host, CustomHost)
    return host


@pytest.fixture
def manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The manual's module, importable, and the words of its command."""
    text = MANUAL.read_text(encoding="utf-8")
    command, code = re.findall(r"```(?:bash|python)\n(.*?)```", text, re.DOTALL)
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "models.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words = re.findall(r"'[^']*'|\S+", command.replace("\\\n", " "))
    yield [word.strip("'") for word in words[3:]]
    for name in ("my_package.models", "my_package"):
        sys.modules.pop(name, None)


def test_the_manuals_example_grows_and_keeps(manual: list[str]) -> None:
    small = ["env.num_epochs=4", "env.steps_per_epoch=1", "task.batch_size=8", "trainer.num_envs=4", "env.mapping=loop"]
    config = compose(*manual, *small, "slots.min_training_epochs=1")
    preflight(config)
    experiment = build_experiment(config)
    assert experiment.host.places == tuple(Place(f"r0c{column}", 12, "cnn") for column in range(3))
    pool = experiment.pool("train", 4)
    env = experiment.env(range(2), pool, experiment.twins(2, lambda done, total: None), run_seed=0, measure_test=False)
    env.reset()
    env.plant({0: [(1, int(experiment.compatible[1].long().argmax()))]})
    for _ in range(4):
        result = env.step(torch.zeros(2, NUM_HEADS, dtype=torch.int64))
    kept, never = sorted(result.episodes, key=lambda record: record.environment)
    assert (kept.num_fossilized, never.num_fossilized) == (1, 0)
    assert never.episode_return == 0
    assert kept.added_parameters > 0
    network = env.population.grown(0, [0.0, 1.0, 0.0])
    assert network(IMAGES).shape == (2, 10)


@pytest.mark.parametrize(
    ("target", "slots", "sample", "classes", "places"),
    [
        ("text", ["layers.0", "layers.1"], TOKENS, 12, [("transformer", 8), ("transformer", 8)]),
        ("plain", ["1", "0"], IMAGES, 10, [("cnn", 4), ("cnn", 4)]),
        ("skipped", ["second"], IMAGES, 10, None),
    ],
)
def test_segments_compute_what_the_module_computes(
    target: str, slots: list[str], sample: Tensor, classes: int, places: list[tuple[str, int]] | None
) -> None:
    if places is None:
        with pytest.raises(ValueError, match="cannot cut after 'second'"):
            custom(target, slots, sample, classes)
        return
    host = custom(target, slots, sample, classes)
    assert [place.site for place in host.places] == places
    host.reset(generator("host"))
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator("host"))))
        module = TARGETS[target]()
    assert torch.equal(host(sample), module(sample))
    assert sum(value.numel() for _, value in host.named_host_parameters()) == sum(
        value.numel() for value in module.parameters()
    )
    for slot_id in host.slot_ids:
        assert torch.equal(host.forward_from(slot_id, host.forward_to(slot_id, sample)), module(sample))


def test_a_host_starts_from_its_generator_alone_and_copies_are_apart() -> None:
    host = custom("text", ["layers.0"], TOKENS, 12)
    host.reset(generator("host", 0))
    first = host(TOKENS)
    other = copy.deepcopy(host)
    other.reset(generator("host", 1))
    assert torch.equal(host(TOKENS), first)
    assert not torch.equal(other(TOKENS), first)
    state = torch.get_rng_state()
    other.reset(generator("host", 0))
    assert torch.equal(other(TOKENS), first)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_module_at_a_place_acts_on_what_follows() -> None:
    host = custom("text", ["layers.0", "layers.1"], TOKENS, 12)
    before = host(TOKENS)
    module = BlendedModule(build_blueprint("transformer", "lora", 8), BlendAlgorithm.ADD)
    reset_parameters(module, generator("module"))
    module.body.scale.data.fill_(0.5)
    host.attach("r0c1", module)
    assert torch.equal(host.forward_to("r0c1", TOKENS), custom_feature(host))
    assert not torch.equal(host(TOKENS), before)


def custom_feature(host: CustomHost) -> Tensor:
    return host.segments[1](host.segments[0](TOKENS))


@pytest.mark.parametrize(
    ("target", "slots", "message"),
    [
        ("nowhere", ["0"], r"has no function 'nowhere'; it has .*Text"),
        ("no_such_package.models:build", ["0"], "cannot import 'no_such_package.models'"),
        ("torch.nn", ["0"], "host.target must be package.module:function, got 'torch.nn'"),
        (".models:build", ["0"], "host.target must name the package from its top, got '.models:build'"),
        ("missing", ["0"], r"missing.* does not run: FileNotFoundError: .*nowhere.pt' \(test_custom.py:\d+\)$"),
        (
            "wrong",
            ["layer"],
            r"it does not run on \[.*\]: AttributeError: .*'nothing' \(test_custom.py:\d+\)$",
        ),
        ("number", ["0"], "returns a int, not a torch.nn.Module"),
        ("plain", ["conv"], "the module has no submodule 'conv'; it has 0, 1, 2, 3, 4"),
        ("skipped", ["head", "head.0"], "'head.0' is inside 'head'; name one of them"),
        ("batchnorm", ["0"], "layer '1' is a BatchNorm2d.*use GroupNorm"),
        ("dropout", ["0"], "layer '1' is a Dropout.*leave it out"),
        ("few", ["0"], r"must return \[2, 10\], got \[2, 7\]"),
        ("pair", ["layer"], "must return one tensor, not a tuple"),
        ("text", ["layers.0"], r"does not run on \[2, 1, 8, 8\]"),
        (
            "skipped",
            ["first"],
            r"cannot cut after 'first': 'add' behind it reads 'x' from before it \(a skip",
        ),
        ("branching", ["first"], "cannot trace the module down to first: .*control flow"),
        ("twice", ["conv"], "'conv' is called 2 times in a forward pass, not once"),
        ("plain", ["3"], r"the output of '3' is \[2, 4\]; a feature is \[B, C, H, W\] or \[B, T, C\] with B=2"),
    ],
)
def test_what_cannot_be_a_host_is_refused_with_what_is_in_the_way(target: str, slots: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        custom(target, slots)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def build(:", "SyntaxError: invalid syntax"),
        ("from torch import nothing", "ImportError: cannot import name 'nothing' from 'torch'"),
        ("import nothing", r"ModuleNotFoundError: No module named 'nothing' \(own_models.py:1\)"),
        ("1 / 0", r"ZeroDivisionError: division by zero \(own_models.py:1\)"),
    ],
)
def test_what_is_wrong_with_a_users_file_is_said_in_one_line(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_models.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"host.target: cannot import 'own_models': {message}") as caught:
        custom("own_models:build", ["0"])
    assert "\n" not in str(caught.value)


def test_arguments_that_the_function_does_not_take_are_shown() -> None:
    with pytest.raises(ValueError, match=r"plain\(\*\*host.arguments=\{'depth': 3\}\) does not run: "):
        build_host(
            "custom", target=f"{__name__}:plain", arguments={"depth": 3}, slots=["0"], sample=IMAGES, num_classes=10
        )
