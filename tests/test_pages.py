"""Pages and the comments of configuration files: links lead somewhere, and commands are taken as they are written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine

from esper.launch.entries import EVALUATE, TRAIN

ROOT = Path(__file__).parents[1]
PATTERNS = (
    "*.md",
    "docs/*.md",
    "conf/**/*.*",
    "esper/**/*.md",
    "experiments/**/*.md",
    "benchmarks/*.md",
    "multirun/*.md",
)
FILES = sorted(str(path.relative_to(ROOT)) for pattern in PATTERNS for path in ROOT.glob(pattern) if path.is_file())
PAGES = [name for name in FILES if name.endswith(".md")]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"python -m (esper\.train|esper\.evaluate) ([^\n`#]*)")
ELSEWHERE = ("<", "…", "my_package", "mine", "host=custom", "hydra/launcher=", "checkpoint=", "plugins=[examples")
"""Parts of commands that need a run, a package or a cluster."""


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are made of their words."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    path = ROOT / page
    lost = []
    for found in LINK.finditer(re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)):
        target, _, anchor = (found[1] or found[2]).partition("#")
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        leads = (path.parent / target).resolve() if target else path
        if not leads.exists() or (anchor and anchor not in anchors(leads)):
            lost.append(found[0])
    assert lost == []


def commands() -> Iterator[tuple[str, str]]:
    """Iterate over the files and commands that can be tried without a run, a package or a cluster."""
    for name in FILES:
        text = re.sub(r"\\\n\s*", " ", (ROOT / name).read_text("utf-8"))
        for found in COMMAND.finditer(text):
            if not any(part in found[0] for part in ELSEWHERE):
                yield name, f"{found[1]} {found[2].strip()}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "command"), sorted(set(commands())))
def test_a_command_is_taken_as_it_is_written(esper: CommandLine, name: str, command: str) -> None:
    module, *words = shlex.split(command)
    code, err, _ = esper(*words, entry=TRAIN if module.endswith("train") else EVALUATE)
    assert (code, err) == (0, "")
