"""Swept keys are found from the configurations; runs that differ only in their seed are one configuration."""

from __future__ import annotations

from pathlib import Path

from run_folders import config, metrics

from esper.report.folders import Run
from esper.report.grouping import arrange, shown


def run(path: str, seed: int = 0, *, state: str = "finished", iterations: int = 4, **changes: object) -> Run:
    rows = [metrics(number) for number in range(1, iterations + 1)]
    return Run(path=Path(path), state=state, config=config(seed, **changes), metrics=rows)


def test_swept_keys_are_those_that_differ_but_seed_name_and_devices() -> None:
    runs = [
        run(
            f"{seed}-{coef}",
            seed,
            ppo__ent_coef=coef,
            name=f"n{seed}{coef}",
            devices=[seed, coef],
            telemetry__level=coef,
        )
        for seed in (0, 1)
        for coef in (0.01, 0.03)
    ]
    sweep = arrange(runs)
    assert [(axis.key, axis.values) for axis in sweep.axes] == [("ppo.ent_coef", ("0.01", "0.03"))]
    assert [item.label for item in sweep.configurations] == ["ent_coef=0.01", "ent_coef=0.03"]
    assert [[member.seed for member in item.runs] for item in sweep.configurations] == [[0, 1], [0, 1]]
    assert sweep.common["task.name"] == "digits"
    assert "seed" not in sweep.common


def test_values_are_sorted_as_numbers() -> None:
    sweep = arrange([run(str(value), trainer__num_envs=value) for value in (16, 4, 128)])
    assert sweep.axes[0].values == ("4", "16", "128")
    assert [item.values for item in sweep.configurations] == [("4",), ("16",), ("128",)]


def test_keys_that_follow_another_were_not_swept_but_their_own_values_were() -> None:
    def slots(count: int, seeds: int) -> dict[str, object]:
        return {"slots__num_slots": count, "slots__max_developing": count, "slots__max_seeds": seeds}

    followed = arrange([run("a", **slots(1, 1)), run("b", **slots(3, 3))])  # type: ignore[arg-type]
    assert [axis.key for axis in followed.axes] == ["slots.num_slots"]
    assert followed.axes[0].along == ()
    fixed = arrange([run("a", **slots(1, 1)), run("b", **slots(3, 1))])  # type: ignore[arg-type]
    assert [axis.key for axis in fixed.axes] == ["slots.num_slots"]
    assert fixed.common["slots.max_seeds"] == "1"
    crossed = arrange([run("a", **slots(3, 1)), run("b", **slots(3, 3)), run("c", **slots(1, 1))])  # type: ignore[arg-type]
    assert [axis.key for axis in crossed.axes] == ["slots.num_slots", "slots.max_seeds"]


def test_keys_that_change_together_are_one_axis() -> None:
    other = {"task__batch_size": 8, "ppo__lr": 0.1, "env__num_epochs": 9, "trainer__num_steps": 9}
    sweep = arrange([run("a"), run("b", **other)])  # type: ignore[arg-type]
    (axis,) = sweep.axes
    assert (axis.key, axis.along) == ("task.batch_size", ("env.num_epochs", "ppo.lr"))


def test_a_key_that_some_runs_lack_is_shown_as_absent() -> None:
    more = run("b")
    more.config["instances"]["families"]["starved_0"] = 0.5
    sweep = arrange([run("a"), more])
    assert [(axis.key, axis.values) for axis in sweep.axes] == [("instances.families.starved_0", ("0.5", "–"))]


def test_keys_that_change_together_are_named_after_one_that_all_runs_have() -> None:
    other = run("b", ppo__lr=0.1)
    other.config = {"added": {"later": 1}, **other.config}
    (axis,) = arrange([run("a"), other]).axes
    assert (axis.key, axis.along) == ("ppo.lr", ("added.later",))


def test_equal_last_parts_are_told_apart_in_labels() -> None:
    a, b = run("a"), run("b", task__name="other")
    a.config["host"], b.config["host"] = {"name": "cnn"}, {"name": "cnn"}
    c = run("c")
    c.config["host"] = {"name": "deep"}
    labels = [item.label for item in arrange([a, b, c]).configurations]
    assert labels == [
        "task.name=digits, host.name=cnn",
        "task.name=digits, host.name=deep",
        "task.name=other, host.name=cnn",
    ]


def test_a_seed_counts_once_by_the_run_that_got_farthest() -> None:
    runs = [
        run("first", 0, state="failed", iterations=2),
        run("second", 0),
        run("third", 0, state="running"),
        run("b", 1),
    ]
    (configuration,) = arrange(runs).configurations
    assert [str(item.path) for item in configuration.runs] == ["second", "b"]
    assert [str(item.path) for item in configuration.repeats] == ["first", "third"]


def test_runs_without_a_readable_configuration_are_apart_and_all_kept() -> None:
    bare = [Run(path=Path(name), state="unknown") for name in ("x", "y")]
    sweep = arrange([run("a"), *bare])
    assert sorted(len(item.runs) for item in sweep.configurations) == [1, 2]
    assert arrange([]).configurations == ()


def refused(path: str, *words: str) -> Run:
    return Run(path=Path(path), state="failed", status={"overrides": list(words), "traceback": "no"})


def test_refused_jobs_are_grouped_by_the_values_in_their_arguments() -> None:
    finished = [run(f"{coef}", ppo__ent_coef=coef, slots__num_slots=1) for coef in (0.01, 0.02)]
    for member in finished:
        member.config["slots"].update(max_developing=1, max_seeds=1)
    words = ("+preset=smoke", "slots.num_slots=9", "telemetry.console=plain")
    jobs = [refused(f"refused-{coef}", f"ppo.ent_coef={coef}", *words) for coef in ("0.010", "2e-2")]
    sweep = arrange([*finished, *jobs])
    assert [(axis.key, axis.values) for axis in sweep.axes] == [
        ("slots.num_slots", ("1", "9")),
        ("ppo.ent_coef", ("0.01", "0.02")),
    ]
    assert [[str(item.path) for item in found.runs] for found in sweep.configurations] == [
        ["0.01"],
        ["0.02"],
        ["refused-0.010"],
        ["refused-2e-2"],
    ]
    assert sweep.common["ppo.lr"] == "0.001"


def test_jobs_that_were_all_refused_are_told_apart() -> None:
    jobs = [refused(f"{count}-{seed}", f"slots.num_slots={count}", f"seed={seed}") for count in (8, 9) for seed in "0x"]
    sweep = arrange(jobs)
    assert [item.label for item in sweep.configurations] == ["num_slots=8", "num_slots=9"]
    assert [[member.seed for member in item.runs] for item in sweep.configurations] == [[0, None]] * 2


def test_a_refused_run_seed_is_no_configuration_of_its_own() -> None:
    (configuration,) = arrange([run("0"), refused("x", "seed=x", "ppo.lr=[")]).configurations
    assert (configuration.label, len(configuration.runs)) == ("all runs", 2)


def test_values_are_written_as_on_the_command_line() -> None:
    assert [shown(value) for value in (True, None, [1, False], 1e-05, "x")] == [
        "true",
        "null",
        "[1,false]",
        "1e-05",
        "x",
    ]
