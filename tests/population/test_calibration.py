"""The choice of a mapping: the fastest that can run everything, the same for a whole process, cached, never fatal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import esper
from esper.blueprints import BLUEPRINTS, blueprint_ids, compatible
from esper.hosts import SegmentedHost
from esper.population import MAPPINGS, autotune, calibration
from esper.population.autotune import Timings, Workload, time_mappings
from esper.population.calibration import Choice, cache_file, choose_mapping, describe
from esper.population.layout import flatten_parameters
from tests.population.growing import digits_host, pool
from tests.tiers import few

SECONDS = {"loop": 4e-3, "vmap": 2e-3, "grouped": 1e-3, "matmul": 1.5e-3}


def workload(host: SegmentedHost | None = None) -> Workload:
    host = host or digits_host()
    images, labels = pool(40)
    return Workload(
        host=host,
        slot_ids=host.slot_ids,
        compatible=compatible(place.site for place in host.places),
        num_envs=3,
        inputs=images,
        targets=labels,
        val_inputs=images[:20],
        val_targets=labels[:20],
        batch_size=8,
        steps_per_epoch=4,
        incubation="auxiliary",
    )


class Contest:
    """A benchmark with fixed times that counts its calls."""

    def __init__(self, seconds: dict[str, float] = SECONDS, refused: dict[str, str] | None = None) -> None:
        self.timings = Timings(seconds=seconds, refused=refused or {})
        self.held = 0

    def __call__(self, workload: Workload) -> Timings:
        self.held += 1
        return self.timings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, in a process without a choice."""
    monkeypatch.setenv("ESPER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibration, "_chosen", {})
    return tmp_path


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget choices, like a new process."""
    monkeypatch.setattr(calibration, "_chosen", {})


# ------------------------------------------------------------------------------------------------------------- choosing


def test_the_fastest_is_chosen_and_told_with_the_others(folder: Path) -> None:
    choice = choose_mapping(workload(), Contest(SECONDS | {"vmap": 0.5e-3}, {"odd": "no form of layer 'x'"}))
    assert choice.mapping == "vmap"
    assert choice.lines() == [
        "mapping auto: vmap (0.5 ms per host and step; grouped 1, matmul 1.5, loop 4), measured now",
        "mapping odd cannot be used: no form of layer 'x'",
    ]


def test_one_process_chooses_once_and_the_next_one_remembers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, later = Contest(), Contest({"loop": 1e-3})
    assert [choose_mapping(workload(), first).mapping for _ in range(2)] == ["grouped"] * 2
    assert first.held == 1
    forget(monkeypatch)
    remembered = choose_mapping(workload(), later)
    assert (remembered.mapping, remembered.cached, later.held) == ("grouped", True, 0)
    assert remembered.seconds == SECONDS
    assert remembered.lines()[0].endswith(", cached")


def test_anything_that_matters_asks_for_a_benchmark_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = workload()
    other_host = digits_host()
    other_host.segments[0] = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2, stride=2), nn.ReLU())
    fewer = whole.compatible.clone()
    fewer[0, whole.compatible[0].nonzero()[0]] = False
    variants: list[Workload] = [
        replace(whole, host=other_host),
        replace(whole, slot_ids=whole.slot_ids[:2], compatible=whole.compatible[:2]),
        replace(whole, compatible=fewer),
        replace(whole, num_envs=4),
        replace(whole, inputs=whole.inputs[..., :7]),
        replace(whole, val_targets=whole.val_targets[:5]),
        replace(whole, batch_size=9),
        replace(whole, steps_per_epoch=5),
        replace(whole, incubation="straight_through"),
    ]
    found = [describe(variant) for variant in (whole, *variants)]
    settings: list[tuple[Any, str, Any]] = [
        (torch, "get_num_threads", lambda: 7),
        (calibration, "_processor", lambda: "another"),
        (calibration, "_code_digest", lambda: "edited"),
        (torch, "__version__", "9.9"),
        (esper, "__version__", "9.9"),
    ]
    for owner, name, value in settings:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            found.append(describe(whole))
    assert len({json.dumps(conditions, sort_keys=True) for conditions in found}) == len(found)
    assert describe(workload()) == found[0], "equal for an equal workload"


def test_where_no_mapping_can_run_the_host_every_reason_is_given(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"no mapping can run .*loop: too slow; vmap: too odd"):
        choose_mapping(workload(), Contest({}, {"loop": "too slow", "vmap": "too odd"}))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.234, "1,200"), (0.123, "120"), (0.0271, "27"), (0.0012, "1.2"), (0.001, "1"), (2e-5, "0.02")],
)
def test_times_are_told_without_an_exponent(seconds: float, text: str) -> None:
    [line] = Choice(mapping="loop", seconds={"loop": seconds}).lines()
    assert line == f"mapping auto: loop ({text} ms per host and step), measured now"


# ------------------------------------------------------------------------------------------------------------ the cache


def test_the_cache_is_where_the_platform_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    for name in ("ESPER_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_file() == Path("/home/someone/.cache/esper/calibration.json")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_file() == Path("/caches/esper/calibration.json")
    monkeypatch.setenv("ESPER_CACHE_DIR", "/mine")
    assert cache_file() == Path("/mine/calibration.json")


def damage(entry: str) -> Callable[[str], str]:
    """Replace the entry of a valid file."""

    def change(text: str) -> str:
        content = json.loads(text)
        return json.dumps(content | {"choices": {key: json.loads(entry) for key in content["choices"]}})

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[1, 2]",
        lambda text: '{"version": 1}',
        damage("null and void".join('""')),
        damage('{"mapping": "grouped"}'),
        damage('{"mapping": "warp", "seconds": {"warp": 1}, "refused": {}}'),
        damage('{"mapping": "loop", "seconds": {"loop": "soon"}, "refused": {}}'),
        damage('{"mapping": "loop", "seconds": {"loop": NaN}, "refused": {}}'),
    ],
)
@few(3)
def test_a_damaged_cache_is_told_in_one_line_and_mended(
    change: Callable[[str], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_mapping(workload(), Contest())
    cache_file().write_text(change(cache_file().read_text()))
    forget(monkeypatch)
    again = Contest()
    choice = choose_mapping(workload(), again)
    assert (choice.mapping, choice.cached, again.held) == ("grouped", False, 1)
    [note] = choice.notes
    assert note.startswith(f"cannot use {cache_file()} (")
    assert "\n" not in note
    forget(monkeypatch)
    assert choose_mapping(workload(), again).lines()[0].endswith(", cached"), "the next run finds it mended"


def test_a_cache_of_another_version_is_no_news(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_mapping(workload(), Contest())
    cache_file().write_text(cache_file().read_text().replace('"version": 1', '"version": 0'))
    forget(monkeypatch)
    again = Contest()
    assert choose_mapping(workload(), again).notes == ()
    assert again.held == 1


def test_an_unwritable_cache_costs_a_line_and_no_second_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESPER_CACHE_DIR", str(tmp_path / "file"))
    forget(monkeypatch)
    held = Contest()
    choice = choose_mapping(workload(), held)
    assert choice.mapping == "grouped"
    assert choice.notes[-1].startswith(f"cannot write {cache_file()} (")
    again = choose_mapping(workload(), held)
    assert (again.mapping, again.notes, held.held) == ("grouped", (), 1)


def test_choices_of_other_workloads_stay_in_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for num_envs in (3, 4):
        choose_mapping(replace(workload(), num_envs=num_envs), Contest())
    forget(monkeypatch)
    held = Contest()
    assert all(choose_mapping(replace(workload(), num_envs=count), held).cached for count in (3, 4))
    assert [path.name for path in folder.iterdir()] == ["calibration.json"], "no temporary file is left"


# ------------------------------------------------------------------------------------------------------- the benchmark


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timed round."""
    monkeypatch.setattr(autotune, "BUDGET_SECONDS", 0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_benchmark_times_every_mapping_and_leaves_no_trace() -> None:
    """A cached choice and a measured one must give the same run."""
    task = workload()
    before, state = flatten_parameters(task.host), torch.get_rng_state()
    timings = time_mappings(task)
    assert set(timings.seconds) == set(MAPPINGS)
    assert timings.refused == {}
    assert all(0 < seconds < math.inf for seconds in timings.seconds.values())
    assert torch.equal(flatten_parameters(task.host), before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("quick")
def test_a_blueprint_that_a_mapping_refuses_takes_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLUEPRINTS["cnn"]._entries, "conv_light", lambda channels: nn.Sequential(nn.Softmax(dim=1)))
    only = workload().compatible.clone()
    only[:, [number for number, name in enumerate(blueprint_ids()) if name != "conv_light"]] = False
    timings = time_mappings(replace(workload(), compatible=only))
    assert set(timings.seconds) == {"loop", "vmap"}
    assert set(timings.refused) == {"grouped", "matmul"}
    assert all(why.startswith("blueprint conv_light: the ") for why in timings.refused.values())


@pytest.mark.usefixtures("quick")
def test_a_blueprint_that_fails_only_when_it_runs_takes_its_mapping_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branching on values is fine for one row after the other and impossible for vmap."""

    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if bool((x.sum() > 0).item()) else 0.5 * x

    monkeypatch.setattr("esper.population.mapping.loop.normalises_input", lambda module: False)  # can't trace it either
    monkeypatch.setitem(BLUEPRINTS["cnn"]._entries, "conv_light", lambda channels: Branching())
    only = workload().compatible.clone()
    only[:, [number for number, name in enumerate(blueprint_ids()) if name != "conv_light"]] = False
    timings = time_mappings(replace(workload(), compatible=only), ("loop", "vmap"))
    assert set(timings.seconds) == {"loop"}
    assert timings.refused["vmap"].startswith("blueprint conv_light: ")


class Scripted:
    """A candidate whose turns take what a script says."""

    script: dict[str, list[float]]
    turns: dict[str, int]

    def __init__(self, workload: Workload, name: str) -> None:
        self._name = name

    def turn(self) -> float:
        self.turns[self._name] = number = self.turns.get(self._name, -1) + 1
        return self.script[self._name][min(number, len(self.script[self._name]) - 1)]


class Unlucky(Scripted):
    """A candidate that fails at one of its turns, with an unexpected type of error."""

    at: tuple[str, int]
    error: Exception

    def __init__(self, workload: Workload, name: str) -> None:
        super().__init__(workload, name)
        if self.at == (name, -1):
            raise self.error

    def turn(self) -> float:
        seconds = super().turn()
        if self.at == (self._name, self.turns[self._name]):
            raise self.error
        return seconds


@pytest.mark.parametrize("turn", [-1, 0, 1, 2])
@pytest.mark.parametrize("name", ["vmap", "vmap_compiled"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no form of it"), "no form of it"),
        (ImportError("no Triton"), "ImportError: no Triton"),
        (AssertionError(), "AssertionError:"),
        (FileNotFoundError(2, "No such file", "g++"), "FileNotFoundError: [Errno 2] No such file: 'g++'"),
        (torch.OutOfMemoryError("CUDA out of memory"), "CUDA out of memory"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_candidate_that_fails_at_any_time_of_anything_loses_and_the_others_go_on(
    name: str, turn: int, error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scripted.script = {"loop": [2.0], "vmap": [1.0], "vmap_compiled": [0.5]}
    Scripted.turns = {}
    Unlucky.at, Unlucky.error = (name, turn), error
    monkeypatch.setattr(autotune, "_Candidate", Unlucky)
    monkeypatch.setattr(autotune, "BUDGET_SECONDS", 60.0)
    timings = time_mappings(workload(), ("loop", "vmap"), compiled=True)
    assert timings.refused == {name: reason}
    assert set(timings.seconds) == ({"loop"} if name == "vmap" else {"loop", "vmap"})


@pytest.mark.usefixtures("quick")
def test_a_host_that_no_mapping_can_run_ends_the_benchmark_with_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise TypeError("not like that")

    monkeypatch.setattr("esper.population.workload.train_epoch", fail)
    timings = time_mappings(workload())
    assert timings.seconds == {}
    assert set(timings.refused) == set(MAPPINGS)
    assert all(why.startswith("the host: TypeError: not like that") for why in timings.refused.values())


def test_warm_up_and_outliers_do_not_count_and_the_hopeless_stop_early(monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted.script = {"loop": [1.0, 9.0], "vmap": [50.0, 40.0, 2.0], "matmul": [1.0, 2.1, 2.1]}
    Scripted.turns = {}
    monkeypatch.setattr(autotune, "_Candidate", Scripted)
    monkeypatch.setattr(autotune, "BUDGET_SECONDS", 60.0)
    timings = time_mappings(workload(), ("loop", "vmap", "matmul"))
    assert timings.seconds == {"loop": 9.0, "vmap": 2.0, "matmul": 2.1}
    assert Scripted.turns == {"loop": 2, "vmap": autotune.MAX_ROUNDS, "matmul": autotune.MAX_ROUNDS}, "after warm-up"


def test_a_benchmark_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted.script, Scripted.turns = {name: [1.0] for name in MAPPINGS}, {}
    monkeypatch.setattr(autotune, "_Candidate", Scripted)
    monkeypatch.setattr(autotune, "BUDGET_SECONDS", 0.0)
    time_mappings(workload())
    assert Scripted.turns == dict.fromkeys(MAPPINGS, 1), "one turn each after warm-up, however long that takes"
