"""Loading of configuration files, Esper's and the user's, with Hydra's loader and errors that name the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import GroupDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from esper.config.errors import UsageError, unreadable
from esper.config.hydra_private import ConfigLoaderImpl, ConfigRepository
from esper.config.identity import flat
from esper.config.naming import as_typed

OPEN = "???"
"""Marker in a file for a value that must be set elsewhere."""

_KEYS = re.compile(r"^(?:no value for )?([a-z_][\w.]*)|([a-z_]\w*(?:\.\w+)+)")
"""Pattern of keys in a message: its first word, and all words with a dot."""


@dataclass
class Noted:
    """Notes on files that were read, shared by all copies of a repository.

    Attributes:
        open_values: true if a file leaves a value open.
        choosers: file by ``group/name`` of the choice that it overrides.
    """

    open_values: bool = False
    choosers: dict[str, str] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self


class Files(ConfigRepository):
    """Hydra's repository of configuration files, with errors that name the file."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.noted = Noted()

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Read a file; return ``None`` if it does not exist.

        Raises:
            UsageError: it cannot be read, or holds no keys and values; the message names it.
        """
        try:
            found = super().load_config(config_path)
            if found is not None and not OmegaConf.is_dict(found.config):
                raise ValueError("a configuration file has keys and values, not a list")
        except GrammarParseError as error:
            raise UsageError(f"{config_path}.yaml: {self._ungrammatical(config_path)}{unreadable(error)}") from error
        except (yaml.YAMLError, OmegaConfBaseException, HydraException, OSError, ValueError) as error:
            raise UsageError(f"{config_path}.yaml: {unreadable(error)}") from error
        if found is not None and found.path.startswith("file:"):
            self.noted.open_values |= OPEN in _keys(found.config).values()
            chosen = (default for default in found.defaults_list or () if isinstance(default, GroupDefault))
            for default in (default for default in chosen if default.override):
                for name in default.value if isinstance(default.value, list) else [default.value]:
                    self.noted.choosers[f"{(default.group or '').lstrip('/')}/{name}"] = config_path
        return found

    def _ungrammatical(self, config_path: str) -> str:
        """Return the key whose value contains an invalid ``${`` interpolation."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        assert source is not None, "it was read"
        content = yaml.safe_load(Path(source.path, f"{config_path}.yaml").read_text(encoding="utf-8"))
        for key, value in flat(content).items():
            try:
                OmegaConf.create({"value": value})
            except GrammarParseError:
                return f"{key}: "
        return ""


class Loader(ConfigLoaderImpl):
    """Loader that composes configurations from files, arguments and schemas."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = self.files = Files(config_search_path)
        self.asked: tuple[str | None, list[str]] = None, []
        self.composed = False

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Compose a configuration.

        Raises:
            HydraException, OmegaConfBaseException: as raised by Hydra.
            UsageError: a file cannot be read, includes itself, or leaves a value open that no argument sets.
        """
        self.asked, self.composed = (config_name, overrides), False
        self._check_choices(overrides)
        try:
            cfg = super().load_configuration(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        except RecursionError:
            raise UsageError(
                "a defaults list leads back to its own file, perhaps through others: "
                f"look at the files of {' '.join(overrides) or config_name}"
            ) from None
        except MissingConfigException as error:
            group = (error.missing_cfg_file or "").rpartition("/")[0]
            if group and error.options is None:
                error.options = self.files.get_group_options(group)
            # Hydra attributes choices of arguments, and overrides in files, to the root.
            chooser = self.files.noted.choosers.get(error.missing_cfg_file or "")
            asked = {word.key_or_group for word in OverridesParser.create().parse_overrides(overrides)}
            if group in asked or chooser:
                told = str(error).removeprefix(f"In '{config_name}': ")
                error.args = (f"In '{chooser}': {told}" if chooser and group not in asked else told,)
            raise
        if run_mode is RunMode.RUN and self.files.noted.open_values:  # a sweep's jobs get their arguments later
            self._require_values(overrides)
        self.composed = True
        return cfg

    def _check_choices(self, words: Sequence[str]) -> None:
        """Refuse arguments that choose files by anything but names."""
        for word in OverridesParser.create().parse_overrides(list(words)):
            chosen = word.value()
            names = chosen if isinstance(chosen, list) else [chosen]
            by_name = (
                all(isinstance(name, str | dict) for name in names) or word.is_delete() or word.is_sweep_override()
            )
            if not by_name and self.files.group_exists(word.key_or_group):
                raise UsageError(
                    f"{word.key_or_group} must be the name of a file, or a list of names, got {as_typed(chosen)}"
                )

    def _require_values(self, words: Sequence[str]) -> None:
        """Refuse values that a file leaves open (``???``) if neither a later file nor an argument sets them."""
        # Hydra reads an open value as no value at all, and keeps the one from before.
        given = self._given(words)
        open_keys: dict[str, str] = {}
        for path, keys in self._contents():
            open_keys = {key: file for key, file in open_keys.items() if key not in keys}
            open_keys |= {key: path for key, value in keys.items() if value == OPEN}
        for key, path in open_keys.items():
            if not _among(key, given):
                raise UsageError(f"{path}.yaml: no value for {key}: use {key}=<value>")

    def located(self, message: str) -> str:
        """Append to a message the file that sets the value in question, for the configuration composed last.

        It is the last file that sets the first key in the message that files set; none if an argument sets any key in
        it.
        """
        file, colon, rest = message.partition(".yaml: ")
        if colon:  # composing names the file, but not always the value
            must = None if " got " in rest else re.match(r"([a-z_][\w.]*) must be", rest)
            values = (
                [keys[must[1]] for path, keys in self._contents() if path == file and must[1] in keys] if must else []
            )
            return f"{message}, got {as_typed(values[-1])}" if values else message
        if not self.composed:
            return message
        given, contents = self._given(self.asked[1]), list(self._contents())
        named = [(match[1] or match[2]).rstrip(".") for match in _KEYS.finditer(message)]
        if any(_among(key, given) for key in named):
            return message
        for key in named:
            # A file may set an entry of a dictionary as a whole.
            for name in (key, key.rpartition(".")[0]) if key.count(".") > 1 else (key,):
                for path, keys in reversed(contents):
                    if any(_among(name, {own}) for own in keys):
                        return f"{path}.yaml: {message}"
        return message

    def _given(self, words: Sequence[str]) -> set[str]:
        """Return the keys that arguments, not files, set."""
        parsed = OverridesParser.create().parse_overrides(list(words))
        return {
            word.key_or_group
            for word in parsed
            if isinstance(word.value(), dict) or not self.files.group_exists(word.key_or_group)
        }

    def _contents(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Iterate over the chosen files in merge order, with their full keys."""
        for default in self.compute_defaults_list(*self.asked, RunMode.RUN).defaults:
            path = default.config_path or ""
            found = None if default.primary or path.startswith("hydra/") else self.files.load_config(path)
            if found is not None and not found.is_schema_source:
                yield path, _keys(self._embed_result_config(found, default.package).config)


def _keys(content: Container) -> dict[str, object]:
    """Return the values of a file by full key, without resolving interpolations."""
    plain = OmegaConf.to_container(content)
    return flat(cast(dict[str, object], plain)) if isinstance(plain, dict) else {}


def _among(key: str, given: set[str]) -> bool:
    """Return whether arguments set a key, its section, or an entry of it."""
    return any(key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in given)
