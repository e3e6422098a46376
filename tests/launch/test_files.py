"""Configuration files with a mistake: one line with the file, the key, the value and the choices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from esper.config import CONF_DIR
from esper.config.plugins import activate
from tests.tiers import few

if TYPE_CHECKING:
    from command_line import CommandLine

GLOBAL = "# @package _global_\n"

# What the file preset/p.yaml says below its first line, and what is said about it after its name.
MISTAKES = {
    "unknown key": (
        "ppo:\n  clip_coeff: 0.1",
        "unknown key 'ppo.clip_coeff' (did you mean 'clip_coef'?); keys of ppo: ",
    ),
    "unknown section": ("pppo: {lr: 1}", "unknown key 'pppo' (did you mean 'ppo'?); keys and sections: seed, "),
    "key of a section at the root": ("num_envs: 8", "unknown key 'num_envs' (did you mean 'trainer.num_envs'?)"),
    "unknown key of an entry": (
        "evaluation: {schedule: {first: {epocj: 1}}}",
        "unknown key 'evaluation.schedule.first.epocj' (did you mean 'epoch'?); keys of evaluation.schedule.first: ",
    ),
    "unknown key of Hydra's": ("hydra: {nope: 1}", "unknown key 'hydra.nope'; keys of hydra: "),
    "a number for a key": ("3: 4", "unknown key '3'; keys and sections: "),
    "null for a key": ("ppo: {null: 4}", "Incompatible key type 'NoneType'"),
    "no colon": ("seed 3", "unknown key 'seed 3' (did you mean 'seed'?)"),
    "text for a number": ("ppo: {lr: fast}", "ppo.lr must be a number, got 'fast'"),
    "a fraction for a whole number": ("trainer: {num_envs: 8.5}", "trainer.num_envs must be a whole number, got '8.5'"),
    "infinity for a whole number": ("seed: 1e400", "seed must be a whole number, got 'inf'"),
    "text for true or false": ("ppo: {norm_adv: perhaps}", "ppo.norm_adv must be true or false, got 'perhaps'"),
    "unknown choice": (
        "env: {mapping: lop}",
        "env.mapping: unknown 'lop' (did you mean 'loop'?); choose from auto, loop,",
    ),
    "bare off": ("amp: off", "amp: unknown 'False'; choose from off, bf16, fp16"),
    "a list for a number": ("ppo: {lr: [1, 2]}", "ppo.lr must be a number, got '[1, 2]'"),
    "a mapping for a number": ("ppo: {lr: {a: 1}}", "ppo.lr must be a number, got \"{'a': 1}\""),
    "a number for a list": ("host: {widths: 8}", "host.widths must be a list, as in [a, b], got 8"),
    "text in a list of numbers": ("host: {widths: [8, a]}", "host.widths[1] must be a whole number, got 'a'"),
    "text for a mapping": (
        "instances: {families: intact}",
        "instances.families must be names with values, as in {a: 1}, got intact",
    ),
    "a number for a section": ("ppo: 3", "ppo is a section and must have keys (lr, adam_eps, "),
    "a list for a section": ("host: [3]", "host is a section and must have keys (name, "),
    "a list for text": ("hydra: {run: {dir: [1]}}", "hydra.run.dir must be one word, got [1]"),
    "null for a number": ("seed: null", "seed must be a value, not null"),
    "null for a section": ("ppo:", "ppo: field 'ppo' is not Optional"),
    "left open": ("seed: ???", "no value for seed: use seed=<value>"),
    "out of range": ("trainer: {num_envs: 0}", "trainer.num_envs must be at least 1, got 0"),
    "out of range of another key": (
        "ppo: {num_minibatches: 99}",
        "ppo.num_minibatches must be at most 32 (trainer.num",
    ),
    "below another key": ("trainer: {num_envs: 2}", "ppo.num_minibatches must be at most 2 (trainer.num_envs), got 4"),
    "out of range in an entry": ("instances: {families: {intact: -1}}", "instances.families.intact must be at least 0"),
    "unknown name of a registry": ("task: {name: mnist}", "task.name: unknown 'mnist'; choose from digits, "),
    "unknown name in a list": ("evaluation: {controllers: [nope]}", "evaluation.controllers: unknown 'nope'; choose "),
    "devices twice": ("devices: [0, 0]", "devices=[0,0] names GPU 0 more than once"),
    "no such module": ("plugins: [no_such_module]", "plugins: cannot import 'no_such_module'"),
    "unclosed bracket": ("ppo:\n  lr: [1, 2\nseed: 3", "line 4: while parsing a flow sequence: expected ',' or ']'"),
    "indented too far": ("ppo:\n lr: 1\n  seed: 3", "line 4: mapping values are not allowed here"),
    "tab": ("ppo:\n\tlr: 1", "line 3: while scanning for the next token: found character '\\t'"),
    "said twice": ("seed: 1\nseed: 2", "line 3: while constructing a mapping: found duplicate key seed"),
    "alias": ("ppo: *x", "line 2: found undefined alias 'x'"),
    "tag": ("seed: !!python/object/apply:os.getpid []", "line 2: could not determine a constructor for the tag"),
    "two documents": ("seed: 3\n---\nseed: 4", "line 3: expected a single document in the stream: but found another"),
    "a list": ("- a", "a configuration file has keys and values, not a list"),
    "no such key to take from": ("seed: ${nope}", "seed: Interpolation key 'nope' not found"),
    "a key of another type to take from": ("seed: ${ppo.lr}", "seed must be a whole number, got '0.001'"),
    "no such function": ("seed: ${esper.nope:}", "seed: Unsupported interpolation type esper.nope"),
    "no such grammar": ("ppo: {lr: '${a'}", "ppo.lr: no viable alternative at input '${a'"),
    "unknown preset to build on": (
        "defaults: [smoek, _self_]",
        "preset: unknown 'smoek' (did you mean 'smoke'?); choose from cifar10, ",
    ),
    "unknown file of a group": ("defaults: [/task: mnist]", "task: unknown 'mnist'; choose from cifar10, digits, "),
    "unknown file of a group in place of another": (
        "defaults: [override /task: mnist]",
        "task: unknown 'mnist'; choose from cifar10, digits, ",
    ),
    "unknown group": (
        "defaults: [/tusk: digits]",
        "no folder 'tusk' of configuration files, in which to look for 'dig",
    ),
    "unknown group in place of another": ("defaults: [override /tusk: digits]", "Could not override 'tusk'. No match"),
    "unknown file": ("defaults: [/nope]", "no nope.yaml among Esper's own files or in the folder of --config-dir"),
    "defaults that are no list": ("defaults: smoke", "Invalid defaults list in 'preset/p', defaults must be a list"),
    "a number among defaults": ("defaults: [3]", "Unsupported type in defaults : int"),
}


def write(folder: Path, text: str | bytes, file: str = "preset/p.yaml") -> None:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())


def refusal(esper: CommandLine, *words: str) -> str:
    """Return the one line with which a command is refused, after all checks."""
    code, err, runs = esper("--config-dir", "mine", *words, checked=True)
    assert (code, runs, err.count("\n")) == (2, [], 1), err
    return err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize("mistake", MISTAKES)
@few(16)
def test_a_mistake_in_a_preset_is_said_with_file_key_value_and_choices(
    esper: CommandLine, tmp_path: Path, mistake: str
) -> None:
    text, message = MISTAKES[mistake]
    write(tmp_path / "mine", f"{GLOBAL}{text}\n")
    assert refusal(esper, "+preset=p").startswith(f"preset/p.yaml: {message}")


@pytest.mark.parametrize(
    ("file", "text", "words", "message"),
    [
        ("preset/p.yaml", "seed: 3\n", ["+preset=p"], "preset/p.yaml: let its first line be '# @package _global_'"),
        ("preset/p.yaml", "", ["+preset=p"], "preset/p.yaml: let its first line be '# @package _global_'"),
        ("preset/p.yaml", "# @package\nseed: 3\n", ["+preset=p"], "preset/p.yaml: Expected header format: KEY VALUE"),
        ("preset/p.yaml", b"# @package _global_\nname: \xff\n", ["+preset=p"], "preset/p.yaml: is not UTF-8 text"),
        ("preset/p.yaml", f"{GLOBAL}defaults: [p]\n", ["+preset=p"], "a defaults list leads back to its own file"),
        (
            "task/p.yaml",
            "batchsize: 4\n",
            ["task=p"],
            "task/p.yaml: unknown key 'task.batchsize' (did you mean 'batch_",
        ),
        ("task/p.yaml", "batch_size: 0\n", ["task=p"], "task/p.yaml: task.batch_size must be at least 1, got 0"),
        ("host/p.yaml", "defaults: [cnn, _self_]\nwidhts: [4]\n", ["host=p"], "host/p.yaml: unknown key 'host.widhts'"),
        ("host/p.yaml", "defaults: [cnn, _self_]\nwidths: 4\n", ["host=p"], "host/p.yaml: host.widths must be a list"),
        (
            "p.yaml",
            "defaults: [config, _self_]\nppo: {lr: x}\n",
            ["--config-name=p"],
            "p.yaml: ppo.lr must be a number",
        ),
        (
            "sweep/p.yaml",
            f"{GLOBAL}hydra: {{sweeper: {{params: {{seed: '1,,2'}}}}}}\n",
            ["-m", "+sweep=p"],
            "sweep/p.yaml: hydra.sweeper.params.seed: cannot read 'seed=1,,2'",
        ),
        (
            "sweep/p.yaml",
            f"{GLOBAL}hydra: {{sweeper: {{params: {{sede: '1,2'}}}}}}\n",
            ["-m", "+sweep=p"],
            "sweep/p.yaml: unknown key 'sede' (did you mean 'seed'?)",
        ),
        (
            "sweep/p.yaml",
            f"{GLOBAL}hydra: {{sweeper: {{params: 3}}}}\n",
            ["-m", "+sweep=p"],
            "sweep/p.yaml: hydra.sweeper.params must be names with values, as in {a: 1}, got 3",
        ),
    ],
)
@few(5)
def test_a_mistake_in_any_file_is_said_with_its_name(
    esper: CommandLine, tmp_path: Path, file: str, text: str | bytes, words: list[str], message: str
) -> None:
    write(tmp_path / "mine", text, file)
    assert refusal(esper, *words).startswith(message)


def test_a_word_that_wins_over_a_file_is_at_fault_itself(esper: CommandLine, tmp_path: Path) -> None:
    write(tmp_path / "mine", f"{GLOBAL}trainer: {{num_envs: 0}}\n")
    assert refusal(esper, "+preset=p", "trainer.num_envs=-1") == "trainer.num_envs must be at least 1, got -1"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("host.widths=[8,8]", "host.kernel_sizes must have one entry per block of host.widths (2), got [3, 3, 3]"),
        ("hydra/launcher=worker", "hydra/launcher: unknown 'worker' (did you mean 'workers'?); choose from "),
    ],
)
def test_no_file_is_at_fault_where_a_word_contradicts_it(
    esper: CommandLine, tmp_path: Path, word: str, message: str
) -> None:
    write(tmp_path / "mine", f"{GLOBAL}seed: 4\n")
    assert refusal(esper, "+preset=smoke", word).startswith(message)


def test_the_last_file_that_says_it_is_at_fault(esper: CommandLine, tmp_path: Path) -> None:
    write(tmp_path / "mine", f"{GLOBAL}trainer: {{num_envs: 0}}\n", "preset/base.yaml")
    write(tmp_path / "mine", f"{GLOBAL}defaults: [base, _self_]\nseed: 4\n")
    assert refusal(esper, "+preset=p").startswith("preset/base.yaml: trainer.num_envs")
    write(tmp_path / "mine", f"{GLOBAL}defaults: [base, _self_]\ntrainer: {{num_envs: -1}}\n")
    assert refusal(esper, "+preset=p").startswith("preset/p.yaml: trainer.num_envs must be at least 1, got -1")


@pytest.mark.slow
def test_a_value_that_a_file_leaves_open_may_come_from_a_word_or_a_later_file(
    esper: CommandLine, tmp_path: Path
) -> None:
    write(tmp_path / "mine", f"{GLOBAL}seed: ???\n", "preset/base.yaml")
    _, err, [(config, _)] = esper("--config-dir", "mine", "+preset=base", "seed=5")
    assert (err, config.seed) == ("", 5)
    write(tmp_path / "mine", f"{GLOBAL}defaults: [base, _self_]\nseed: 4\n")
    _, err, [(config, _)] = esper("--config-dir", "mine", "+preset=p")
    assert (err, config.seed) == ("", 4)
    _, err, runs = esper("-m", "--config-dir", "mine", "+preset=base", "seed=1,2")
    assert (err, [config.seed for config, _ in runs]) == ("", [1, 2])


def test_jobs_of_a_sweep_name_the_file_too(esper: CommandLine, tmp_path: Path) -> None:
    write(tmp_path / "mine", f"{GLOBAL}trainer: {{num_envs: 0}}\n")
    assert refusal(esper, "-m", "+preset=p", "seed=1,2").startswith(
        "preset/p.yaml: trainer.num_envs must be at least 1"
    )


@pytest.mark.parametrize("word", ["host=3", "host=[3]", "task=[digits,3]", "+preset=[smoke,3]", "host=null"])
def test_files_are_chosen_by_name(esper: CommandLine, tmp_path: Path, word: str) -> None:
    (tmp_path / "mine").mkdir()
    key, _, value = word.lstrip("+").partition("=")
    assert refusal(esper, word) == f"{key} must be the name of a file, or a list of names, got {value}"


@pytest.mark.slow
def test_a_mistake_in_a_file_of_our_own_is_named(
    esper: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a preset of Esper's after a key was renamed."""
    assert (CONF_DIR / "preset" / "smoke.yaml").is_file()
    write(tmp_path / "mine", f"{GLOBAL}defaults: [smoke, _self_]\nslots: {{num_slots: 99}}\n")
    assert refusal(esper, "+preset=p").startswith("preset/p.yaml: slots.num_slots")
    write(tmp_path / "mine", f"{GLOBAL}defaults: [smoke, _self_]\ntrainer: {{num_envs: 1}}\n")
    assert refusal(esper, "+preset=p") == (
        "preset/smoke.yaml: ppo.num_minibatches must be at most 1 (trainer.num_envs), got 2"
    )


def test_what_a_users_code_does_is_not_the_fault_of_the_file_that_names_it(
    esper: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    loader = "from esper.tasks import register_task\ndef load(options): return None\nregister_task('own', load)"
    write(tmp_path, loader, "own_digits.py")
    write(Path("mine"), GLOBAL + "plugins: [own_digits]")
    try:
        said = refusal(esper, "+preset=p", "task=digits", "task.name=own")
    finally:
        activate([])
    assert said == "task.name=own: own_digits.load returns a NoneType, not a TaskData"
