"""The command line: one clear line and an exit code for errors of use, Hydra's behaviour for everything else."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import processes
import pytest

from esper.config import Config, UsageError, compose, to_yaml
from esper.config.errors import RunError
from esper.config.paths import CONF_DIR
from esper.launch.cli import introduction
from esper.runtime.run_folder import RunFolder
from tests.tiers import few

PRESETS = ", ".join(sorted(path.stem for path in CONF_DIR.glob("preset/*.yaml")))
Outcome = tuple[int, str, list[tuple[Config, Path]]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["+preset=digts"],
            f"preset: unknown 'digts' (did you mean 'digits'?); choose from {PRESETS}",
        ),
        (["preset=digits"], "preset is added with a plus: +preset=<name>"),
        (["+debug=x"], "debug: unknown 'x'; choose from fast"),
        (["task=mnist"], "task: unknown 'mnist'; choose from cifar10, digits, fashion_mnist, "),
        (["host=mlp"], "host: unknown 'mlp'; choose from cifar10, cifar10_deep, cnn, custom, digits, "),
        (["trainer.num_envs=0"], "trainer.num_envs must be at least 1, got 0"),
        (["num_envs=8"], "unknown key 'num_envs' (did you mean 'trainer.num_envs'?); keys and sections: seed, devices"),
        (
            ["logger=[csv]"],
            "unknown key 'logger' (did you mean 'telemetry.loggers'?); keys and sections: seed, devices",
        ),
        (["ppo.num_env=8"], "unknown key 'ppo.num_env' (did you mean 'trainer.num_envs'?); keys of ppo: lr"),
        (["ppo.clip_coeff=0.1"], "unknown key 'ppo.clip_coeff' (did you mean 'clip_coef'?); keys of ppo: lr, adam_eps"),
        (["+bogus=1"], "unknown key 'bogus'; keys and sections: seed"),
        (["++ppo.bogus=1"], "unknown key 'ppo.bogus'; keys of ppo: lr"),
        (["instances.families.starved_3=1"], "to add it, use '+instances.families={starved_3: <value>}'"),
        (["ppo.lr=fast"], "ppo.lr must be a number, got 'fast'"),
        (["trainer.num_envs=1e3"], "trainer.num_envs must be a whole number, got '1000.0'"),
        (["env.mapping=lop"], "env.mapping: unknown 'lop' (did you mean 'loop'?); choose from auto, loop, vmap"),
        (["devices=[0,0]"], "devices=[0,0] names GPU 0 more than once: one rank per GPU"),
        (["devices=[cpu,0]"], "devices=[cpu,0] mixes GPUs and CPUs: ranks of one run use one kind"),
        (
            ["devices=[cpu,cpu,cpu]", "trainer.num_envs=2", "ppo.num_minibatches=1"],
            "gives 3 ranks but trainer.num_envs is 2",
        ),
        (["devices=[cpu,cpu]", "trainer.num_envs=5"], "ppo.num_minibatches is 4: set it to at most 2"),
        (["seed=null"], "seed: field 'seed' is not Optional (in seed=null)"),
        (["host.widths=8"], "(in host.widths=8)"),
        (["seed=???"], "no value for seed: use seed=<value>"),
        (["trainer.num_envs"], "cannot read 'trainer.num_envs': missing EQUAL at '<EOF>'; use key=value"),
        (["seed=1,2"], "3. To sweep over it, add --multirun to your command line"),
        (["=3"], "cannot read '=3': no key before the equals sign; use key=value"),
        (["~ppo.lr"], "~ppo.lr: ppo.lr cannot be deleted, it always has a value; use ppo.lr=<value>"),
        (["~seed"], "~seed: seed cannot be deleted, it always has a value; use seed=<value>"),
        (["~task=digits"], "~task=digits: task cannot be deleted, it always has a value; use task=<value>"),
        (["~host.widths"], "~host.widths: host.widths cannot be deleted"),
        (["ppo=[1]"], "ppo is a section and must have keys, got a list"),
        (["+evaluation.schedule={a: 3}"], "evaluation.schedule.a is a section and must have keys of its own, got 3"),
        (["+preset=smoke", "+preset=digits"], "preset is named twice: name it once, as preset=digits or the other"),
        (["seed=13"], "seed must not be 13"),
        (["-m", "seed=13,13"], "seed must not be 13"),
        (["-m", "seed=1,2", "ppo.lr=fast"], "ppo.lr must be a number, got 'fast'"),
        (["-m", "seed=1,2", "name=x"], "jobs 0 and 1 of this sweep would share the run folder multirun/"),
        (["--config-dir", "nowhere"], "--config-dir: no such folder 'nowhere'"),
        (["--cfg", "job", "ppo.bogus=1"], "unknown key 'ppo.bogus'; keys of ppo: lr"),
    ],
)
@few(16)
def test_errors_of_use_are_one_line_and_leave_nothing(
    esper: Callable[..., Outcome], tmp_path: Path, words: list[str], message: str
) -> None:
    code, err, runs = esper(*words)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert runs == []
    assert list(tmp_path.iterdir()) == []


def test_entries_of_dictionaries_can_be_taken_out(esper: Callable[..., Outcome]) -> None:
    _, _, [(config, _)] = esper("+preset=smoke", "~instances.families.starved_0")
    assert "starved_0" not in config.instances.families


def test_a_run_gets_its_configuration_and_its_folder(esper: Callable[..., Outcome], tmp_path: Path) -> None:
    code, err, [(config, run_dir)] = esper("+preset=smoke", "seed=4", "name=mine")
    assert (code, err) == (0, "")
    assert (config.seed, config.name, config.trainer.num_envs) == (4, "mine", 4)
    assert run_dir == tmp_path / "outputs" / "mine"
    assert [path.name for path in run_dir.iterdir()] == ["config.yaml"]
    assert Path.cwd() == tmp_path


def test_the_default_name_of_a_run_is_its_folder(esper: Callable[..., Outcome]) -> None:
    _, _, [(config, run_dir)] = esper("+preset=smoke", "seed=4")
    assert config.name.startswith("smoke-seed4-")
    assert run_dir.name == config.name


@pytest.mark.parametrize("file", ["config.yaml", "status.json"])
def test_a_folder_that_holds_a_run_is_refused_and_left_alone(
    esper: Callable[..., Outcome], tmp_path: Path, file: str
) -> None:
    folder = tmp_path / "outputs" / "mine"
    folder.mkdir(parents=True)
    (folder / file).write_text("precious")
    code, err, runs = esper("+preset=smoke", "name=mine")
    assert (code, runs) == (2, [])
    assert err.startswith(f"error: run folder outputs/mine already holds a run ({file}): choose another with name=")
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(file, "precious")]


@pytest.mark.parametrize("words", [["hydra.run.dir=file/x"], ["-m", "seed=1,2", "hydra.sweep.dir=file/x"]])
def test_a_folder_that_cannot_be_made_ends_in_one_line(
    esper: Callable[..., Outcome], tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "file").touch()
    code, err, runs = esper(*words)
    assert (code, runs) == (1, [])
    assert err.startswith("error: cannot write to file/x (Not a directory): choose another place with hydra.run.dir=")
    assert err.count("\n") == 1


def test_a_refusal_of_the_file_system_ends_in_one_line(
    esper: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    code, err, runs = esper("+preset=smoke", "name=mine")
    assert (code, runs) == (1, [])
    assert err.startswith("error: cannot write to outputs/mine (Permission denied): choose another place")
    assert err.count("\n") == 1
    assert not Path("outputs/mine").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only folders")
def test_a_read_only_output_folder_ends_in_one_line(esper: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir(mode=0o555)
    code, err, runs = esper("+preset=smoke", "name=mine")
    assert (code, runs) == (1, [])
    assert err.startswith("error: cannot write to outputs/mine (Permission denied)")


@pytest.mark.parametrize(("error", "code"), [(UsageError("too many slots"), 2), (RunError("disk full"), 1)])
def test_errors_of_use_from_inside_a_run_are_one_line(
    esper: Callable[..., Outcome], error: Exception, code: int
) -> None:
    assert esper("seed=1", fail={1: error}) == (code, f"error: {error}\n", [])


def test_bugs_show_their_traceback(esper: Callable[..., Outcome]) -> None:
    code, err, _ = esper("seed=1", fail={1: KeyError("a bug")})
    assert code == 1
    assert "Traceback" in err
    assert "a bug" in err
    assert "command_line.py" in err


def test_hydra_full_error_shows_where_an_error_of_use_arose(
    esper: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(UsageError, match="seed must not be 13"):
        esper("seed=13")


@pytest.mark.slow
def test_the_installed_module_refuses_from_any_folder(tmp_path: Path) -> None:
    done = processes.run([sys.executable, "-m", "esper.train", "+preset=nope"], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"error: preset: unknown 'nope'; choose from {PRESETS}\n"


# -------------------------------------------------------------------------------------------------------------- resume


def a_run(folder: Path, *words: str, state: str = "preempted") -> Path:
    """Make a folder like that of a run with these arguments."""
    config = compose("+preset=smoke", "env.mapping=matmul", *words, f"name={folder.name}")
    RunFolder.create(folder, to_yaml(config)).status(state)
    return folder


def test_resume_takes_folder_and_configuration_of_a_run_and_what_words_change(
    esper: Callable[..., Outcome], tmp_path: Path
) -> None:
    folder = a_run(tmp_path / "outputs" / "mine", "seed=4")
    words = ("trainer.num_iterations=9", "devices=[cpu,cpu]", "evaluation.schedule={first: {epoch: 2}}")
    code, err, [(config, run_dir)] = esper("resume=outputs/mine", *words)
    assert (code, err) == (0, "")
    assert run_dir.resolve() == folder
    assert (config.seed, config.name, config.env.num_epochs, config.resume) == (4, "mine", 8, "outputs/mine")
    assert (config.trainer.num_iterations, config.devices) == (9, ["cpu", "cpu"])
    assert config.evaluation.schedule["first"].epoch == 2
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"lightning: true",
            "resume: foreign/config.yaml is not of a run that can be resumed here: unknown key 'lightning'",
        ),
        (
            b"- a",
            "resume: foreign/config.yaml is not of a run that can be resumed here: a configuration has keys and values",
        ),
        (b": : x", "resume: foreign/config.yaml is not of a run that can be resumed here: "),
        (b"\xff", "resume: foreign is not a run folder (config.yaml is not text)"),
    ],
)
@few(2)
def test_a_foreign_folder_is_refused_by_name_and_in_the_way_of_no_other_run(
    esper: Callable[..., Outcome], tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.yaml").write_bytes(content)
    code, err, runs = esper("resume=foreign")
    assert (code, runs) == (2, [])
    assert message in err
    assert err.count("\n") == 1
    code, err, [(_, run_dir)] = esper("+preset=smoke", "resume=auto", f"hydra.run.dir={tmp_path}/new")
    assert (code, err, run_dir.name) == (0, "", "new")
    assert (tmp_path / "foreign" / "config.yaml").read_bytes() == content


def test_a_run_on_hosts_of_another_family_is_resumed_by_its_folder_too(
    esper: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Keys of ``host`` depend on its name."""
    config = compose("+preset=textbook", "env.mapping=matmul", "name=mine")
    assert config.host.name != compose().host.name
    RunFolder.create(tmp_path / "outputs" / "mine", to_yaml(config)).status("preempted")
    code, err, [(found, _)] = esper("resume=outputs/mine", "trainer.num_iterations=9")
    assert (code, err) == (0, "")
    assert found.host == config.host


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resume=nowhere"], "resume: nowhere is not a run folder (no config.yaml: No such file or directory)"),
        (["resume=outputs/mine", "+preset=digits"], "from that folder: leave +preset=digits out"),
        (["resume=outputs/mine", "host=digits_deep"], "from that folder: leave host=digits_deep out"),
        (["resume=outputs/mine", "hydra.run.dir=x"], "from that folder: leave hydra.run.dir=x out"),
        (["resume=outputs/mine", "ppo.bogus=1"], "unknown key 'ppo.bogus'; keys of ppo: lr"),
        (["resume=outputs/mine", "trainer.num_iterations=0"], "trainer.num_iterations must be at least 1, got 0"),
        (["-m", "resume=outputs/mine", "seed=1,2"], "resumes one run: leave -m out, or use resume=auto"),
    ],
)
@few(3)
def test_what_cannot_be_resumed_is_refused_in_one_line(
    esper: Callable[..., Outcome], tmp_path: Path, words: list[str], message: str
) -> None:
    a_run(tmp_path / "outputs" / "mine")
    code, err, runs = esper(*words)
    assert (code, runs) == (2, [])
    assert message in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


