"""A mapping is tried before a run: what it cannot run is refused with the mappings that can, never met in the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from esper.blueprints import BLUEPRINTS
from esper.config import UsageError, compose
from esper.experiment.build import build_experiment
from esper.growth.actions import Blueprint
from esper.hosts import SegmentedHost
from esper.population import MAPPINGS, autotune, build_mapping, calibration
from esper.population.autotune import time_mappings
from esper.population.calibration import cache_file, choose_mapping, require_mapping
from esper.population.mapping import COMPILED_MAPPINGS, stacked
from esper.population.trial import try_out, why_not
from esper.population.workload import Workload
from esper.runtime.rng import generator
from esper.training.run import train
from tests.population.growing import digits_host
from tests.population.test_calibration import folder, workload  # noqa: F401 (a fixture)
from tests.tiers import few, slowly


class Branching(nn.Module):
    """A module that branches on values: possible row by row, impossible under vmap."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if bool((x.mean() > -1e9).item()) else x


class Backward(torch.autograd.Function):
    """A module that runs forward under every mapping, and whose backward fails."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None: ...

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        raise RuntimeError("no way back")


class NoWayBack(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Backward.apply(self.conv(x))  # type: ignore[no-untyped-call]
        return result


class Sized(nn.Module):
    """A module that fails only at the size of this host's features."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] == 2:
            raise IndexError("too small")
        result: Tensor = self.conv(x)
        return result


