"""Requests to stop at every stage of a run, which reports them and can be resumed."""

from __future__ import annotations

from tests.attacks.attack import Attack

CODES = {"INT": 130, "TERM": 143, "HUP": 129}


def stopped(name: str, after: str, signal: str, words: str = "", *, state: str = "preempted") -> Attack:
    """Ask a run to stop once it has printed a text."""
    return Attack(
        name=name,
        bash=f"at '{after}' {signal} -- esper.train $tiny trainer.num_iterations=3 name=x {words}",
        says=f"SIG{signal}",
        code=CODES[signal],
        runs={"outputs/x": state},
        where="both",
    )


ATTACKS = [
    *(stopped(f"{signal} at the first line", "run ", signal) for signal in CODES),
    *(stopped(f"{signal} after an iteration", "iter 1", signal) for signal in CODES),
    stopped("INT while twins are made", "never-grown twins 0", "INT"),
    stopped("TERM in the closing comparison", "held-out hosts", "TERM"),
    stopped("TERM in the last iteration", "iter 3", "TERM"),
    stopped("INT to two ranks", "iter 1", "INT", "devices=[cpu,cpu]"),
    stopped("HUP to two ranks", "iter 1", "HUP", "devices=[cpu,cpu]"),
    Attack(
        name="two INT in a row",
        bash="at 'iter 1' INT 'iter 1' INT -- esper.train $tiny trainer.num_iterations=3 name=x devices=[cpu,cpu]",
        says="SIGINT",
        code=130,
        runs={"outputs/x": "preempted"},
        where="both",
    ),
    Attack(
        name="stopped and resumed",
        bash="at 'iter 1' TERM -- esper.train $tiny trainer.num_iterations=2 name=x >x; esper.train resume=outputs/x",
        says="resuming after iteration 1",
        code=0,
        runs={"outputs/x": "finished"},
        where="both",
    ),
    Attack(
        name="killed and resumed",
        bash="at 'iter 2' KILL -- esper.train $tiny trainer.num_iterations=2 name=x >x; esper.train resume=outputs/x",
        says="resuming after iteration 1",
        code=0,
        runs={"outputs/x": "finished"},
        where="both",
    ),
    Attack(
        name="INT to a sweep",
        bash="at 'iter 1' INT -- esper.train -m $tiny trainer.num_iterations=3 seed=1,2",
        says="the same command resumes|SIGINT",
        code=130,
        runs={"multirun/*/seed1-*": "preempted"},
        where="both",
    ),
    Attack(
        name="TERM to an evaluation",
        bash="at 'run folder' TERM -- esper.evaluate checkpoint=outputs/done controllers=[never] num_hosts=2 name=x",
        says="SIGTERM",
        code=143,
        given=("done",),
        runs={"outputs/x": "preempted"},
        where="both",
    ),
    Attack(
        name="INT to a run in a folder that a shell would take apart",
        bash="at 'run folder' INT -- esper.train $tiny 'hydra.run.dir=o [x]'",
        says=r"'resume=.*o \[x\]' resumes",
        code=130,
        runs={"o [[]x[]]": "preempted"},
        where="both",
    ),
]
