"""The command line in this process, with jobs that do nothing."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from esper.config import Config, to_yaml
from esper.experiment.preflight import preflight
from esper.launch import cli
from esper.launch.entries import EVALUATE, TRAIN, Entry
from esper.runtime.run_folder import RunFolder, RunState

Outcome = tuple[int, str, list[tuple[Config, Path]]]


@dataclass
class CommandLine:
    """Caller of entry points that keeps their output."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    out: str = field(default="", init=False)

    def __call__(
        self,
        *words: str,
        entry: Entry = TRAIN,
        fail: dict[int, Exception] | None = None,
        checked: bool = False,
    ) -> Outcome:
        """Exit code, stderr, and the (configuration, run folder) of each job; jobs of a sweep are finished at once.

        Args:
            words: of the command line.
            entry: the entry point.
            fail: what jobs raise, by seed.
            checked: make training's own checks too.
        """
        runs: list[tuple[Config, Path]] = []

        def task(config: Any, run_dir: Path, *, isolated: bool = False, **_: bool) -> None:
            if fail and config.seed in fail:
                raise fail[config.seed]
            (run_dir / "config.yaml").write_text(to_yaml(config))
            runs.append((config, run_dir))
            if isolated:
                RunFolder(run_dir).write_result({"controllers": [], "wall_seconds": 1.0})
                RunFolder(run_dir).status(RunState.FINISHED)

        def check(config: Any) -> None:
            if config.seed == 13:
                raise ValueError("seed must not be 13")
            if checked:
                preflight(config)

        self.monkeypatch.setattr(sys, "argv", [f"esper-{entry.config_name}", *words])
        code = 0
        try:
            cli.run(entry, task, check)
        except SystemExit as end:
            code = int(end.code or 0)
        self.out, err = self.capsys.readouterr()
        return code, err, runs

    def evaluate(self, *words: str) -> Outcome:
        """Call ``esper.evaluate`` with a checkpoint that is never read."""
        return self("checkpoint=x", *words, entry=EVALUATE)


@pytest.fixture
def esper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    # --info logs to the terminal from then on, and that of a test is closed at its end.
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    return CommandLine(monkeypatch, capsys)
