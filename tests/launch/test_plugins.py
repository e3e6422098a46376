"""Plugins: faults are reported in one line, and registrations do not affect other runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import SMALL
from omegaconf import DictConfig
from test_sweep import Sweep, states

from esper.blueprints import blueprint_ids
from esper.config import Config, UsageError, compose, plugins
from esper.config.errors import refused
from esper.config.plugins import activate
from esper.config.store import load
from esper.controllers import CONTROLLERS
from esper.envs.rewards import REWARDS
from esper.experiment.preflight import preflight
from esper.launch.entries import TRAIN
from esper.tasks import TASKS
from esper.training.run import train

Write = Callable[..., None]

WIDE = """
from torch import nn
from esper.blueprints import register_blueprint
from esper.blueprints.residual import Residual

def build(channels):
    return Residual(channels, nn.Conv2d(channels, channels, {kernel}, padding={kernel} // 2))

register_blueprint("cnn", "wide", build)
"""


BLUEPRINT = "from esper.blueprints import register_blueprint\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write modules by name, and undo their registrations afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "_seen", {})

    def modules(**sources: str) -> None:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)

    yield modules
    activate([])
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def refusal(*words: str) -> str:
    """Return the refusal of a run before it starts."""
    with pytest.raises(UsageError) as caught, refused(TRAIN.schema):
        preflight(compose("+preset=smoke", *words))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "plugins: cannot import 'broken_a': ModuleNotFoundError: No module named 'broken_a'"),
        (
            "import torch\n1 / 0",
            "plugins: cannot import 'broken_a': ZeroDivisionError: division by zero (broken_a.py:2)",
        ),
        (
            "import nowhere",
            "plugins: cannot import 'broken_a': ModuleNotFoundError: No module named 'nowhere' (broken_a.py:1)",
        ),
        ("def f(:", "plugins: cannot import 'broken_a': SyntaxError: invalid syntax (broken_a.py:1)"),
        ("import sys\nsys.exit()", "plugins: cannot import 'broken_a': it asks to exit with code None (broken_a.py:2)"),
        ("raise BaseExceptionGroup('', [ValueError()])", None),
        (
            f"{BLUEPRINT}register_blueprint('rnn', 'a', print)",
            "no blueprints for host family 'rnn'",
        ),
        (
            f"{BLUEPRINT}register_blueprint('cnn', 'a b', print)",
            "cnn blueprint 'a b': a name is made of letters",
        ),
        (
            f"{BLUEPRINT}register_blueprint('cnn', 'a', None)",
            "cnn blueprint 'a' must be a function, got None",
        ),
        (
            f"{BLUEPRINT}register_blueprint('cnn', 'norm', print)",
            "'norm' already, esper.blueprints.cnn.norm.build: choose another name for",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line_with_its_place(
    write: Write, source: str | None, message: str | None
) -> None:
    if source is not None:
        write(broken_a=source)
    said = refusal("plugins=[broken_a]")
    assert said.startswith("plugins: cannot import 'broken_a': ")
    assert message is None or message in said
    assert "broken_a" not in sys.modules


BUILDERS = {
    "raises": ("1 / 0", "for 8 channels: ZeroDivisionError: division by zero (builder_a.py:4)"),
    "exits": ("import sys; sys.exit(1)", "for 8 channels: it asks to exit with code 1 (builder_a.py:4)"),
    "nothing": ("pass", "it must be a torch.nn.Module, not a NoneType"),
    "a class": ("return nn.Identity", "it must be a torch.nn.Module, not a type"),
    "lazy": ("return nn.LazyConv2d(8, 1)", "parameter 'weight' has no shape before the first pass (a lazy layer)"),
    "varying": (
        "n.append(0); return nn.Conv2d(channels, channels, 1 + 2 * len(n), padding=len(n))",
        "parameter 'weight' is float32 [8, 8, 3, 3] in one build and float32 [8, 8, 5, 5] in another",
    ),
    "does not run": ("return nn.Linear(3, 3)", "it does not run on [2, 8, 4, 4]: RuntimeError: mat1 and mat2 shapes"),
}


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_blueprint_that_cannot_be_built_or_run_is_one_line_with_its_builder(write: Write, kind: str) -> None:
    body, message = BUILDERS[kind]
    source = f"from torch import nn\nn = []\ndef build(channels):\n    {body}\n"
    write(builder_a=f"{source}{BLUEPRINT}register_blueprint('cnn', 'own', build)")
    said = refusal("plugins=[builder_a]", "slots.blueprints=[own]")
    assert said.startswith("plugins: blueprint 'own' of cnn hosts (builder_a.py:3): ")
    assert message in said


@pytest.mark.parametrize("kind", ["exits", "nothing"])
def test_a_blueprint_that_no_run_may_grow_harms_none(write: Write, kind: str) -> None:
    source = f"from torch import nn\nn = []\ndef build(channels):\n    {BUILDERS[kind][0]}\n"
    write(builder_a=f"{source}{BLUEPRINT}register_blueprint('cnn', 'own', build)")
    preflight(compose("+preset=smoke", "plugins=[builder_a]", "slots.blueprints=[norm]"))


LOADERS = {
    "nothing": ("return None", "returns a NoneType, not a TaskData"),
    "raises": (
        "open('/nowhere/x')",
        "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/x' (loader_a.py:2)",
    ),
    "exits": ("raise SystemExit", "it asks to exit with code None (loader_a.py:2)"),
    "a wrong split": ("from esper.tasks import Split; Split(1, 2)", "AttributeError: "),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_that_fails_or_returns_no_data_is_one_line_with_its_name(write: Write, kind: str) -> None:
    body, message = LOADERS[kind]
    write(loader_a=f"def load(options):\n    {body}\nfrom esper.tasks import register_task\nregister_task('own', load)")
    said = refusal("plugins=[loader_a]", "task.name=own")
    assert said.startswith("task.name=own: loader_a.load")
    assert message in said


def test_a_reward_family_of_another_type_is_refused(write: Write) -> None:
    write(reward_a="from esper.envs.rewards import register_reward\nregister_reward('own', len)")
    said = refusal("plugins=[reward_a]", "reward.family=own")
    assert "reward family 'own' must be a RewardFamily, got <built-in function len> (reward_a.py:2)" in said


CONTROLLER = "from esper.controllers import register_controller\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "controller 'own': controller_a.build returns a NoneType, which is no Controller"),
        ("1 / 0", "controller 'own': controller_a.build: ZeroDivisionError: division by zero (controller_a.py:3)"),
    ],
)
def test_a_controller_that_cannot_be_built_is_refused_before_the_run(
    write: Write, tmp_path: Path, body: str, message: str
) -> None:
    write(controller_a=f"{CONTROLLER}def build(context):\n    {body}\nregister_controller('own', build)")
    config = compose(*SMALL, "plugins=[controller_a]", "evaluation.controllers=[never,own]")
    with pytest.raises(UsageError) as caught:
        train(config, tmp_path / "run")
    assert message in str(caught.value)
    assert not (tmp_path / "run" / "config.yaml").exists()


# ----------------------------------------------------------------------------------- many configurations in one process


def kernel() -> int:
    from esper.blueprints import build_blueprint

    return build_blueprint("cnn", "wide", 8).body.kernel_size[0]  # type: ignore[no-any-return, union-attr]


def test_what_a_module_registers_is_there_for_the_configurations_that_name_it_and_for_no_others(write: Write) -> None:
    write(wide_a=WIDE.format(kernel=3), wide_b=WIDE.format(kernel=5))
    before, tables = blueprint_ids(), [dict(table) for table in (TASKS, CONTROLLERS, REWARDS)]
    for module, size in (("wide_a", 3), ("wide_b", 5), ("wide_a", 3)):
        activate([module])
        assert blueprint_ids() == (*before, "wide")
        assert kernel() == size
        activate([])
        assert blueprint_ids() == before
    assert [dict(table) for table in (TASKS, CONTROLLERS, REWARDS)] == tables


def test_a_module_that_another_builds_on_brings_its_own_to_both(write: Write) -> None:
    write(wide_a=WIDE.format(kernel=3), over_a="import wide_a")
    for names in (["wide_a"], ["over_a"], ["wide_a"], ["over_a", "wide_a"], ["wide_a", "over_a"]):
        activate(names)
        assert kernel() == 3, names


def test_two_modules_of_one_configuration_that_mean_different_things_by_one_name_are_refused_with_both(
    write: Write,
) -> None:
    write(wide_a=WIDE.format(kernel=3), wide_b=WIDE.format(kernel=5))
    for _ in range(2):
        said = refusal("plugins=[wide_a,wide_b]")
        assert "wide_a.build" in said
        assert "wide_b.build" in said
        for module in ("wide_a", "wide_b"):  # each by itself is fine, and then both are known
            activate([module])


def test_a_module_that_fails_leaves_nothing_and_can_be_mended(write: Write, tmp_path: Path) -> None:
    before = blueprint_ids()
    write(wide_c=WIDE.format(kernel=3) + "\n1 / 0")
    for _ in range(2):
        assert "ZeroDivisionError" in refusal("plugins=[wide_c]")
        assert blueprint_ids() == before


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sweep:
    class Checked(Sweep):
        def _check(self, config: Config) -> None:
            preflight(config)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Checked(monkeypatch, capsys)


@pytest.mark.slow
def test_in_a_sweep_only_the_jobs_whose_own_code_fails_are_refused(sweep: Sweep, write: Write, tmp_path: Path) -> None:
    nothing = f"{BLUEPRINT}register_blueprint('cnn', 'own', lambda width: None)"
    write(wide_a=WIDE.format(kernel=3), exits_a="raise SystemExit(0)", nothing_a=nothing)
    assert sweep("+preset=smoke", "plugins=[wide_a],[exits_a],[nothing_a],[]") == 1
    assert [config.plugins for config, _ in sweep.ran] == [["wide_a"], []]
    assert sorted(states(tmp_path).values()) == ["failed", "failed", "finished", "finished"]
    assert "is left out: plugins: cannot import 'exits_a': it asks to exit with code 0 (exits_a.py:1)" in sweep.out
    assert "blueprint 'own' of cnn hosts (nothing_a.py:2): it must be a torch.nn.Module, not a NoneType" in sweep.out


def test_a_module_that_is_not_there_where_its_job_runs_fails_that_job_alone(
    sweep: Sweep, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine."""
    write(wide_a=WIDE.format(kernel=3))

    def elsewhere(cfg: DictConfig, schema: type[Config]) -> Config:
        if cfg.plugins:
            raise ValueError("plugins: cannot import 'wide_a': ModuleNotFoundError: No module named 'wide_a'")
        return load(cfg, schema)

    monkeypatch.setattr("esper.launch.sweep_task.load", elsewhere)
    assert sweep("+preset=smoke", "plugins=[wide_a],[]") == 1
    assert [config.plugins for config, _ in sweep.ran] == [[]]
    assert sorted(states(tmp_path).values()) == ["failed", "finished"]
    assert "cannot import 'wide_a'" in sweep.err
    assert "Traceback" not in sweep.err


def test_jobs_of_one_sweep_may_register_one_name(sweep: Sweep, write: Write) -> None:
    write(wide_a=WIDE.format(kernel=3), wide_b=WIDE.format(kernel=5))
    assert sweep("+preset=smoke", "plugins=[wide_a],[wide_b]", "slots.blueprints=[wide]") == 0
    assert len(sweep.ran) == 2