def test_auto_finds_the_newest_interrupted_run_of_the_same_configuration(
    esper: Callable[..., Outcome], tmp_path: Path
) -> None:
    outputs = tmp_path / "outputs"
    for number, (name, words, state) in enumerate(
        [
            ("older", ("seed=4",), "preempted"),
            ("killed", ("seed=4", "telemetry.console=off"), "running"),
            ("done", ("seed=4",), "finished"),
            ("other", ("seed=4", "ppo.lr=0.1"), "preempted"),
            ("longer", ("seed=4", "trainer.num_iterations=3"), "preempted"),
        ]
    ):
        folder = a_run(outputs / name, *words, state=state)
        os.utime(folder, (1000 + number, 1000 + number))
    (outputs / "evaluation").mkdir()
    (outputs / "evaluation" / "config.yaml").write_text("checkpoint: x\n")
    call = ("+preset=smoke", "seed=4", "resume=auto")
    _, _, [(config, run_dir)] = esper(*call)
    assert run_dir.resolve() == outputs / "killed"
    assert config.resume == "auto"
    with RunFolder(outputs / "killed").lock():
        _, _, [(_, run_dir)] = esper(*call)
    assert run_dir.resolve() == outputs / "older", "one that is being written is left alone"
    _, _, [(_, run_dir)] = esper("+preset=smoke", "seed=5", "resume=auto")
    assert run_dir.name.startswith("smoke-seed5-"), "and without one it is a new run"


