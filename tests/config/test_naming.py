"""Names of folders: one per configuration, whatever the order and spelling of arguments."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.config.naming import as_typed, configuration_letters, job_name, readable, sweep_name
from tests.tiers import few

if TYPE_CHECKING:
    from command_line import CommandLine

MAX_NAME = 255
"""Largest number of bytes in a file name."""

texts = st.text(max_size=300)
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    texts,
    st.lists(texts, max_size=4),
    st.sampled_from(["a", "A", "a_b", "a-b", "a b", "ä", "a\u0308", "x" * 90, "x" * 90 + "y", "..", "con", "/", "\0"]),
)
SWEPT = ("ppo.lr", "task.root", "slots.ids", "wandb.tags", "telemetry.level", "num_threads", "preset", "seed")
"""Relevant keys, ignored keys, a choice of a file, and the seed."""

jobs = st.fixed_dictionaries({key: values for key in SWEPT if key != "seed"} | {"seed": st.integers(min_value=0)})


def configured(job: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a job's arguments."""
    plain: dict[str, Any] = {"name": "run", "devices": "cpu", "env": {"num_epochs": 5}}
    for key, value in job.items():
        section, _, name = key.rpartition(".")
        if section:
            plain.setdefault(section, {})[name] = value
        elif key != "preset":
            plain[key] = value
    return plain


def words(job: dict[str, Any]) -> list[str]:
    return [f"{key}={as_typed(value)}" for key, value in job.items()]


@given(jobs, st.permutations(SWEPT))
def test_the_order_of_words_does_not_change_a_name(job: dict[str, Any], order: list[str]) -> None:
    assert job_name(configured(job), words({key: job[key] for key in order})) == job_name(configured(job), words(job))


@given(jobs, jobs, st.sets(st.sampled_from(SWEPT)))
def test_two_jobs_share_a_name_exactly_if_they_are_the_same(
    job: dict[str, Any], other: dict[str, Any], alike: set[str]
) -> None:
    other = other | {key: job[key] for key in alike}
    first, second = (str(job_name(configured(each), words(each))) for each in (job, other))
    # Folders of some file systems do not differ by the case of letters, or by how accents are put together.
    same = unicodedata.normalize("NFD", first).casefold() == unicodedata.normalize("NFD", second).casefold()
    counted = [{key: configured(each).get(key) for key in ("ppo", "slots", "task", "seed")} for each in (job, other)]
    assert same == (sorted(words(job)) == sorted(words(other)) and repr(counted[0]) == repr(counted[1]))


@given(jobs)
def test_a_name_is_one_that_every_file_system_takes(job: dict[str, Any]) -> None:
    for name in (
        str(job_name(configured(job), words(job))),
        f"{readable(words(job))}refused-01234567",
        sweep_name("digits", None, [f"{key}={as_typed(value)},1" for key, value in job.items()]),
    ):
        assert 0 < len(name.encode()) <= MAX_NAME
        assert not set(name) & set('/\\:*?"<>|')
        assert name.isprintable()
        assert name[0] not in "-. "
        assert name[-1] not in ". "


def test_names_of_a_sweep_of_many_keys_fit_too() -> None:
    name = sweep_name("digits", None, [f"section.key_{number}=1,2" for number in range(100)])
    assert len(name.encode()) <= MAX_NAME
    assert sweep_name("digits", None, [f"section.key_{number}=1,3" for number in range(100)]) != name


def test_a_name_that_is_not_cut_keeps_its_form() -> None:
    """Sweeps that are finished are found again."""
    plain = configured({"ppo.ent_coef": 0.01, "slots.num_slots": 3, "seed": 1})
    name = job_name(plain, ["ppo.ent_coef=0.01", "seed=1", "slots.num_slots=3"])
    assert str(name) == f"ent_coef_0.01-num_slots_3-seed1-{configuration_letters(plain)}"


