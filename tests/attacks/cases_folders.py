"""Run folders: taken, damaged, not writable, oddly named; what resume makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.attacks.attack import Attack, fails, goes_on, refused


def resumed(name: str, words: str, says: str, **more: Any) -> Attack:
    """Expect a refusal to resume."""
    return refused(name, f"esper.train {words}", says, **{"given": ("done", "stopped", "judged"), **more})


def nothing_left(path: Path) -> None:
    """Remove a file."""
    path.unlink()


FINISHED = {"outputs/stopped": "finished"}

ATTACKS = [
    resumed("resume nowhere", "resume=nowhere", "resume: nowhere is not a run folder"),
    resumed("resume a folder of runs", "resume=outputs", "resume: outputs is not a run folder"),
    resumed("resume a number", "resume=3", "resume: 3 is not a run folder"),
    resumed("resume a checkpoint", "resume=outputs/done/checkpoints/last.pt", "last.pt is not a run folder"),
    resumed("resume an evaluation", "resume=outputs/judged", "outputs/judged/config.yaml is not of a run that can"),
    resumed("resume with a preset", "resume=outputs/stopped +preset=smoke", r"leave \+preset=smoke out"),
    resumed("resume elsewhere", "resume=outputs/stopped hydra.run.dir=x", "leave hydra.run.dir=x out"),
    resumed("resume with another seed", "resume=outputs/stopped seed=9", "seed=0, not 9: a continued run keeps that"),
    resumed("resume with an unknown key", "resume=outputs/stopped ppo.bogus=1", "unknown key 'ppo.bogus'"),
    resumed("resume in a sweep", "-m resume=outputs/stopped seed=1,2", "leave -m out, or use resume=auto"),
    resumed("a run is there", "$tiny name=done", r"outputs/done already holds a run \(config.yaml\): choose another"),
    resumed("an evaluation is there", "$tiny name=judged", r"outputs/judged already holds a run"),
    resumed(
        "resume without configuration",
        "resume=outputs/stopped",
        "outputs/stopped is not a run folder",
        files={"outputs/stopped/config.yaml": nothing_left},
    ),
    resumed(
        "resume with half a configuration",
        "resume=outputs/stopped",
        "stopped/config.yaml is not of a run that",
        files={"outputs/stopped/config.yaml": "a: ["},
    ),
    resumed(
        "resume with a list for a configuration",
        "resume=outputs/stopped",
        "a configuration has keys and values",
        files={"outputs/stopped/config.yaml": "- a"},
    ),
    resumed(
        "resume with bytes for a configuration",
        "resume=outputs/stopped",
        "config.yaml is not text",
        files={"outputs/stopped/config.yaml": b"\xff\xfe"},
    ),
    fails(
        "metrics were cut",
        "esper.train resume=outputs/stopped",
        "outputs/stopped/metrics.jsonl has 0 bytes, but its checkpoint was written after",
        given=("stopped",),
        files={"outputs/stopped/metrics.jsonl": ""},
    ),
    fails(
        "events were cut",
        "esper.train resume=outputs/stopped",
        "outputs/stopped/events.jsonl has 0 bytes",
        given=("stopped",),
        files={"outputs/stopped/events.jsonl": ""},
    ),
    goes_on(
        "half a status",
        "esper.train resume=outputs/stopped",
        "resuming after iteration 1",
        runs=FINISHED,
        given=("stopped",),
        files={"outputs/stopped/status.json": "{"},
    ),
    goes_on(
        "a list for a status",
        "esper.train resume=outputs/stopped",
        "resuming after iteration 1",
        runs=FINISHED,
        given=("stopped",),
        files={"outputs/stopped/status.json": "[]"},
    ),
    goes_on(
        "resume what is finished",
        "esper.train resume=outputs/done",
        "has finished: trainer.num_iterations=<more>",
        runs={"outputs/done": "finished"},
        given=("done",),
    ),
    goes_on("resume auto finds nothing", "esper.train $tiny resume=auto name=new", "run folder .*outputs/new"),
    goes_on(
        "resume by a link",
        "ln -s outputs/stopped here; esper.train resume=here",
        "resuming after iteration 1",
        runs=FINISHED,
        given=("stopped",),
    ),
    fails(
        "a file in place of outputs",
        "esper.train $tiny name=x",
        r"cannot write to outputs/x \(Not a directory\)",
        files={"outputs": "a file"},
    ),
    fails(
        "a file in place of the run folder",
        "esper.train $tiny name=x",
        r"cannot write to outputs/x \(File exists\)",
        files={"outputs/x": "a file"},
    ),
    fails(
        "a file in place of the sweep",
        "esper.train -m $tiny seed=1,2 hydra.sweep.dir=x",
        "cannot write to x ",
        files={"x": "a file"},
    ),
    fails("a folder below a device", "esper.train $tiny hydra.run.dir=/dev/null/x", "cannot write to /dev/null/x "),
    fails("a folder in /proc", "esper.train $tiny hydra.run.dir=/proc/x", "cannot write to /proc/x "),
    fails("a name of 300 letters", "esper.train $tiny name=$(printf 'a%.0s' {1..300})", "File name too long", runs={}),
    fails(
        "a dangling link in place of the run folder",
        "ln -s /nowhere/x x; esper.train $tiny hydra.run.dir=x; code=$?; rm x; exit $code",
        "cannot write to x ",
    ),
    goes_on("a link to a folder", "mkdir y; ln -s y x; esper.train $tiny hydra.run.dir=x", "", runs={"y": "finished"}),
    goes_on("a run folder with a blank", "esper.train $tiny 'hydra.run.dir=a b/c d'", "", runs={"a b/c d": "finished"}),
]
