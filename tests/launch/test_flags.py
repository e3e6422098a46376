"""Hydra's flags, every one that ``--hydra-help`` lists: it works, or is refused in one line that says what to do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hydra._internal.utils import get_args_parser

from esper.config import CONF_DIR
from esper.launch.entries import EVALUATE, TRAIN
from tests.tiers import few

if TYPE_CHECKING:
    from command_line import CommandLine

SHOWS = {
    "--help": ("--help",),
    "--hydra-help": ("--hydra-help",),
    "--version": ("--version",),
    "--cfg": ("--cfg", "job"),
    "--resolve": ("--cfg", "job", "--resolve"),
    "--package": ("--cfg", "job", "--package", "wandb"),
    "--info": ("--info", "all"),
    "--shell-completion": ("--shell-completion", "install=bash"),
}
"""Flags that only print something."""

RUNS = {"--run": (), "--multirun": ("seed=1,2",), "--config-dir": ("mine",), "--config-name": ("{root}",)}
"""Flags with which jobs run, and their result."""

REFUSED = {
    "--config-path": (("conf",), "add a folder to it with --config-dir=<folder>"),
    "--experimental-rerun": (("x.pickle",), "resume a run with resume=<folder>"),
}
"""Flags that Esper does not support, and the alternative."""

ENTRIES = {entry.config_name: entry for entry in (TRAIN, EVALUATE)}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Make a user's folder with a root configuration for each command, a preset, and a group."""
    folder = tmp_path / "mine"
    for name, text in {
        "my_config.yaml": "defaults:\n  - config\n  - _self_\nseed: 5\n",
        "my_evaluate.yaml": "defaults:\n  - evaluate\n  - _self_\nseed: 5\n",
        "preset/fast.yaml": "# @package _global_\ndefaults:\n  - smoke\n  - _self_\nseed: 6\nppo: {lr: 0.25}\n",
        "preset/few.yaml": "# @package _global_\nnum_hosts: 7\n",
        "study/sixteen.yaml": "# @package _global_\nseed: 16\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_every_flag_is_tried_here() -> None:
    listed = {next(name for name in action.option_strings if name[:2] == "--") for action in flags()}
    assert listed == {*SHOWS, *RUNS, *REFUSED}


def flags() -> list[argparse.Action]:
    return [action for action in get_args_parser()._actions if action.option_strings]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("flag", SHOWS)
@few(5)
def test_a_flag_that_shows_something_shows_it_and_leaves_nothing(
    esper: CommandLine, tmp_path: Path, flag: str, entry: str
) -> None:
    code, err, runs = esper(*SHOWS[flag], entry=ENTRIES[entry])
    assert (code, err, runs) == (0, "", [])
    assert esper.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("flag", RUNS)
@few(3)
def test_a_flag_with_which_jobs_run_runs_them(esper: CommandLine, mine: Path, flag: str, entry: str) -> None:
    after = [word.format(root=f"my_{entry}") for word in RUNS[flag]]
    folder = ["--config-dir", "mine"] if flag == "--config-name" else []
    words = ["checkpoint=x"] if entry == "evaluate" else []
    code, err, runs = esper(*folder, flag, *after, *words, entry=ENTRIES[entry])
    assert (code, err) == (0, "")
    seeds = {"--multirun": [1, 2], "--config-name": [5]}.get(flag, [0])
    assert [config.seed for config, _ in runs] == seeds


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("flag", REFUSED)
def test_a_flag_that_esper_does_not_take_says_what_to_do(esper: CommandLine, flag: str, entry: str) -> None:
    after, way_out = REFUSED[flag]
    code, err, runs = esper(flag, *after, entry=ENTRIES[entry])
    assert (code, runs, err.count("\n")) == (2, [], 1)
    assert err.startswith(f"error: {flag}")
    assert way_out in err


@pytest.mark.parametrize("short", ["-h", "-c=job", "-i=defaults", "-sc install=fish"])
def test_short_names_of_flags_work_too(esper: CommandLine, short: str) -> None:
    assert esper(*short.replace("=job", " job").replace("=defaults", " defaults").split())[:2] == (0, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nope"], "unrecognized arguments: --nope"),
        (["--config-dir"], "argument --config-dir/-cd: expected one argument"),
        (["--config-dir", "nowhere"], "--config-dir: no such folder 'nowhere'"),
        (["--cfg", "nope"], "argument --cfg/-c: invalid choice: 'nope'"),
        (["--info", "nope"], "argument --info/-i: invalid choice: 'nope'"),
        (["--resolve"], "--resolve says how --cfg shows a configuration: add --cfg=job"),
        (["--package", "ppo"], "--package says how --cfg shows a configuration: add --cfg=job"),
        (["-m", "--cfg", "job"], "--multirun and --cfg do not go together: use one of them"),
        (["--run", "-m"], "--run and --multirun do not go together"),
        (["--cfg", "job", "--info", "all"], "--cfg and --info do not go together"),
        (["--shell-completion"], "--shell-completion needs one word, install=<shell> or "),
        (["--shell-completion", "install=csh"], "the shell being bash, fish, zsh; got install=csh"),
        (["--shell-completion", "query=bash"], "is what a shell asks"),
        (["--config-name", "nope"], "--config-name: no nope.yaml among Esper's own files or in the folder of --config"),
        (["--config-name", "preset/digits_mixed"], "preset/digits_mixed is no root configuration of this command: let"),
        (
            ["--config-name", "preset/smoke"],
            "preset/smoke.yaml: Could not override 'recipe'. No match in the defaults list",
        ),
        (["--config-name", "evaluate", "checkpoint=x"], "evaluate is no root configuration of this command"),
        (["-m", "--config-name", "evaluate", "checkpoint=x"], "evaluate is no root configuration of this command"),
        (["hydra.mode=MULTIRUN"], "this is a sweep of several runs: start it with -m"),
        *([[flag, "bogus=1"], "unknown key 'bogus'"] for flag in ("--help", "--hydra-help", "--cfg=job", "--info=all")),
    ],
)
@few(12)
def test_flags_that_do_not_fit_are_refused_in_one_line(
    esper: CommandLine, tmp_path: Path, words: list[str], message: str
) -> None:
    code, err, runs = esper(*words)
    assert (code, runs, err.count("\n")) == (2, [], 1)
    assert err.startswith("error: ")
    assert message in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["preset=smoke", "debug=fast"])