class Axis(nn.Module):
    """A parameter with an axis of samples, which broadcasts in one copy and not in a stack."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale

    def initialise(self, generator: torch.Generator) -> None: ...


class Scalar(nn.Module):
    """A parameter with fewer axes than a sample has, which meets the right ones in one copy and not in a stack."""

    def __init__(self, channels: int, shape: tuple[int, ...] = (1,)) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)
        self.scale = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.scale * self.conv(x)
        return result

    def initialise(self, generator: torch.Generator) -> None: ...


def plain(layer: Callable[[int], nn.Module]) -> Callable[[int], nn.Module]:
    return lambda channels: nn.Sequential(nn.Conv2d(channels, channels, 1), layer(channels))


BODIES: dict[str, tuple[Callable[[int], nn.Module], set[str], str]] = {
    "a plain layer": (
        lambda channels: nn.Sequential(nn.Conv2d(channels, channels, 1)),
        {"loop", "vmap", "grouped", "matmul"},
        "",
    ),
    "a layer without a form": (
        plain(lambda channels: nn.Softmax(dim=1)),
        {"loop", "vmap"},
        "no form of layer '1' (Softmax)",
    ),
    "circular padding": (
        lambda channels: nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, padding_mode="circular")),
        {"loop", "vmap"},
        "padding_mode='circular'",
    ),
    "an axis of samples": (Axis, {"loop", "vmap"}, "has an axis of samples"),
    "one number as a list": (Scalar, {"loop", "vmap"}, "a parameter has fewer axes than the features it meets"),
    "one number": (lambda channels: Scalar(channels, ()), {"loop", "vmap"}, "'scale' has no axis of channels"),
    "a row of pixels": (
        lambda channels: Scalar(channels, (1, 1)),
        {"loop", "vmap"},
        "a parameter has fewer axes than the features it meets",
    ),
    "a branch on values": (Branching, {"loop"}, ""),
    "no way back": (NoWayBack, set(), "no way back"),
    "one size alone": (Sized, set(), "IndexError: too small"),
}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], nn.Module]], Workload]:
    """A workload in which nothing but the given module may grow, in the last slot."""

    def build(body: Callable[[int], nn.Module]) -> Workload:
        monkeypatch.setitem(BLUEPRINTS["cnn"]._entries, "conv_light", body)
        monkeypatch.setattr("esper.population.mapping.loop.normalises_input", lambda module: False)
        whole = workload()
        only = torch.zeros_like(whole.compatible)
        only[-1, Blueprint.CONV_LIGHT] = True
        return replace(whole, compatible=only)

    return build


@pytest.mark.parametrize("mapping", [slowly(name) if name == "grouped" else name for name in MAPPINGS])
@pytest.mark.parametrize("kind", BODIES)
@few(7)
def test_a_mapping_that_is_named_runs_or_is_refused_with_those_that_do(
    alone: Callable[[Callable[[int], nn.Module]], Workload], kind: str, mapping: str
) -> None:
    body, able, message = BODIES[kind]
    task = alone(body)
    if mapping in able:
        assert require_mapping(task, mapping).mapping == mapping
        return
    with pytest.raises(ValueError, match=rf"^env.mapping={mapping} cannot run .*: blueprint conv_light: ") as caught:
        require_mapping(task, mapping)
    said = str(caught.value)
    assert (message if able or mapping in ("loop", "vmap") else "mapping ") in said
    assert "\n" not in said
    assert said.endswith(
        f"choose {' or '.join(name for name in MAPPINGS if name in able)}, or auto"
        if able
        else f"neither can {', '.join(name for name in MAPPINGS if name != mapping)}"
    )


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (4,), (4, 1, 1), (4, 4), (4, 4, 4)])
def test_a_parameter_of_any_shape_meets_what_it_meets_in_the_loop_or_is_refused(
    mapping: str, shape: tuple[int, ...]
) -> None:
    """With as many rows as channels, rows and columns, broadcasting errors would be silent."""
    module = Scalar(4, shape)
    values = torch.randn(4, sum(parameter.numel() for parameter in module.parameters()), generator=generator("values"))
    x = torch.randn(4, 4, 4, 4, 4, generator=generator("features"))
    results = []
    for name in ("loop", mapping):
        stack = build_mapping(name)
        try:
            results.append(stack.unpack(stack.call(stack.prepare(module), values, stack.pack(x))))
        except ValueError:
            assert mapping in ("grouped", "matmul")
            assert len(shape) < 3
            return
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("kind", ["a layer without a form", "a branch on values", "one size alone"])
def test_a_mapping_that_cannot_loses_and_if_all_do_it_is_one_line(
    alone: Callable[[Callable[[int], nn.Module]], Workload],
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(autotune, "BUDGET_SECONDS", 0.0)
    body, able, message = BODIES[kind]
    task = alone(body)
    if able:
        timings = time_mappings(task)
        assert set(timings.seconds) == able
        assert all(message in why for why in timings.refused.values())
        return
    with pytest.raises(ValueError, match="no mapping can run this host and its blueprints: ") as caught:
        choose_mapping(task)
    assert str(caught.value).count(message) >= 2
    assert all(f"{name}: blueprint conv_light: " in str(caught.value) for name in MAPPINGS)
    assert "\n" not in str(caught.value)


def softmax_host() -> SegmentedHost:
    host = digits_host()
    host.segments[1] = nn.Sequential(host.segments[1], nn.Softmax(dim=1))
    return host


def branching_host() -> SegmentedHost:
    host = digits_host()
    host.segments[1] = nn.Sequential(Branching(8), host.segments[1])
    return host


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize(("build", "able"), [(softmax_host, {"loop", "vmap"}), (branching_host, {"loop"})])
def test_a_host_that_a_mapping_cannot_run_is_refused_as_well(
    build: Callable[[], SegmentedHost], able: set[str], mapping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.population.mapping.loop.normalises_input", lambda module: False)
    why = why_not(workload(build()), mapping)
    assert why is None if mapping in able else why is not None and why.startswith("the host: "), why


@pytest.mark.parametrize("incubation", ["auxiliary", "straight_through"])
@pytest.mark.parametrize("mapping", MAPPINGS)
@few(2)
def test_every_blueprint_is_tried_in_every_slot_that_it_fits_developing_and_acting(
    mapping: str, incubation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from esper.population import trial

    seen: set[tuple[int, int, bool]] = set()
    step = trial.train_step

    def spy(task: Workload, population: object, growth: object, *more: object) -> None:
        blueprint, developing, alpha = population.blueprint, growth.developing, growth.alpha  # type: ignore[attr-defined]
        for env, slot in (blueprint >= 0).nonzero().tolist():
            assert bool(developing[env, slot]) != bool(alpha[env, slot] > 0)
            seen.add((slot, int(blueprint[env, slot]), bool(developing[env, slot])))
        step(task, population, growth, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(trial, "train_step", spy)
    task = replace(workload(), incubation=incubation)
    try_out(task, mapping)
    wanted = {(slot, kind, develops) for slot, kind in task.compatible.nonzero().tolist() for develops in (False, True)}
    assert seen == wanted


def test_a_compiled_mapping_is_tried_as_it_is_before_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "BACKEND", "aot_eager")
    for name in COMPILED_MAPPINGS:
        assert why_not(workload(), name) is None
    assert "no form of layer" in (why_not(workload(softmax_host()), "matmul_compiled") or "")


def test_a_machine_without_a_compiler_refuses_what_is_compiled_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The refusal is one line with the mappings that run without it."""

    def compiles(graph: object, inputs: object) -> object:
        raise RuntimeError("\nno compiler here\nSet TORCH_LOGS to learn more")

    monkeypatch.setattr(stacked, "BACKEND", compiles)
    with pytest.raises(ValueError, match=r"^env\.mapping=matmul_compiled cannot run") as refusal:
        require_mapping(workload(), "matmul_compiled")
    assert "torch.compile does not work here (" in str(refusal.value)
    assert "no compiler here" in str(refusal.value)
    assert str(refusal.value).endswith("; choose loop or vmap or grouped or matmul, or auto")

    def broken(*call: object, **options: object) -> object:
        raise RuntimeError("\nno compiler here\nSet TORCH_LOGS to learn more")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(UsageError) as refusal:
        train(compose("+preset=smoke", "env.mapping=loop", "policy.compile=true"), tmp_path / "run")
    assert str(refusal.value) == (
        "policy.compile=true: torch.compile does not work here (no compiler here); policy.compile=false runs without"
    )
    assert not (tmp_path / "run").exists()


