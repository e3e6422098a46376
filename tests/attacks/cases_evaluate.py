"""Impossible evaluations: checkpoints, controllers, budgets, families."""

from __future__ import annotations

from typing import Any

from tests.attacks.attack import Attack, goes_on, refused


def judged(name: str, words: str, says: str, **more: Any) -> Attack:
    """Expect a refusal of an evaluation."""
    return refused(name, f"esper.evaluate {words}", says, **{"given": ("done", "judged"), **more})


def of_done(name: str, words: str, says: str, **more: Any) -> Attack:
    """Expect a refusal of an evaluation of an existing run."""
    return judged(name, f"checkpoint=outputs/done controllers=[learned] num_hosts=2 {words}", says, **more)


ATTACKS = [
    judged("no checkpoint", "", "no value for checkpoint: use checkpoint=<value>"),
    judged("checkpoint nowhere", "checkpoint=nowhere", "no checkpoint at nowhere"),
    judged("checkpoint is a number", "checkpoint=3", "no checkpoint at 3"),
    judged("list of no checkpoints", "'checkpoint=[]'", "checkpoint must not be empty"),
    judged("one checkpoint twice", "'checkpoint=[outputs/done,outputs/done]'", "names outputs/done more than once"),
    judged("an evaluation for a checkpoint", "checkpoint=outputs/judged", "no checkpoint at outputs/judged"),
    of_done("controller misspelt", "controllers=[nevr]", "controllers: unknown 'nevr'.*; choose from learned, "),
    of_done("no controllers", "controllers=[]", "controllers must not be empty"),
    of_done("one controller twice", "controllers=[never,never]", "controllers names never more than once"),
    of_done("no hosts", "num_hosts=0", "num_hosts must be at least 2, got 0"),
    of_done("no draws", "draws=0", "draws must be at least"),
    of_done("one draw", "draws=1", "draws must be at least"),
    of_done("a budget below one episode", "controllers=[schedule_best] tuning_epochs=1", "tuning_epochs"),
    of_done("family misspelt", "'+families={nope: 1}'", "families.nope: .*nope"),
    of_done("families without weight", "'+families={intact: 0}'", "families must give a weight above 0"),
    of_done("tuning nowhere", "tuning=nowhere", r"tuning: cannot read nowhere \(No such file or directory\)"),
    of_done("tuning of others", "tuning=x.json", "x.json", files={"x.json": "[3]"}),
    of_done("tuning of bytes", "tuning=x.json", "x.json", files={"x.json": b"\xff"}),
    of_done("a GPU that is not there", "devices=[0,1]", r"devices=\[0,1\].*cpu"),
    of_done("key of a training run", "trainer.num_envs=2", "unknown key 'trainer'; keys and sections: checkpoint, "),
    of_done("resume", "resume=auto", "unknown key 'resume'"),
    of_done("a sweep of nothing", "-m 'seed=range(0)'", "seed"),
    of_done("a run is there", "name=done", "outputs/done already holds a run"),
    of_done("other slots beside", "'checkpoint=[outputs/done,outputs/more]'", "no checkpoint at outputs/more"),
    goes_on(
        "the smallest evaluation",
        "esper.evaluate checkpoint=outputs/done controllers=[never] num_hosts=2 name=x",
        "never",
        given=("done",),
        runs={"outputs/x": "finished"},
    ),
]
