"""The presets from end to end, on data in the formats that are published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from esper.config import compose
from esper.experiment.preflight import preflight
from esper.tasks import cifar10
from esper.tasks.fashion_mnist import SYSTEM_FOLDER
from esper.training.run import train
from tests.tasks.archives import cifar_archive, published, serving

QUICK = ("+debug=fast", "telemetry.console=off", "telemetry.plots=false", "env.mapping=loop", "task.max_samples=16")
TINY_TEXT = (
    "host.width=8",
    "host.mlp_width=8",
    "task.context_length=16",
    "task.num_val=16",
    "env.num_epochs=3",
    "env.steps_per_epoch=1",
    "trainer.num_envs=2",
)
TINY = ("host.widths=[4,4,4]", "env.num_epochs=3", "env.steps_per_epoch=1", "trainer.num_envs=2")


def run(run_dir: Path, *words: str) -> None:
    """Do the work of the entry point: check, then train."""
    config = compose(*words)
    preflight(config)
    train(config, run_dir)
    result = json.loads((run_dir / "result.json").read_text())
    assert {row["name"] for row in result["controllers"]} >= {"learned", "never"}
    text = config.host.name == "transformer"
    assert all((row["test_bits"] is not None) == text for row in result["controllers"])
    line = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[0])
    assert ("charts/final_bits_per_byte" in line) == ("charts/never_bits_per_byte" in line) == text


@pytest.mark.slow
def test_cifar10_runs_on_an_archive_that_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = cifar_archive(cifar10.PYTHON)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(cifar10, "PYTHON", published(cifar10.PYTHON, content))
    with serving({cifar10.PYTHON.source.name: content}) as server:
        words = (f"task.root={tmp_path}/data", f"task.url={server.url}", "task.num_val=20", *TINY)
        run(tmp_path / "run", "+preset=cifar10", *QUICK, *words)
        assert server.requests == [cifar10.PYTHON.source.name]


@pytest.mark.slow
@pytest.mark.skipif(not SYSTEM_FOLDER.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_fashion_mnist_runs_on_the_real_images(tmp_path: Path) -> None:
    run(tmp_path / "run", "+preset=fashion_mnist", *QUICK, *TINY)


@pytest.mark.slow
def test_textbook_runs_on_real_english(tmp_path: Path) -> None:
    run(tmp_path / "run", "+preset=textbook", *QUICK, *TINY_TEXT)


@pytest.mark.slow
def test_tinystories_run_on_raw_text(tmp_path: Path) -> None:
    story = "Once upon a time there was a small host. It had a slot, and it grew.\n<|endoftext|>\n"
    for name, count in (("TinyStories-train.txt", 200), ("TinyStories-valid.txt", 100)):
        (tmp_path / name).write_text(story * count, encoding="utf-8")
    run(
        tmp_path / "run",
        "+preset=tinystories",
        "task.verify=false",
        f"task.root={tmp_path}",
        "instances.alive_channels=2",
        *QUICK,
        *TINY_TEXT,
    )
