"""A full disk and a lack of memory end a run in one line, leave no incomplete file, and let it be resumed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import SMALL
from matplotlib.figure import Figure
from resuming import different_runs

from esper.config import Config, compose, from_yaml
from esper.config.errors import RunError
from esper.config.evaluate import EvaluateConfig
from esper.envs.growth import GrowthEnv
from esper.experiment.shortage import shortages
from esper.runtime.files import replacing, write_atomic
from esper.runtime.run_folder import RunFolder, RunFolderError
from esper.runtime.user_code import of_the_user
from esper.telemetry.events import GateEvaluated
from esper.telemetry.hub import TelemetryHub
from esper.telemetry.jsonl import EventsJsonl, MetricsJsonl
from esper.training.run import train
from esper.views import plots

LIMIT = 2000
BIG = "x" * (3 * LIMIT)
GATE = GateEvaluated(environment=0, iteration=1, epoch=1, slot="r0c0", gate="G2", passed=False, reason=BIG)


@contextlib.contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Limit the length of files, and compile no module meanwhile: Python would keep the first part of its bytecode."""
    before, writes = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def of_system(number: int) -> OSError:
    return OSError(number, os.strerror(number), "outputs/x/metrics.jsonl")


# --------------------------------------------------------------------------------------------------------- the one line


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO])
def test_a_file_that_cannot_be_written_is_named_with_the_remedy_and_how_to_go_on(number: int) -> None:
    with pytest.raises(RunError) as caught, shortages(compose(), Path("outputs/x"), lambda: True):
        raise of_system(number)
    assert str(caught.value) == (
        f"outputs/x/metrics.jsonl cannot be written ({os.strerror(number)}): make room, or choose another place with "
        "hydra.run.dir=<folder> (a sweep: hydra.sweep.dir=<folder>); resume=outputs/x resumes this run"
    )


ALLOCATORS: dict[str, Callable[[], object]] = {
    "torch on a CPU": lambda: torch.empty(10**15),
    "numpy": lambda: np.empty(10**15),
    "Python": lambda: bytearray(10**15),
    "more than there are numbers for": lambda: torch.empty(10**9, 10**9, 10),
}


@pytest.mark.parametrize("allocate", ALLOCATORS.values(), ids=ALLOCATORS)
def test_memory_that_is_not_there_is_named_with_the_keys_that_cost_it(allocate: Callable[[], object]) -> None:
    with pytest.raises(RunError) as caught, shortages(compose("trainer.num_envs=48"), Path("outputs/x"), lambda: True):
        allocate()
    text = str(caught.value)
    assert text.startswith("out of memory (")
    assert "lower trainer.num_envs (48), trainer.num_steps (" in text
    assert "host.widths ([8,8,8]), policy.lstm_dim (256) or its other widths, or share" in text
    assert text.endswith("with devices=[...]; resume=outputs/x resumes this run")
    assert "\n" not in text
    assert "alloc_cpu" not in text


def test_memory_that_a_users_own_code_lacks_is_no_matter_of_esper_keys() -> None:
    with pytest.raises(RunError) as caught, shortages(compose()), of_the_user("host.target: nets:wide does not run"):
        torch.empty(10**15)
    text = str(caught.value)
    assert text.startswith("out of memory (")
    assert " in code of yours: host.target: nets:wide does not run: RuntimeError: " in text
    assert "trainer.num_envs" not in text
    assert "\n" not in text


def test_what_a_run_goes_on_with_can_be_typed_into_a_shell_wherever_it_is() -> None:
    folder = Path("my runs [x]/it's=1")
    with pytest.raises(RunError) as caught, shortages(compose(), folder, lambda: True):
        raise of_system(errno.ENOSPC)
    typed = str(caught.value).rpartition("; ")[2].removesuffix(" resumes this run")
    assert shlex.split(typed) == [f"resume={folder}"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB).\nUse PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0"),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ],
)
def test_whatever_the_device_an_evaluation_names_its_own_keys(error: Exception) -> None:
    config = EvaluateConfig(checkpoint="x", num_hosts=7)
    with pytest.raises(RunError, match=r"out of memory \(.*\): lower num_hosts \(7\)") as caught, shortages(config):
        raise error
    assert "\n" not in str(caught.value)
    assert "resume" not in str(caught.value)


