"""Build Esper's workspace in W&B: ``python -m esper.dashboard --entity me --project esper``."""

from __future__ import annotations

import argparse
import json

from esper.launch.begin import start
from esper.runtime.terminal import say


def main() -> None:
    """Save the workspace, and print its address; with ``--print`` only print its content."""
    parser = argparse.ArgumentParser(prog="python -m esper.dashboard", description=__doc__)
    parser.add_argument("--entity", required=True, help="user or team that the project belongs to")
    parser.add_argument("--project", default="esper", help="project of the runs (wandb.project; default esper)")
    parser.add_argument("--name", default="Esper", help="name of the view (default Esper)")
    parser.add_argument(
        "--by", nargs="*", default=[], metavar="KEY", help="keys of a sweep by which to group runs, as ppo.ent_coef"
    )
    parser.add_argument(
        "--print", action="store_true", dest="only_print", help="print the workspace as JSON instead of sending it"
    )
    arguments = parser.parse_args()
    try:
        import wandb
        import wandb_workspaces  # noqa: F401
    except ModuleNotFoundError:
        parser.error("the workspace is built with W&B's own library: pip install '.[dashboard]'")
    # Imported here, so that help and errors of use appear at once.
    from esper.telemetry.wandb_mirror import check_online
    from esper.views.workspace import workspace

    view = workspace(arguments.entity, arguments.project, arguments.name, arguments.by)
    if arguments.only_print:
        say(json.dumps(view._to_model().model_dump(by_alias=True, mode="json"), indent=2))
        return
    try:
        check_online()
        view.save()
    except (ValueError, wandb.errors.Error) as error:
        say(f"error: {error}", stderr=True)
        raise SystemExit(1) from None
    say(view.url)


if __name__ == "__main__":
    raise SystemExit(start("esper.dashboard"))
