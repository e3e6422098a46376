"""Sweeps: the same command uses the same folders, and one failing job affects no other."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import processes
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import MissingConfigException

from esper.config import CONF_DIR, Config, compose, to_yaml
from esper.config.errors import RunError, UsageError, explain
from esper.config.naming import configuration_letters, readable, sweep_name
from esper.launch import cli
from esper.launch.entries import EVALUATE, TRAIN, Entry
from esper.launch.sweep import check_size
from esper.runtime.preemption import Preempted
from esper.runtime.run_folder import RunFolder, RunState

if TYPE_CHECKING:
    from command_line import CommandLine

SWEEPS = sorted(path.stem for path in (CONF_DIR / "sweep").glob("*.yaml"))


class Sweep:
    """Runner of sweeps whose jobs only make a folder, with a given order and outcome."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.ends: dict[int, BaseException] = {}
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        self.ran: list[tuple[Config, Path]] = []
        self._monkeypatch.setattr(sys, "argv", ["esper-train", "-m", *words])
        code = 0
        try:
            cli.run(TRAIN, self._work, self._check)
        except SystemExit as end:
            code = int(end.code or 0)
        self.out, self.err = self._capsys.readouterr()
        return code

    def _work(self, config: Config, run_dir: Path, **options: bool) -> None:
        assert options == {"isolated": True, "quiet": False}
        self.ran.append((config, run_dir))
        folder = RunFolder(run_dir)
        folder.config.write_text(to_yaml(config))
        folder.status(RunState.RUNNING)
        if config.seed in self.ends:
            raise self.ends[config.seed]
        controllers = [{"name": "learned", "episode_return": {"mean": 1.5, "sem": 0.1}}]
        folder.write_result({"controllers": controllers, "wall_seconds": 61.0})
        folder.status(RunState.FINISHED)

    def _check(self, config: Config) -> None:
        if config.seed == 13:
            raise ValueError("seed must not be 13")
        if config.seed == 14:
            raise MemoryError

    @property
    def seeds(self) -> list[int]:
        return [config.seed for config, _ in self.ran]


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sweep:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Sweep(monkeypatch, capsys)


def states(root: Path) -> dict[str, str]:
    """Return the state of each job folder of the only sweep."""
    [sweep_dir] = (root / "multirun").iterdir()
    return {path.parent.name: json.loads(path.read_text())["state"] for path in sorted(sweep_dir.glob("*/status.json"))}


@pytest.mark.slow
def test_jobs_have_folders_named_by_what_is_swept_seed_and_configuration(sweep: Sweep, tmp_path: Path) -> None:
    assert sweep("+preset=smoke", "seed=1,2", "ppo.ent_coef=0.01,0.03") == 0
    folders = [run_dir for _, run_dir in sweep.ran]
    assert len({folder.parent for folder in folders}) == 1
    assert folders[0].parent.parent == tmp_path / "multirun"
    assert folders[0].parent.name.startswith("smoke-ent_coef-seed-")
    starts = [f"ent_coef_{coefficient}-seed{seed}-" for seed in (1, 2) for coefficient in ("0.01", "0.03")]
    assert all(folder.name.startswith(start) for folder, start in zip(folders, starts, strict=True))
    assert all(config.name == run_dir.name for config, run_dir in sweep.ran)
    assert {config.wandb.group for config, _ in sweep.ran} == {folders[0].parent.name}


def test_the_same_command_skips_finished_runs_and_goes_on_with_the_others(sweep: Sweep, tmp_path: Path) -> None:
    words = ("+preset=smoke", "seed=1,2,3", "trainer.num_iterations=3")
    sweep.ends = {1: RunError("disk full"), 2: ValueError("a bug")}
    assert sweep(*words) == 1
    assert sweep.seeds == [1, 2, 3]
    assert sorted(states(tmp_path).values()) == ["failed", "failed", "finished"]
    before = {config.seed: run_dir for config, run_dir in sweep.ran}
    sweep.ends = {}
    assert sweep(*words[::-1], "telemetry.plots=false", "devices=[cpu,cpu]") == 0, "in another order, watched otherwise"
    assert sweep.seeds == [1, 2]
    assert {config.seed: run_dir for config, run_dir in sweep.ran} == {seed: before[seed] for seed in (1, 2)}
    assert all(config.resume == "auto" for config, _ in sweep.ran)
    assert sweep(*words) == 0
    assert sweep.ran == []
    assert "3 jobs, 3 finished" in sweep.out


def test_a_failing_job_is_marked_and_the_table_and_exit_code_say_so(sweep: Sweep, tmp_path: Path) -> None:
    sweep.ends = {1: RunError("disk full"), 2: KeyError("a bug")}
    assert sweep("+preset=smoke", "seed=1,2,3") == 1
    assert sweep.seeds == [1, 2, 3]
    assert list(states(tmp_path).values()) == ["failed", "failed", "finished"]
    rows = {line.split()[0]: line for line in sweep.out.splitlines() if line.strip()[:1].isdigit()}
    assert "failed" in rows["0"]
    assert "finished" in rows["2"]
    assert "+1.50" in rows["2"]
    assert "1:01" in rows["2"]
    assert "disk full" in sweep.out
    assert "not every job of multirun/smoke-seed-" in sweep.err