def test_a_trial_leaves_no_trace() -> None:
    task = workload()
    before, state = {name: value.clone() for name, value in task.host.state_dict().items()}, torch.get_rng_state()
    try_out(task, "matmul")
    assert all(torch.equal(value, before[name]) for name, value in task.host.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_a_users_code_does_now_decides_not_what_was_timed_before(
    alone: Callable[[Callable[[int], nn.Module]], Workload],
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cached choice can no longer run: mappings are timed again."""
    monkeypatch.setattr(autotune, "BUDGET_SECONDS", 0.0)
    task = alone(Branching)
    choice = choose_mapping(task)
    assert choice.mapping == "loop"
    content = json.loads(cache_file().read_text())
    for entry in content["choices"].values():
        entry |= {"mapping": "vmap", "seconds": {"vmap": 1e-9}}
    cache_file().write_text(json.dumps(content))
    monkeypatch.setattr(calibration, "_chosen", {})
    assert choose_mapping(task).mapping == "loop"


def test_a_run_is_refused_before_it_has_a_folder_to_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLUEPRINTS["cnn"]._entries, "norm", plain(lambda channels: nn.Softmax(dim=1)))
    monkeypatch.setattr("esper.blueprints.contract.users_blueprints", lambda family: {})
    monkeypatch.setattr("esper.experiment.build.users_blueprints", lambda family: {})
    with pytest.raises(
        ValueError, match=r"^env.mapping=grouped cannot run .*: blueprint norm: .*; choose loop or vmap"
    ):
        build_experiment(compose("+preset=smoke", "env.mapping=grouped", "slots.blueprints=[norm]"))