def test_an_evaluation_takes_no_presets_of_training(esper: CommandLine, word: str) -> None:
    code, err, _ = esper.evaluate("checkpoint=x", f"+{word}")
    assert (code, err) == (
        2,
        f"error: {word} is of training; what an evaluation judges follows from checkpoint=<run>\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "seeds"), [([], [6]), (["-m", "seed=1,2"], [1, 2])])
def test_presets_of_a_folder_of_ones_own_train(
    esper: CommandLine, mine: Path, flags: list[str], seeds: list[int]
) -> None:
    code, err, runs = esper("--config-dir", "mine", "+preset=fast", *flags)
    assert (code, err) == (0, "")
    assert [config.seed for config, _ in runs] == seeds
    assert {config.ppo.lr for config, _ in runs} == {0.25}
    assert {config.trainer.num_envs for config, _ in runs} == {4}, "what it builds on is Esper's own"


@pytest.mark.parametrize(("flags", "count"), [([], 1), (["-m", "seed=1,2"], 2)])
def test_presets_of_a_folder_of_ones_own_evaluate(esper: CommandLine, mine: Path, flags: list[str], count: int) -> None:
    code, err, runs = esper.evaluate("--config-dir", "mine", "+preset=few", *flags)
    assert (code, err) == (0, "")
    assert [config.num_hosts for config, _ in runs] == [7] * count  # type: ignore[attr-defined]


def test_a_group_of_ones_own_is_swept_over_and_named(esper: CommandLine, mine: Path) -> None:
    code, err, [(config, folder)] = esper("-m", "--config-dir", "mine", "+study=glob(six*)")
    assert (code, err, config.seed) == (0, "", 16)
    assert folder.name.startswith("study_sixteen-seed16-")


def test_a_file_that_would_not_be_read_is_refused(esper: CommandLine, tmp_path: Path, mine: Path) -> None:
    own = (CONF_DIR / "preset" / "smoke.yaml").read_text()
    (mine / "preset" / "smoke.yaml").write_text(own)
    assert esper("--config-dir", "mine", "+preset=smoke")[:2] == (0, ""), "a copy says the same"
    (mine / "preset" / "smoke.yaml").write_text(own + "seed: 3\n")
    code, err, runs = esper("--config-dir", "mine", "+preset=smoke")
    assert (code, runs) == (2, [])
    assert "mine/preset/smoke.yaml has the name of one of Esper's own files, which is read instead" in err


@pytest.mark.parametrize(
    ("entry", "advice"), [("config", "remove it, or resume it with resume=auto"), ("evaluate", "or remove it")]
)
def test_a_taken_folder_is_refused_with_advice_that_the_command_can_follow(
    esper: CommandLine, tmp_path: Path, entry: str, advice: str
) -> None:
    (tmp_path / "outputs" / "mine").mkdir(parents=True)
    (tmp_path / "outputs" / "mine" / "status.json").touch()
    words = ["checkpoint=x"] if entry == "evaluate" else []
    code, err, _ = esper("name=mine", *words, entry=ENTRIES[entry])
    assert code == 2
    assert err.endswith(f"hydra.run.dir=<folder>, {advice}\n")
