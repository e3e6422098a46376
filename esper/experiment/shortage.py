"""Ends of a run that are no fault of Esper's, in one line: a full disk, no memory, a user's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from esper.config.errors import RunError
from esper.config.evaluate import EvaluateConfig
from esper.config.naming import as_typed
from esper.config.root import Config
from esper.config.words import shell_word
from esper.runtime.files import unwritable
from esper.runtime.user_code import UsersCodeError

ELSEWHERE = "choose another place with hydra.run.dir=<folder> (a sweep: hydra.sweep.dir=<folder>)"
"""Advice about a folder that takes no files."""

OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "Cannot allocate memory",
    "Storage size calculation overflowed",  # more bytes than there are numbers for
)
"""Parts of the messages by which allocators of all devices say that there is no more."""


def out_of_memory(error: BaseException | None) -> BaseException | None:
    """The refusal of an allocator from which an error came, whatever the device; ``None`` if there was none."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return error
        if isinstance(error, RuntimeError | OSError) and any(part in str(error) for part in OF_MEMORY):
            return error
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def shortages(
    config: Config | EvaluateConfig | None = None,
    folder: Path | None = None,
    resumable: Callable[[], bool] = lambda: False,
    *,
    begun: bool = True,
) -> Iterator[None]:
    """Turn a full disk, a lack of memory and what fails in a user's code into a :class:`RunError`.

    It names what to change, and how to go on with what there is.

    Args:
        config: whose keys are named, if it is known already.
        folder: of the run.
        resumable: whether there is something to go on with.
        begun: false in the checks before a run: what a user's code does wrong there is a request to be refused, and
            is left as it is.
    """
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        line = explain(error, config)
        if line is None and begun and isinstance(error, UsersCodeError):
            line = str(error)
        if line is None:
            raise
        raise RunError(f"{line}{_kept(config, folder, resumable())}") from error


def _kept(config: object, folder: Path | None, resumable: bool) -> str:
    """Say how to resume, or to use what was tuned; empty if nothing of it can be used again."""
    if folder is None:
        return ""
    if resumable:
        return f"; {shell_word('resume', folder)} goes on with this run"
    tuned = folder / "tuning.json"
    kept = isinstance(config, EvaluateConfig) and tuned.exists()
    return f"; {shell_word('tuning', tuned)} keeps what was tuned" if kept else ""


def explain(error: BaseException, config: object) -> str | None:
    """Name the shortage and the keys to change; ``None`` for another error."""
    refusal = unwritable(error)
    if refusal is not None:
        what = refusal.filename or "a file"
        return f"{what} cannot be written ({refusal.strerror}): make room, or {ELSEWHERE}"
    shortage = out_of_memory(error)
    if shortage is not None:
        return f"out of memory ({_first_line(shortage)}): {_smaller(config)}"
    return None


def _first_line(error: BaseException) -> str:
    """Message of an allocator, without the place in its source and its advice."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    _, found, said = text.partition("err == 0. ")
    return (said if found else text).partition(". ")[0].rstrip(".")


def _smaller(config: object) -> str:
    """Keys that cost memory, with their values."""
    if isinstance(config, EvaluateConfig):
        return f"lower num_hosts ({config.num_hosts}), or share the hosts out with devices=[...]"
    if isinstance(config, Config):
        trainer, task = config.trainer, config.task
        return (
            f"lower trainer.num_envs ({trainer.num_envs}), trainer.num_steps ({trainer.num_steps}), task.batch_size "
            f"({task.batch_size}), evaluation.num_hosts ({config.evaluation.num_hosts}), {_widths(config)}, or share "
            "the hosts out with devices=[...]"
        )
    return "lower trainer.num_envs, task.batch_size or task.max_samples"


def _widths(config: Config) -> str:
    """Keys that say how wide networks are, with their values."""
    host = [
        f"host.{key} ({as_typed(getattr(config.host, key))})"
        for key in ("widths", "width", "mlp_width")
        if hasattr(config.host, key)
    ]
    return ", ".join([*host, f"policy.lstm_dim ({config.policy.lstm_dim}) or its other widths"])