@pytest.mark.slow
def test_a_job_that_cannot_be_run_is_left_out_and_marked(sweep: Sweep, tmp_path: Path) -> None:
    assert sweep("+preset=smoke", "seed=1,13,2", "ppo.lr=0.1") == 1
    assert sweep.seeds == [1, 2]
    assert "job 1 (seed=13) is left out: seed must not be 13" in sweep.out
    found = states(tmp_path)
    [refused] = [name for name, state in found.items() if state == "failed"]
    assert refused.startswith("refused-")
    assert sorted(found.values()) == ["failed", "finished", "finished"]


def test_a_job_too_big_for_this_machine_is_left_out_by_itself_with_the_keys_that_cost(sweep: Sweep) -> None:
    assert sweep("+preset=smoke", "seed=1,14,2", "trainer.num_envs=8") == 1
    assert sweep.seeds == [1, 2]
    assert "job 1 (seed=14) is left out: out of memory (MemoryError): lower trainer.num_envs (8), " in sweep.out


def test_a_value_of_the_wrong_type_costs_its_own_jobs_only(sweep: Sweep) -> None:
    assert sweep("+preset=smoke", "seed=1,2", "ppo.lr=0.1,fast") == 1
    assert [(config.seed, config.ppo.lr) for config, _ in sweep.ran] == [(1, 0.1), (2, 0.1)]
    assert "ppo.lr must be a number, got 'fast'" in sweep.out
    assert "2 of 4 jobs of multirun/smoke-" in sweep.err, "the same command would not resume them"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        *(
            (f"seed={empty}", f"seed={empty} has no value, so that this sweep has no job: name at least one")
            for empty in ("range(0)", "range(3,1)", "range(1,3,-1)", "shuffle(range(0))", "range(0.5,0.1)")
        ),
        ("seed=interval(0,1)", "an interval has no values of its own: use range(...) or choice(...)"),
        ("seed=range(1,3,0)", "a range has finite ends, and steps that are not 0"),
        ("seed=range(0,inf)", "a range has finite ends, and steps that are not 0"),
        ("seed=range(nan,1)", "a range has finite ends, and steps that are not 0"),
        (
            "seed=range(100000000)",
            "this sweep has 100000000 jobs or more at seed=range(100000000): a sweep has at most",
        ),
        ("seed=shuffle(range(100000000))", "this sweep has 100000000 jobs or more"),
        ("seed=range(0,1,1e-12)", "this sweep has 1000000000000 jobs or more"),
    ],
)
def test_a_sweep_without_a_job_or_with_too_many_is_refused_before_jobs_are_listed(word: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        check_size(OverridesParser.create().parse_overrides([word]))
    assert message in str(refusal.value)


@pytest.mark.parametrize("word", ["seed=range(0)", "+preset=glob(zzz*)", "+sweep=glob(zzz*)"])
@pytest.mark.parametrize("entry", [TRAIN, EVALUATE])
def test_a_command_whose_sweep_has_no_job_ends_in_one_line(
    esper: CommandLine, tmp_path: Path, word: str, entry: Entry
) -> None:
    code, err, runs = esper("-m", word, entry=entry)
    assert (code, err, runs) == (
        2,
        f"error: {word} has no value, so that this sweep has no job: name at least one\n",
        [],
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_request_to_end_ends_the_sweep_and_the_same_command_goes_on(sweep: Sweep, tmp_path: Path) -> None:
    sweep.ends = {2: Preempted(15)}
    assert sweep("+preset=smoke", "seed=1,2,3") == 143
    assert sweep.seeds == [1, 2]
    assert "interrupted" in sweep.out
    sweep.ends = {}
    assert sweep("+preset=smoke", "seed=1,2,3") == 0
    assert sweep.seeds == [2, 3]


def test_a_run_that_another_process_is_at_is_left_to_it(sweep: Sweep, tmp_path: Path) -> None:
    sweep.ends = {1: Preempted(15)}
    sweep("+preset=smoke", "seed=1,2")
    [(_, run_dir)] = sweep.ran
    sweep.ends = {}
    with RunFolder(run_dir).lock():
        assert sweep("+preset=smoke", "seed=1,2") == 1
    assert sweep.seeds == [2]
    assert "1 running elsewhere, 1 new" in sweep.out


def test_jobs_that_would_share_a_folder_are_refused(sweep: Sweep, tmp_path: Path) -> None:
    assert sweep("+preset=smoke", "seed=1,2", "name=x") == 2
    assert "jobs 0 and 1 of this sweep would share the run folder multirun/smoke-seed-" in sweep.err
    assert sweep("+preset=smoke", "seed=1,2", "resume=outputs/x") == 2
    assert "resume=outputs/x resumes one run: leave -m out" in sweep.err
    assert list(tmp_path.iterdir()) == []


def test_folders_of_ones_own_are_kept(sweep: Sweep, tmp_path: Path) -> None:
    assert sweep("+preset=smoke", "seed=1,2", "hydra.sweep.dir=my sweep", "hydra.sweep.subdir=s${seed}") == 0
    assert [run_dir for _, run_dir in sweep.ran] == [tmp_path / "my sweep" / "s1", tmp_path / "my sweep" / "s2"]


# ------------------------------------------------------------------------------------------------------------- presets


@pytest.mark.slow
def test_a_sweep_preset_is_a_sweep_of_its_name_and_is_changed_by_words(sweep: Sweep, tmp_path: Path) -> None:
    assert sweep("+sweep=smoke_seeds", "wandb.tags=[a]") == 0
    assert (sweep.seeds, sweep.ran[0][0].trainer.num_envs) == ([0, 1, 2], 4)
    assert sweep.ran[0][1].parent == tmp_path / "multirun" / "smoke_seeds"
    assert sweep("+sweep=smoke_seeds", "seed=7,8") == 0
    assert sweep.seeds == [7, 8]


def test_a_sweep_preset_without_m_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["esper-train", "+sweep=smoke_seeds"])
    with pytest.raises(SystemExit) as end:
        cli.run(TRAIN, lambda *_, **__: None, lambda _: None)
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: this is a sweep of several runs: start it with -m\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("preset", SWEEPS)
def test_every_sweep_preset_starts_with_a_command_that_composes(sweep: Sweep, preset: str) -> None:
    package, command, *_ = (CONF_DIR / "sweep" / f"{preset}.yaml").read_text().splitlines()
    assert package == "# @package _global_"
    assert command == f"# python -m esper.train -m +sweep={preset}"
    assert sweep(f"+sweep={preset}") == 0
    assert len(sweep.ran) > 1


# --------------------------------------------------------------------------------------------------------------- names


def test_a_sweeps_name_is_that_of_its_command() -> None:
    name = sweep_name("digits", None, ["+preset=digits", "ppo.ent_coef=0.01,0.03", "seed=range(3)"])
    assert name.startswith("digits-ent_coef-seed-")
    same = [["seed=range(3)", "ppo.ent_coef=0.01,0.03", "wandb.mode=offline", "+telemetry.level=debug", "devices=0"]]
    assert {sweep_name("digits", None, words) for words in same} == {name}
    assert sweep_name("digits", None, ["ppo.ent_coef=0.01,0.02", "seed=range(3)"]) != name
    assert sweep_name("digits", "mine", ["+sweep=mine", "num_threads=2"]) == "mine"
    assert sweep_name("digits", "mine", ["+sweep=mine", "seed=1"]).startswith("mine-")


def test_configurations_that_compute_the_same_share_their_letters() -> None:
    plain = {"seed": 1, "ppo": {"lr": 0.1}, "name": "a", "wandb": {"mode": "disabled"}, "devices": "cpu"}
    letters = configuration_letters(plain)
    assert configuration_letters(plain | {"name": "b", "wandb": {"mode": "online"}, "devices": [0, 1]}) == letters
    for change in ({"seed": 2}, {"ppo": {"lr": 0.2}}):
        assert configuration_letters(plain | change) != letters


@pytest.mark.parametrize(
    ("swept", "start"),
    [
        (["ppo.ent_coef=0.01", "seed=1", "slots.num_slots=3"], "ent_coef_0.01-num_slots_3-"),
        (["seed=1"], ""),
        (["slots.blueprints=[norm,attention]"], "blueprints_norm_attention-"),
        (["+families={a/b: 1}"], "families_a_b_1-"),
    ],
)
def test_a_folder_begins_with_what_is_swept(swept: list[str], start: str) -> None:
    assert readable(swept) == start
    assert len(readable(["x.y=" + "z" * 500])) < 100


@pytest.mark.parametrize("name", ["workers", "slurm", "processes", "ray_cluster"])
def test_a_launcher_whose_package_is_missing_says_what_to_install(name: str) -> None:
    text = (CONF_DIR / "hydra" / "launcher" / f"{name}.yaml").read_text()
    plugin = text.split("defaults:\n  - ")[1].split()[0]
    missing = MissingConfigException("", missing_cfg_file=f"hydra/launcher/{plugin}", options=["basic"])
    message = explain(missing, Config)
    assert message.startswith(f"hydra/launcher={name} needs more packages: pip install '.[")
    assert message.rpartition("'.[")[2] in text.replace("'.", "'") + "'"


@pytest.mark.slow
def test_two_processes_that_start_in_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    script = "from esper.config import compose; print(compose().name)"
    other = processes.run([sys.executable, "-c", script], check=True).stdout.strip()
    assert compose().name.rpartition("-")[2] != other.rpartition("-")[2]
