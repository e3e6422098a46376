"""A wheel carries ``conf/``, the report's templates and trained controllers in the package; no checkout is needed."""

from __future__ import annotations

import os
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from processes import run

from esper.config import CONF_DIR

ROOT = Path(__file__).parents[2]


def told(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may name a checkout
    done = run(command, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_preset_composes_from_an_installed_wheel(tmp_path: Path) -> None:
    told(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, cwd=ROOT)
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"esper/report/templates/page.html.j2", "esper/report/templates/page.css"} <= set(names)
    assert {f"esper/controllers/shipped/digits_pays.{ending}" for ending in ("pt", "json")} <= set(names)
    carried = {name.removeprefix("esper/conf/") for name in names if "/conf/" in name}
    assert carried == {str(path.relative_to(CONF_DIR)) for path in CONF_DIR.rglob("*") if path.is_file()}

    # Dependencies come from this environment; the path file of its editable Esper must not, so it is not inherited.
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(told(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    told(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    for path in Path(pytest.__file__).parents[1].iterdir():
        if not path.name.startswith(("esper", "_editable", "__editable")) and path.suffix != ".pth":
            (site / path.name).symlink_to(path) if not (site / path.name).exists() else None

    code = "import esper.config as c; print(c.CONF_DIR); print(c.compose('+preset=digits_deep').host.widths)"
    conf, widths = told(python, "-c", code, cwd=tmp_path).splitlines()
    assert Path(conf) == site / "esper" / "conf"
    assert widths == str([8] * 8)
    code = "from esper.report.page import ENVIRONMENT; ENVIRONMENT.get_template('page.html.j2')"
    told(python, "-c", code, cwd=tmp_path)
    shown = told(tmp_path / "venv" / "bin" / "esper-train", "--cfg", "job", "+preset=smoke", cwd=tmp_path)
    assert "num_envs: 4" in shown