def test_the_error_that_a_library_raises_on_the_way_hides_nothing() -> None:
    def work() -> None:
        try:
            raise of_system(errno.ENOSPC)
        finally:
            raise RuntimeError("unexpected pos 704 vs 598")

    with pytest.raises(RunError, match="No space left"), shortages():
        work()


def test_a_folder_that_is_removed_is_said_and_another_missing_file_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"^{tmp_path / 'gone'} was removed while"), shortages(folder=tmp_path / "gone"):
        write_atomic(tmp_path / "gone" / "metrics.jsonl", "x")
    with pytest.raises(FileNotFoundError), shortages(folder=tmp_path):
        write_atomic(tmp_path / "gone" / "metrics.jsonl", "x")


@pytest.mark.parametrize("error", [RuntimeError("a bug"), FileNotFoundError(2, "none", "x"), KeyError("out of memory")])
def test_bugs_are_left_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, shortages(compose(), Path("x"), lambda: True):
        raise error
    assert caught.value is error


# ---------------------------------------------------------------------------------------------------- nothing half-done


def hub_of(path: Path) -> None:
    with TelemetryHub([], record=[EventsJsonl(path)]) as hub:
        hub.emit(GATE)


def metrics_of(path: Path) -> None:
    with TelemetryHub([], record=[MetricsJsonl(path)]) as hub:
        hub.log_metrics(1, {f"metric{number:04d}": 0.5 for number in range(LIMIT)})


def torch_of(path: Path) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        torch.save({"a": torch.zeros(LIMIT)}, file)


def figure_of(path: Path) -> None:
    plots.save(Figure(), path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: write_atomic(path, BIG),
    "checkpoints": torch_of,
    "figures": figure_of,
    "events": hub_of,
    "metrics": metrics_of,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_is_the_runs_error_and_leaves_what_was_there(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    path.write_text("before\n")
    with pytest.raises(RunError, match=f"{path} cannot be written .File too large.: "), shortages(), file_limit(LIMIT):
        write(path)
    assert path.read_text() == "before\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_that_could_not_save_its_configuration_has_not_begun(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"cannot be written \(File too large\)"), file_limit(LIMIT):
        RunFolder.create(tmp_path / "run", BIG)
    RunFolder.create(tmp_path / "run", BIG)


# ----------------------------------------------------------------------------------------------------------- whole runs

WORDS = (*SMALL, "evaluation.num_hosts=2", "evaluation.controllers=[never]")


def status(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "status.json").read_text())
    return found


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_memory(*_: object, **__: object) -> None:
    torch.empty(10**15)


def after(count: int, works: Callable[..., object], fails: Callable[..., object]) -> Callable[..., object]:
    """Work a number of times, then fail."""
    calls: list[object] = []

    def call(*arguments: object, **options: object) -> object:
        calls.append(None)
        return (works if len(calls) <= count else fails)(*arguments, **options)

    return call


SHORTAGES: dict[str, tuple[str, Callable[..., object], str]] = {
    "a checkpoint": ("torch.save", after(4, torch.save, full_disk), "No space left on device"),
    "a picture": ("matplotlib.figure.Figure.savefig", full_disk, "No space left on device"),
    "the result": ("esper.runtime.run_folder.RunFolder.write_result", full_disk, "No space left on device"),
    "training": ("esper.envs.growth.GrowthEnv.step", after(7, GrowthEnv.step, no_memory), "can't allocate memory"),
    "the comparison": ("esper.training.run.compare", no_memory, "can't allocate memory"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the uninterrupted run."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(compose(*WORDS), run_dir)
    return run_dir


@pytest.mark.slow
@pytest.mark.parametrize("part", SHORTAGES)
def test_a_run_that_something_is_short_for_fails_in_one_line_and_is_the_same_run_later(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    (target, replacement, words), run_dir = SHORTAGES[part], tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(target, replacement)
        with pytest.raises(RunError) as caught:
            train(compose(*WORDS), run_dir)
    line = str(caught.value)
    assert words in line
    assert "\n" not in line
    assert line.endswith(f"resume={run_dir} resumes this run")
    assert status(run_dir)["state"] == "failed"
    assert status(run_dir)["traceback"].splitlines()[-1].endswith(line)
    assert list(run_dir.rglob(".*.tmp")) == []
    train(replace(from_yaml((run_dir / "config.yaml").read_text(), Config), resume="auto"), run_dir)
    assert different_runs(whole, run_dir) == []
