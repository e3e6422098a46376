"""Files around the package keep up with it: version, site, Python interface, image, workflow."""

from __future__ import annotations

import os
import re
import runpy
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import esper
from esper.launch import begin

ROOT = Path(__file__).parents[1]
API = re.findall(r"^::: ([\w.]+)\.(\w+)$", (ROOT / "docs" / "api.md").read_text("utf-8"), re.MULTILINE)


def pages(part: object) -> list[str]:
    """Return the pages in a part of the navigation."""
    if isinstance(part, dict | list):
        return [page for each in (part.values() if isinstance(part, dict) else part) for page in pages(each)]
    return [str(part)]


def test_citation_and_changelog_are_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["version"], citation["license"]) == (esper.__version__, "Apache-2.0")
    assert f"\n## {esper.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_every_page_of_docs_has_its_place_on_the_site_and_every_page_there_exists() -> None:
    shown = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    assert {path for path in shown if not (ROOT / path).is_file()} == set()
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= set(shown)


@pytest.mark.parametrize(("module", "name"), API, ids=lambda each: each)
def test_a_name_on_the_page_of_the_interface_is_there(module: str, name: str) -> None:
    assert hasattr(import_module(module), name)


def test_every_name_of_the_package_is_on_that_page() -> None:
    assert {name for module, name in API if module == "esper"} == set(esper.__all__) - {"Config"}


def test_the_image_is_made_of_files_that_exist() -> None:
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    assert len(lines) < 20
    copied = [source for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]]
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_the_workflow_runs_what_is_run_here() -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))["jobs"]["ci"]
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_command_is_a_script_too() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    commands = {"train", "evaluate", "export", "report", "watch", "dashboard"}
    assert scripts == {f"esper-{name}": f"esper.launch.begin:{name}" for name in commands}
    assert all(callable(getattr(begin, name)) for name in commands)


def test_the_site_shows_what_docstrings_refer_to_without_the_names_of_roles() -> None:
    show = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))["on_page_content"]
    assert show("as :func:<code>esper.compose</code> or :meth:<code>step</code>: yes") == (
        "as <code>esper.compose</code> or <code>step</code>: yes"
    )
