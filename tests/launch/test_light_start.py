"""Modules that a command does not wait for, whatever the machine's speed: torch for help and for errors of use, the
compiler, scikit-learn and matplotlib for a run's first iteration.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import run

HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "wandb")
ONLY_AT_THE_END = ("torch._dynamo", "sklearn", "scipy", "matplotlib", "wandb")

WITHOUT_TORCH = """
import esper.evaluate
import esper.train
from esper.config import compose
compose("+preset=digits", "seed=1")
for module, *words in (
    (esper.train, "--help"),
    (esper.train, "+preset=smoke", "seed=-1"),
    (esper.train, "+preset=smoke", "host.widths=[7]"),
    (esper.evaluate, "--help"),
    (esper.evaluate, "checkpoint=nowhere", "draws=1"),
):
    sys.argv = ["esper", *words]
    try:
        module.main()
    except SystemExit:
        pass
"""
RUN = """
from esper.config import compose
from esper.experiment.preflight import preflight
from esper.training import run
preflight(config := compose("+preset=smoke", "trainer.num_iterations=1"))

def stop(*_, **__):
    raise KeyboardInterrupt

run.compare = stop
try:
    run.train(config, Path("run"))
except KeyboardInterrupt:
    pass
"""


def imported(code: str, names: tuple[str, ...], folder: Path) -> list[str]:
    """Names of the modules that a new process has imported after some code."""
    told = f"print('imported', *(name for name in {names!r} if name in sys.modules))"
    code = f"import sys\nfrom pathlib import Path\n{code}\n{told}"
    done = run([sys.executable, "-c", code], cwd=folder, check=True)
    return done.stdout.splitlines()[-1].split()[1:]


def test_help_and_errors_of_use_do_not_wait_for_torch(tmp_path: Path) -> None:
    assert imported(WITHOUT_TORCH, HEAVY, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_iteration_imports_neither_compiler_nor_plots(tmp_path: Path) -> None:
    assert imported(RUN, ONLY_AT_THE_END, tmp_path) == []
    assert (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").count("\n") == 1