def test_a_folder_is_known_by_its_letters_or_by_the_same_words() -> None:
    seen = {"ppo.lr": 0.001, "slots.ids": ["a"], "seed": 1}
    name = job_name(configured(seen), words(seen))
    assert name.means(f"ids_a-lr_1e-3-{name.end}"), "another order, another spelling"
    assert not name.means(f"ids_a-lr_0.001-seed11-{configuration_letters(configured(seen))}")
    unseen = {"telemetry.level": "debug", "num_threads": 2, "seed": 1}
    name = job_name(configured(unseen), words(unseen))
    assert name.means(f"num_threads_2-level_debug-{name.end}")
    assert name.means(f"level_debug-num_threads_2-{name.end}")
    assert not name.means(f"level_off-num_threads_2-{name.end}"), "which the letters do not tell apart"


# ------------------------------------------------------------------------------------------------------------- sweeps

LONG = "x" * 200


def folders(esper: CommandLine, *typed: str) -> list[str]:
    """Return the names of the job folders of a sweep."""
    code, err, runs = esper("-m", *typed)
    assert (code, err) == (0, "")
    return [run_dir.name for _, run_dir in runs]


@pytest.mark.slow
def test_jobs_with_long_values_have_folders_of_their_own_and_are_found_again(esper: CommandLine) -> None:
    typed = (f"wandb.tags=[{LONG},a],[{LONG},b]", f"wandb.project={LONG}1,{LONG}2")
    ran = folders(esper, "seed=1", *typed)
    assert len(set(ran)) == 4
    assert max(map(len, ran)) < MAX_NAME
    assert folders(esper, *reversed(typed), "seed=1") == []


def test_finished_jobs_are_found_again_when_words_are_in_another_order_and_spelling(
    esper: CommandLine, tmp_path: Path
) -> None:
    where = "hydra.sweep.dir=here"
    assert len(folders(esper, where, "trainer.num_envs=4,8", "ppo.lr=choice(1e-3)")) == 2
    assert folders(esper, where, "ppo.lr=choice(0.001)", "trainer.num_envs=8,4") == []
    for folder in (tmp_path / "here").iterdir():  # as they were named when the words were not sorted
        first, second, *rest = folder.name.split("-")
        folder.rename(folder.with_name("-".join([second, first, *rest])))
    assert folders(esper, where, "trainer.num_envs=4,8", "ppo.lr=choice(1e-3)") == []


@pytest.mark.parametrize(
    ("typed", "said", "count"),
    [
        (["seed=1,1"], ["job 1 (seed=1) is job 0 (seed=1) again, and is run once"], 1),
        (["ppo.lr=1e-3,0.001,0.002"], ["job 1 (ppo.lr=0.001) is job 0 (ppo.lr=0.001) again"], 2),
        (["+preset=smoke,[smoke]"], ["job 1 (+preset=[smoke]) is job 0 (+preset=smoke) again"], 1),
        (["trainer.num_steps=null,25"], ["job 1 (trainer.num_steps=25) is job 0 (trainer.num_steps=null) again"], 1),
        (["seed=13,1,13"], ["job 2 (seed=13) is job 0 (seed=13) again"], 1),
    ],
)
@few(2)
def test_jobs_that_are_the_same_are_run_once_and_named(
    esper: CommandLine, typed: list[str], said: list[str], count: int
) -> None:
    _, _, runs = esper("-m", *typed)
    assert len(runs) == count
    assert all(line in esper.out for line in said)


def test_jobs_that_are_given_names_are_run_under_each(esper: CommandLine) -> None:
    assert folders(esper, "name=a,b") == ["a", "b"]


def test_a_preset_in_a_folder_of_presets_names_its_runs(esper: CommandLine, tmp_path: Path) -> None:
    preset = tmp_path / "mine" / "preset" / "deep" / "er.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\nseed: 3\n")
    _, _, [(_, run_dir)] = esper("--config-dir", "mine", "+preset=deep/er")
    assert run_dir.name.startswith("deep_er-seed3-")
    _, _, [(_, run_dir)] = esper("-m", "--config-dir", "mine", "+preset=deep/er")
    assert run_dir.parent.parent.name == "multirun"
