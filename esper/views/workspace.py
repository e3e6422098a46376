"""The W&B workspace of Esper's runs, as W&B's own library describes it: which panels, in which sections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.growth import STAGE_NAMES
from esper.growth.actions import HEADS, OP_NAMES
from esper.telemetry.metric_names import ADDED, CHOICE_SHARE, FOSSILIZED, NEVER, RETURN, SPS, STAGE_SHARE, VAL
from esper.telemetry.wandb_mirror import STEP

if TYPE_CHECKING:
    import wandb_workspaces.workspaces as ws  # an extra: esper[dashboard]

LEARNED = "closing/learned"
FRONTIER = (f"{LEARNED}/added_parameters", f"{LEARNED}/test_accuracy")


def workspace(entity: str, project: str, name: str) -> ws.Workspace:
    """A view with learning curves, entropies, op mix, slots and the frontier; nothing is sent.

    Args:
        entity, project: whose runs it shows.
        name: of the view.
    """
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    def line(title: str, *metrics: str) -> wr.LinePlot:
        return wr.LinePlot(title=title, x=STEP, y=list(metrics))

    def section(title: str, *panels: object) -> ws.Section:
        return ws.Section(name=title, panels=list(panels), is_open=True)

    entropy = {head: f"losses/entropy/{head}" for head in HEADS}
    stages = {stage: f"{STAGE_SHARE}{stage}" for stage in STAGE_NAMES[1:]}
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        settings=ws.WorkspaceSettings(x_axis=STEP),
        sections=[
            section(
                "Learning curves",
                line("Mean episodic return (never grow = 0)", RETURN),
                line("Final val accuracy, and of the never-grown twins", VAL, NEVER),
                line("Added parameters", ADDED),
                line("Env-epochs per second", SPS),
            ),
            section("Entropy of each head", *(line(head, metric) for head, metric in entropy.items())),
            section("Op mix, where there is a choice", *(line(op, f"{CHOICE_SHARE}{op}") for op in OP_NAMES)),
            section(
                "Slots",
                *(line(stage, metric) for stage, metric in stages.items()),
                line("Modules kept", FOSSILIZED),
                wr.MediaBrowser(title="Slot timelines", media_keys=["plots/slot_timeline_learned"]),
            ),
            section(
                "Frontier",
                wr.ScatterPlot(
                    title="Test accuracy against added parameters",
                    x=wr.SummaryMetric(FRONTIER[0]),
                    y=wr.SummaryMetric(FRONTIER[1]),
                ),
            ),
        ],
    )
