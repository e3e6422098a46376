"""``--help`` of a command: one line for each file of its groups, and one for each key with its value."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from esper.config.hosts import HOST_GROUP
from esper.config.naming import as_typed
from esper.config.paths import CONF_DIR
from esper.config.reference import meanings
from esper.launch.entries import Entry
from esper.runtime.terminal import say

LAUNCHERS = "hydra/launcher"
COLUMN = 34
"""Characters before the texts."""

ADDED = ("preset", "debug", "sweep")
"""Groups that need a plus, because no file of theirs is chosen by default."""

_MADE = re.compile(r"\$\{esper\.\w+:\}")
"""A value that is made for each command."""

INTRODUCTION = """\
python -m esper.{command} [key=value ...]        docs/configuration.md says more about every key

  --cfg job                         prints the configuration instead of running it, as YAML
  -m key=a,b                        sweeps over values (docs/sweeps.md)
  --config-dir FOLDER               reads files of your own too (conf/README.md)
  --hydra-help                      lists the other flags"""


def show_help(entry: Entry, config: DictConfig, config_dir: str | None = None) -> None:
    """Print the help of a command; lines are cut at the width of a terminal.

    Args:
        entry: the command.
        config: composed configuration, whose values are shown.
        config_dir: folder with the user's own files.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in help_lines(entry, config, config_dir):
        say(line if width is None or len(line) <= width else f"{line[: width - 1]}…")


def help_lines(entry: Entry, config: DictConfig, config_dir: str | None = None) -> Iterator[str]:
    """Iterate over the lines of the help of a command."""
    command = "train" if entry.groups else entry.config_name
    yield from INTRODUCTION.format(command=command).splitlines()
    folders = [CONF_DIR, *([] if config_dir is None else [Path(config_dir)])]
    for group in (*entry.groups, LAUNCHERS):
        yield from ("", f"{group}:")
        for name, text in sorted(_options(group, folders).items()):
            yield _line(f"{'+' if group in ADDED else ''}{group}={name}", text)
    plain: Any = OmegaConf.to_container(config, resolve=False)
    texts = meanings(entry.schema, plain.get("host", {}).get("name"))
    found = [(key.rpartition(".")[0].partition(".")[0], key, value) for key, value in _values(plain, texts)]
    section = None
    for start, key, value in sorted(found, key=lambda item: item[0] != ""):
        if start != section:
            section = start
            yield from ("", f"{section or 'run'}:")
        shown = "..." if _MADE.fullmatch(str(value)) else as_typed(value)
        yield _line(f"{key}={shown}", re.split(r"(?<=\.) (?=[A-Z])", texts[key])[0])


def _line(word: str, text: str) -> str:
    return f"  {word:<{COLUMN - 2}}  {text}".rstrip()


def _options(group: str, folders: list[Path]) -> dict[str, str]:
    """Return the names in a group with the first comment of their files."""
    found = {path.stem: _comment(path) for folder in folders for path in (folder / group).glob("*.yaml")}
    if group == "host":
        for name, schema in HOST_GROUP.items():
            text = " ".join((inspect.getdoc(schema) or "").split()).partition(". ")[0].rstrip(".")
            found[name] = text.replace("Section ``host``", "Schema") + "."
    return found


def _comment(path: Path) -> str:
    """Return the first comment of a file that is neither Hydra's nor a command."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("# ")
        if line.startswith("# ") and not text.startswith(("@package", "python -m ")):
            return text
    return ""


def _values(plain: Mapping[str, Any], texts: Mapping[str, str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the keys that have a text, with their values."""
    for name, value in plain.items():
        key = f"{prefix}{name}"
        if key in texts:
            yield key, value
        elif isinstance(value, dict) and key != "hydra":
            yield from _values(value, texts, f"{key}.")
