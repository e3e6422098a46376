"""Ends of a run that Esper does not cause, reported in one line: a full disk, no memory, a removed folder, a failure in
a user's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from esper.config.errors import RunError
from esper.config.evaluate import EvaluateConfig
from esper.config.naming import as_typed
from esper.config.root import Config
from esper.config.words import shell_word
from esper.runtime.files import unwritable
from esper.runtime.user_code import UsersCodeError

ELSEWHERE = "choose another place with hydra.run.dir=<folder> (a sweep: hydra.sweep.dir=<folder>)"
"""Advice for a folder that cannot be written."""

OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "Cannot allocate memory",
    "Storage size calculation overflowed",  # more bytes than an integer can count
)
"""Parts of the messages with which allocators of all devices report a lack of memory."""


def out_of_memory(error: BaseException | None) -> BaseException | None:
    """Return the allocator's error that caused an exception, whatever the device; ``None`` if there was none."""
    for cause in _causes(error):
        if isinstance(cause, MemoryError):
            return cause
        if isinstance(cause, RuntimeError | OSError) and any(part in str(cause) for part in OF_MEMORY):
            return cause
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Iterate over an error and the errors that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def shortages(
    config: Config | EvaluateConfig | None = None,
    folder: Path | None = None,
    resumable: Callable[[], bool] = lambda: False,
    *,
    begun: bool = True,
) -> Iterator[None]:
    """Turn a full disk, a lack of memory, a removed folder and failures in a user's code into a :class:`RunError`.

    The message names the keys to change, and the command to resume.

    Args:
        config: configuration whose keys are named, if it is known already.
        folder: folder of the run.
        resumable: returns whether there is something to resume.
        begun: false in the checks before a run: there a failure of a user's code is a refused request, and is not
            converted.
    """
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        line = explain(error, config)
        if line is None and begun and isinstance(error, UsersCodeError):
            line = str(error)
        if line is None and folder is not None and _removed(folder, error):
            line = f"{folder} was removed while this process was writing to it"
        if line is None:
            raise
        raise RunError(f"{line}{_kept(config, folder, resumable())}") from error


def _removed(folder: Path, error: Exception) -> bool:
    """Return whether a file could not be opened because the folder is gone."""
    missing = isinstance(error, FileNotFoundError) and folder in Path(str(error.filename)).parents
    return missing and not folder.exists()


def _kept(config: object, folder: Path | None, resumable: bool) -> str:
    """Return how to resume, or how to reuse tuning results; empty if nothing can be used again."""
    if folder is None:
        return ""
    if resumable:
        return f"; {shell_word('resume', folder)} resumes this run"
    tuned = folder / "tuning.json"
    kept = isinstance(config, EvaluateConfig) and tuned.exists()
    return f"; {shell_word('tuning', tuned)} keeps what was tuned" if kept else ""


def explain(error: BaseException, config: object) -> str | None:
    """Describe the shortage and the keys to change; ``None`` for another error."""
    refusal = unwritable(error)
    if refusal is not None:
        what = refusal.filename or "a file"
        return f"{what} cannot be written ({refusal.strerror}): make room, or {ELSEWHERE}"
    shortage = out_of_memory(error)
    if shortage is not None:
        said = f"out of memory ({_first_line(shortage)})"
        code = next((cause for cause in _causes(error) if isinstance(cause, UsersCodeError)), None)
        return f"{said}: {_smaller(config)}" if code is None else f"{said} in code of yours: {code}"
    return None


def _first_line(error: BaseException) -> str:
    """Return an allocator's message without its source position and advice."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    _, found, said = text.partition("err == 0. ")
    return (said if found else text).partition(". ")[0].rstrip(".")


def _smaller(config: object) -> str:
    """List the keys that determine memory use, with their values."""
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
    """List the keys that determine the widths of networks, with their values."""
    host = [
        f"host.{key} ({as_typed(getattr(config.host, key))})"
        for key in ("widths", "width", "mlp_width")
        if hasattr(config.host, key)
    ]
    return ", ".join([*host, f"policy.lstm_dim ({config.policy.lstm_dim}) or its other widths"])
