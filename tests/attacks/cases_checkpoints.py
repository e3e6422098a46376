"""Checkpoints that are damaged, foreign or missing, for resume, transfer and evaluation."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.attacks.attack import Attack, goes_on, refused

LAST = "outputs/stopped/checkpoints/last.pt"


def damaged(*keys: str, value: object = None, remove: bool = False) -> Callable[[Path], None]:
    """Replace or remove the parts of a checkpoint at these keys."""

    def damage(path: Path) -> None:
        record = torch.load(path, weights_only=True)
        inner = record
        for key in keys[:-1]:
            inner = inner[key]
        if remove:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = value
        torch.save(record, path)

    return damage


def cut(path: Path) -> None:
    """Remove the second half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def saved(value: object) -> Callable[[Path], None]:
    """Save another value in torch's format."""
    return lambda path: torch.save(value, path)


def folder(path: Path) -> None:
    """Replace the file by a folder."""
    path.unlink()
    path.mkdir()


def dangling(path: Path) -> None:
    """Replace the file by a dangling link."""
    path.unlink()
    path.symlink_to("nowhere")


def not_finite(path: Path) -> None:
    """Write NaN into the first tensor of the policy."""
    record = torch.load(path, weights_only=True)
    next(iter(record["policy"].values())).fill_(float("nan"))
    torch.save(record, path)


def resumed(name: str, says: str, damage: Callable[[Path], object] | str | bytes, **more: Any) -> Attack:
    """Resume a run whose last checkpoint has been damaged."""
    return refused(name, "esper.train resume=outputs/stopped", says, given=("stopped",), files={LAST: damage}, **more)


def transferred(name: str, words: str, says: str) -> Attack:
    """Start a run from another one's policy."""
    return refused(name, f"esper.train $tiny name=new {words}", says, given=("done", "judged"))


ATTACKS = [
    resumed("resume from half a file", f"{LAST} is truncated or not a checkpoint", cut),
    resumed("resume from an empty file", f"{LAST} is truncated or not a checkpoint", b""),
    resumed("resume from text", f"{LAST} is truncated or not a checkpoint", "hello\n"),
    resumed("resume from a folder", f"no checkpoint at .*{LAST}", folder),
    resumed("resume from a dangling link", f"no checkpoint at .*{LAST}", dangling),
    refused(
        "resume from what is gone",
        "esper.train resume=outputs/longer",
        "longer/checkpoints/last.pt is missing, .* with checkpoint.path=.*longer/checkpoints/iteration-00002.pt",
        given=("longer",),
        files={"outputs/longer/checkpoints/last.pt": Path.unlink},
    ),
    resumed("resume from a table of others", f"{LAST} is not an Esper checkpoint", saved({"a": 3})),
    resumed("resume from a list", f"{LAST} is not an Esper checkpoint", saved([3])),
    resumed("resume from a pickled module", f"{LAST} is truncated or not a checkpoint", saved(torch.nn.Linear(2, 2))),
    resumed("resume from a pickled function", f"{LAST} is truncated or not a checkpoint", pickle.dumps(os.system)),
    resumed("resume from another seed's", "of another run: it has seed=7, not 0", damaged("config", "seed", value=7)),
    resumed("resume without training", f"{LAST} .*training", damaged("training", remove=True)),
    resumed("resume from training that is none", f"{LAST} .*training", damaged("training")),
    resumed("resume without ranks", f"{LAST} .*ranks", damaged("training", "ranks", remove=True)),
    resumed("resume without policy", f"{LAST} .*policy", damaged("policy", remove=True)),
    resumed("resume without iteration", f"{LAST} .*iteration", damaged("iteration", remove=True)),
    resumed("resume without configuration", f"{LAST} .*config", damaged("config", remove=True)),
    resumed("resume from text for a number", f"{LAST} .*iteration", damaged("iteration", value="x")),
    transferred("transfer from nowhere", "checkpoint.path=nowhere", "no checkpoint at .*nowhere"),
    transferred("transfer from a folder of runs", "checkpoint.path=outputs", "no checkpoint at .*outputs"),
    transferred("transfer from an evaluation", "checkpoint.path=outputs/judged", "no checkpoint at .*outputs/judged"),
    transferred(
        "transfer from a text file", "checkpoint.path=outputs/done/config.yaml", "is truncated or not a checkp"
    ),
    transferred(
        "transfer to fewer slots",
        "checkpoint.path=outputs/done slots.num_slots=2",
        "has a policy of 3 slots, slots.num_slots is 2: .*checkpoint.partial=true",
    ),
    transferred(
        "transfer to another size",
        "checkpoint.path=outputs/done policy.lstm_dim=8",
        "has policy.lstm_dim=16, not 8: use the same, or train from scratch",
    ),
    refused(
        "transfer of NaN",
        "esper.train $tiny name=new checkpoint.path=outputs/done",
        "outputs/done.*finite",
        given=("done",),
        files={"outputs/done/checkpoints/last.pt": not_finite},
    ),
    goes_on(
        "transfer within reason",
        "esper.train $tiny name=new checkpoint.path=outputs/done",
        "outputs/new",
        given=("done",),
        runs={"outputs/new": "finished"},
    ),
    refused(
        "evaluation of NaN",
        "esper.evaluate checkpoint=outputs/done controllers=[learned] num_hosts=2",
        "outputs/done.*finite",
        given=("done",),
        files={"outputs/done/checkpoints/last.pt": not_finite},
    ),
    refused(
        "evaluation without policy",
        "esper.evaluate checkpoint=outputs/done controllers=[learned] num_hosts=2",
        "outputs/done.*policy",
        given=("done",),
        files={"outputs/done/checkpoints/last.pt": damaged("policy", remove=True)},
    ),
    refused(
        "evaluation of half a file",
        "esper.evaluate checkpoint=outputs/done controllers=[learned] num_hosts=2",
        "outputs/done/checkpoints/last.pt is truncated or not a checkpoint",
        given=("done",),
        files={"outputs/done/checkpoints/last.pt": cut},
    ),
]
