"""Pages and messages ask to install this project only: `esper` on the package index is another."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import esper

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TREES = (".ci", ".github", "conf", "docs", "esper", "examples", "experiments", "benchmarks", "tests")
TEXTS = (".md", ".py", ".yaml", ".yml", ".toml", ".ipynb", ".cff")
INSTALLED = re.compile(r"pip install (?:--?[\w-]+ )*(?P<quote>['\"]?)(?P<what>[^\s'\"`]+)(?P=quote)")
OURS = re.compile(r"(?:\.|esper-grow)(?:\[(?P<extras>[\w,]+)\])?|esper_grow-[\w.]+-py3-none-any\.whl|-r")
FORMATTED = re.compile(r"\{.*\}|\\")
"""Placeholders of messages, and escapes in patterns of tests."""


def pages() -> list[Path]:
    """Texts of the repository, but for this file."""
    below = [path for tree in TREES for path in (ROOT / tree).rglob("*") if path.suffix in TEXTS]
    return [path for path in [*ROOT.glob("*.md"), ROOT / "Makefile", *below] if path != Path(__file__)]


def test_what_is_to_be_installed_is_this_project() -> None:
    wrong, found = [], 0
    for path in pages():
        text = path.read_text("utf-8")
        for match in INSTALLED.finditer(text):
            what, found = FORMATTED.sub("", match["what"]), found + 1
            ours = OURS.fullmatch(what.replace("[]", ""))
            named = (ours["extras"] or "").split(",") if ours else []
            if ours is None or not set(named) - {""} <= set(PROJECT["optional-dependencies"]):
                wrong.append(f"{path.relative_to(ROOT)}: {match[0]}")
        wrong += [f"{path.relative_to(ROOT)}: {match[0]}" for match in re.finditer(r"\besper\\?\[\w+\\?\]", text)]
    assert found > 10
    assert not wrong, "\n".join(wrong)


def test_the_distribution_has_a_name_of_its_own_and_the_version_of_the_package() -> None:
    assert PROJECT["name"] == "esper-grow"
    assert PROJECT["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", esper.__version__)
