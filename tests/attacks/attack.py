"""Attacks: a line of bash as a user types it, files in the folder, and the expected outcome."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_SMALL = (
    "env.num_epochs=5 env.steps_per_epoch=1 slots.min_training_epochs=1 slots.min_cull_age=1 task.max_samples=64 "
    "trainer.num_envs=2 trainer.num_iterations=1 instances.num_train=2 instances.num_held_out=2 "
    "evaluation.controllers=[learned] evaluation.num_hosts=2 ppo.num_minibatches=1 ppo.update_epochs=1 "
    "policy.encoder_dim=16 policy.lstm_dim=16 policy.head_dim=16 policy.value_dim=16 telemetry.plots=false"
)
TINY = f"+preset=smoke env.mapping=matmul {_SMALL}"
"""Command of the smallest run that does everything; ``$tiny`` in an attack."""

OWN = f"host=custom host.target=net:build host.slots=[stem,body] slots.num_slots=2 env.mapping=loop {_SMALL}"
"""Command of the smallest run on a user's network, built by the file ``net.py``; ``$own`` in an attack."""

MOST_LINES = 2
"""Largest number of lines on standard error that counts as a message."""

LONGEST = 700
"""Largest number of characters of a readable line."""

INTERNALS = re.compile(
    r"Traceback|object at 0x|<class '|<function |File \".*\", line \d|During handling|Exception ignored|UserWarning"
)
"""Patterns of text about the program's internals rather than the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A bad input or a fault.

    Attributes:
        name: of the case, a few words.
        bash: what is typed in an empty folder. ``$tiny`` is the smallest run; ``at TEXT SIGNAL command`` sends a signal
            once the command has printed a text, ``terminal COLUMNS command`` runs it on a terminal of that width.
        says: fragment of the line that must be printed, a regular expression.
        code: exit code.
        files: what is there beforehand, by path; a callable is given the path and makes it.
        given: names of runs that are in ``outputs/`` beforehand (:data:`tests.attacks.commands.RUNS`).
        runs: state of each run folder afterwards, by path; a pattern with one ``*`` is fine. ``None`` = nothing new
            may be there.
        silent: whether nothing may be said on standard error.
        lines: most lines on standard error.
        where: ``stderr``, or ``both``.
    """

    name: str
    bash: str
    says: str
    code: int = 2
    files: Mapping[str, str | bytes | Callable[[Path], object]] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    runs: Mapping[str, str] | None = None
    silent: bool = False
    lines: int = MOST_LINES
    where: str = "stderr"


def refused(name: str, bash: str, says: str, **more: object) -> Attack:
    """Expect code 2, a line that begins with ``error:``, and nothing new on disk."""
    return Attack(name=name, bash=bash, says=f"^error: .*(?:{says})", **more)  # type: ignore[arg-type]


def fails(name: str, bash: str, says: str, *, runs: Mapping[str, str] | None = None, **more: object) -> Attack:
    """Expect code 1 and a line that begins with ``error:``."""
    return Attack(name=name, bash=bash, says=f"^error: .*(?:{says})", code=1, runs=runs, **more)  # type: ignore[arg-type]


def goes_on(name: str, bash: str, says: str = "", *, runs: Mapping[str, str] | None = None, **more: object) -> Attack:
    """Expect code 0, and all runs finished."""
    runs = {"outputs/*": "finished"} if runs is None else runs
    options = {"code": 0, "silent": True, "where": "both", **more}
    return Attack(name=name, bash=bash, says=says, runs=runs, **options)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of an attack."""

    code: int
    out: str
    err: str
    folder: Path
    before: frozenset[str]


def handled_badly(attack: Attack, outcome: Outcome) -> list[str]:
    """List a user's complaints, one line each; none if the attack was handled well."""
    complaints = []
    if outcome.code != attack.code:
        complaints.append(f"exit code {outcome.code} instead of {attack.code}")
    printed = outcome.err if attack.where == "stderr" else outcome.out + outcome.err
    if re.search(attack.says, printed, re.MULTILINE) is None:
        complaints.append(f"does not say {attack.says!r}")
    lines = outcome.err.splitlines()
    if attack.silent and lines:
        complaints.append("says something on standard error")
    if len(lines) > attack.lines:
        complaints.append(f"{len(lines)} lines on standard error")
    complaints += [f"a line of {len(line)} characters" for line in lines if len(line) > LONGEST]
    internal = INTERNALS.search(outcome.out + outcome.err)
    if internal:
        complaints.append(f"shows internals: {internal.group()!r}")
    return complaints + _left_badly(attack, outcome)


def _left_badly(attack: Attack, outcome: Outcome) -> list[str]:
    new = below(outcome.folder) - outcome.before
    complaints = [f"left behind: {path}" for path in sorted(new) if path.endswith(".tmp")]
    if attack.runs is None:
        return complaints + [f"made {path}" for path in sorted(new) if not _is_empty(outcome.folder / path)]
    for pattern, state in attack.runs.items():
        found = sorted(outcome.folder.glob(pattern))
        if not found:
            complaints.append(f"no run folder {pattern}")
        complaints += [f"{run.name} is {_state(run)}, not {state}" for run in found if _state(run) != state]
    spoilt = {outcome.folder / name for name in attack.files}
    for run in {path.parent for path in outcome.folder.rglob("status.json") if path not in spoilt}:
        if _state(run) == "running" and "running" not in attack.runs.values():
            complaints.append(f"{run.name} still says that it is running")
        if (run / "result.json").exists() and _state(run) != "finished":
            complaints.append(f"{run.name} has a result but is {_state(run)}")
    return complaints


def _is_empty(path: Path) -> bool:
    """Return whether a path is a folder for runs without any."""
    return path.name in ("outputs", "multirun") and path.is_dir() and not list(path.iterdir())


def _state(run: Path) -> str | None:
    file = run / "status.json"
    return str(json.loads(file.read_text())["state"]) if file.exists() else None


def below(folder: Path) -> frozenset[str]:
    """List everything in a folder, by relative path."""
    return frozenset(str(path.relative_to(folder)) for path in folder.rglob("*"))
