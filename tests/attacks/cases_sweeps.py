"""Sweeps of no job, of jobs that cannot be run, that are the same, that would share a folder."""

from __future__ import annotations

from typing import Any

from tests.attacks.attack import Attack, fails, goes_on, refused


def swept(name: str, words: str, says: str, **more: Any) -> Attack:
    """Expect a refusal of a whole sweep."""
    return refused(name, f"esper.train -m $tiny {words}", says, **more)


LEFT = "not every job of multirun/.* is finished; the same command resumes"
REFUSED = r"1 of 2 jobs of multirun/.* were refused, as above; the others are finished"

ATTACKS = [
    swept("sweep over no seed", "'seed=range(0)'", r"seed=range\(0\) has no value, so that this sweep has no job"),
    swept("sweep over text for numbers", "seed=x,y", "seed must be a whole number, got 'x'"),
    swept("sweep of one name", "name=a seed=1,2", "would share the run folder .*: leave name and hydra.sweep.subdir"),
    swept("sweep of one folder", "seed=1,2 hydra.sweep.subdir=x", "would share the run folder .*/x: leave name"),
    swept("sweep on Ray without Ray", "hydra/launcher=ray_cluster seed=1,2", r"pip install '\.\[ray\]'"),
    swept("sweeper misspelt", "hydra/sweeper=nope", "hydra/sweeper: unknown 'nope'; choose from basic"),
    swept("key of a launcher misspelt", "hydra/launcher=workers hydra.launcher.jobs=2", "hydra.launcher.jobs"),
    swept(
        "sweep with a plugin that raises",
        "'plugins=[mine]' seed=1,2",
        "plugins: cannot import 'mine': Runtime",
        files={"mine.py": "raise RuntimeError('no')\n"},
    ),
    refused("sweep kept in git misspelt", "esper.train -m +sweep=nope", "sweep: unknown 'nope'; choose from "),
    refused(
        "ranks of a launcher's in a sweep",
        "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=29999 esper.train -m $tiny seed=1,2",
        r"a sweep \(-m\) cannot be run by 2 ranks at once",
    ),
    fails(
        "one job of two is refused",
        "esper.train -m $tiny seed=1,x",
        REFUSED,
        runs={"multirun/*/seed1-*": "finished", "multirun/*/*refused*": "failed"},
    ),
    fails(
        "one job of two has a plugin that exits",
        "esper.train -m $tiny 'plugins=[mine],[]'",
        REFUSED,
        files={"mine.py": "raise SystemExit(0)\n"},
        runs={"multirun/*/*refused*": "failed"},
    ),
    fails(
        "no Slurm here",
        "PATH=$(dirname $(type -P esper.train)):/usr/bin:/bin esper.train -m $tiny hydra/launcher=slurm seed=1",
        LEFT,
        runs={},
    ),
    fails(
        "workers of no number",
        "esper.train -m $tiny hydra/launcher=workers hydra.launcher.n_jobs=0",
        LEFT,
        runs={},
    ),
    goes_on("one seed twice", "esper.train -m $tiny seed=1,1", "1 job", runs={"multirun/*/*": "finished"}),
    goes_on(
        "a sweep into a closed pipe",
        "esper.train -m $tiny seed=1 | head -1",
        "sweep smoke-",
        runs={"multirun/*/*": "finished"},
    ),
    goes_on(
        "a sweep a second time",
        "esper.train -m $tiny >/dev/null && esper.train -m $tiny",
        "1 finished",
        runs={"multirun/*/*": "finished"},
    ),
]