def test_auto_finds_a_run_that_began_before_a_key_was_there(esper: Callable[..., Outcome], tmp_path: Path) -> None:
    folder = a_run(tmp_path / "outputs" / "mine", "seed=4", state="preempted")
    text = (folder / "config.yaml").read_text()
    assert "  verify: true\n" in text
    (folder / "config.yaml").write_text(text.replace("  verify: true\n", ""))
    _, _, [(_, run_dir)] = esper("+preset=smoke", "seed=4", "resume=auto")
    assert run_dir.resolve() == folder
    _, _, [(_, run_dir)] = esper("+preset=smoke", "seed=4", "task.verify=false", "resume=auto")
    assert run_dir.resolve() != folder


def test_auto_goes_on_in_a_folder_that_is_named(esper: Callable[..., Outcome], tmp_path: Path) -> None:
    folder = a_run(tmp_path / "outputs" / "mine", "seed=4", state="finished")
    code, _, [(_, run_dir)] = esper("+preset=smoke", "seed=4", "name=mine", "resume=auto")
    assert (code, run_dir.resolve()) == (0, folder)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["+preset=smoke", "seed=1", "hydra.run.dir=x"], "mine: preset=smoke seed=1"),
        (["hydra/launcher=workers"], "mine: the defaults"),
    ],
)
def test_the_first_line_says_what_differs_from_the_defaults(words: list[str], line: str) -> None:
    assert introduction("mine", words) == line
