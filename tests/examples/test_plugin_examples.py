"""Plugin examples are short, and every registration takes part in a run; all of them work from a wheel."""

from __future__ import annotations

import json
import os
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from helpers import SMALL
from processes import run

from esper.config import compose, plugins
from esper.config.plugins import activate
from esper.runtime.records import read_jsonl
from esper.training.run import train

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "plugins"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
MOST_LINES = 15

FAULTS = ("starved_0", "starved_1", "starved_2", "centre_tap_all", "centre_tap_12", "few_classes")
NO_FAULTS = f"instances.families={{intact: 1, {', '.join(f'{name}: 0' for name in FAULTS)}}}"

WORDS = {
    "algorithm": ["algorithm=reinforce"],
    "task": ["task.name=stripes"],
    "controller": ["evaluation.controllers=[never,one_module]"],
    "reward": ["reward.family=squared"],
    "host": ["host=plugin", "host.name=two_layers", "+host.arguments={width: 12}", "slots.num_slots=2", NO_FAULTS],
    "blueprint": ["slots.blueprints=[conv_wide]"],
    "logger": ["telemetry.loggers=[csv,best]"],
}
"""Arguments that name the registration of each example."""

CALLED = {
    "algorithm": "update",
    "task": "load",
    "controller": "build",
    "reward": "score",
    "host": "build",
    "blueprint": "build",
    "logger": "metrics",
}
"""Function of each example that a run calls."""

TINY = (
    *SMALL,
    "env.mapping=loop",
    "env.num_epochs=4",
    "evaluation.num_hosts=2",
    "evaluation.controllers=[never]",
    "instances.num_train=2",
    "instances.num_held_out=2",
    "trainer.num_iterations=1",
    "telemetry.plots=false",
)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in the folder of a checkout, and undo registrations afterwards."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(plugins, "_seen", {})
    yield
    activate([])


def code_lines(path: Path) -> int:
    """Lines that are neither empty nor of the docstring at the top."""
    _, _, code = path.read_text().split('"""', 2)
    return sum(bool(line.strip()) for line in code.splitlines())


def test_every_seam_has_a_short_example() -> None:
    assert set(NAMES) == set(WORDS)
    assert {name: count for name in NAMES if (count := code_lines(FOLDER / f"{name}.py")) > MOST_LINES} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_an_example_registers_takes_part_in_a_run(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = compose(*TINY, f"plugins=[examples.plugins.{name}]", *WORDS[name])
    with called_in(FOLDER / f"{name}.py") as called:
        train(config, folder)
    assert CALLED[name] in called
    _check(folder, name)


@contextmanager
def called_in(path: Path) -> Iterator[set[str]]:
    """Note the names of the functions of a file that are called, in any thread."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == str(path):
            called.add(frame.f_code.co_name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _check(folder: Path, name: str) -> None:
    events, metrics = read_jsonl(folder / "events.jsonl"), read_jsonl(folder / "metrics.jsonl")
    result = json.loads((folder / "result.json").read_text())
    if name == "controller":
        assert [row["name"] for row in result["controllers"]] == ["never", "one_module"]
    if name == "blueprint":
        assert {event["blueprint"] for event in events if event.get("blueprint")} == {"conv_wide"}
    if name == "logger":
        assert float((folder / "best.txt").read_text()) == metrics[-1]["charts/episodic_return"]
        assert (folder / "metrics.csv").read_text().splitlines()[0].startswith("iteration,")
    assert metrics


@pytest.mark.slow
def test_a_run_elsewhere_takes_all_of_them_from_a_wheel(tmp_path: Path) -> None:
    wheel, installed, elsewhere = (
        tmp_path / name for name in ("own_seams-1-py3-none-any.whl", "installed", "elsewhere")
    )
    elsewhere.mkdir()
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("own_seams/__init__.py", "")
        for name in NAMES:
            file.write(FOLDER / f"{name}.py", f"own_seams/{name}.py")
        file.writestr("own_seams-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: own-seams\nVersion: 1\n")
        file.writestr("own_seams-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("own_seams-1.dist-info/RECORD", "")
    _run(elsewhere, "pip", "install", "--quiet", "--no-deps", "--target", installed, wheel)
    names = ",".join(f"own_seams.{name}" for name in NAMES)
    words = [*TINY, f"plugins=[{names}]", *(word for name in NAMES for word in WORDS[name])]
    _run(elsewhere, "esper.train", *words, f"hydra.run.dir={tmp_path / 'run'}", path=installed)
    for name in NAMES:
        _check(tmp_path / "run", name)


def _run(folder: Path, module: str, *words: str | Path, path: Path | None = None) -> None:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", str(ROOT))])
    done = run([sys.executable, "-m", module, *words], cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
