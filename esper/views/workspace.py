"""The W&B workspace of Esper's runs, built with W&B's own library: panels by section."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from esper.growth import STAGE_NAMES
from esper.growth.actions import HEADS, OP_NAMES
from esper.runtime.controller_names import LEARNED
from esper.telemetry.metric_names import ADDED, CHOICE_SHARE, FOSSILIZED, NEVER, RETURN, SPS, STAGE_SHARE, VAL
from esper.telemetry.wandb_mirror import STEP

if TYPE_CHECKING:
    import wandb_workspaces.workspaces as ws  # the extra dashboard

RESULT = f"closing/{LEARNED}/episode_return"
FRONTIER = (f"closing/{LEARNED}/added_parameters", f"closing/{LEARNED}/test_accuracy")


HEALTH = {
    "Losses": ("losses/policy_loss", "losses/value_loss"),
    "Explained variance (1 = values are right)": ("losses/explained_variance",),
    "KL divergence of an update": ("losses/approx_kl",),
    "Share of clipped ratios": ("losses/clipfrac",),
    "Share of ratios outside [0.1, 5]": ("losses/ratio_outside",),
    "Gradient norm before clipping": ("losses/grad_norm",),
    "Skipped minibatches": ("losses/skipped_minibatches",),
}
"""Panels of the section PPO health, with their metrics."""


def workspace(entity: str, project: str, name: str, swept: Sequence[str] = ()) -> ws.Workspace:
    """Build a view with learning curves, health of PPO, op mix, slots and the frontier, without sending it.

    Args:
        entity, project: owner and project of the runs.
        name: name of the view.
        swept: keys of the configuration by which runs are grouped; a panel of parallel coordinates shows them beside
            the results.
    """
    import wandb_workspaces.expr as expr
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    def line(title: str, *metrics: str) -> wr.LinePlot:
        return wr.LinePlot(title=title, x=STEP, y=list(metrics))

    def section(title: str, *panels: object) -> ws.Section:
        return ws.Section(name=title, panels=list(panels), is_open=True)

    axes = [wr.Config(key) for key in swept] + [wr.SummaryMetric(metric) for metric in (RESULT, *FRONTIER)]
    columns = [wr.ParallelCoordinatesPlotColumn(metric=axis) for axis in axes]
    compared = [wr.ParallelCoordinatesPlot(title="Swept keys and results", columns=columns)] if swept else []
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        settings=ws.WorkspaceSettings(x_axis=STEP),
        runset_settings=ws.RunsetSettings(groupby=[expr.Config(key) for key in swept]),
        sections=[
            section(
                "Learning curves",
                line("Mean episodic return (never grow = 0)", RETURN),
                line("Final val accuracy, and of the never-grown twins", VAL, NEVER),
                line("Added parameters", ADDED),
                line("Env-epochs per second", SPS),
            ),
            section("PPO health", *(line(title, *metrics) for title, metrics in HEALTH.items())),
            section(
                "Actions",
                line("Normalised entropy of each head", *(f"losses/entropy/{head}" for head in HEADS)),
                line("Op mix, where there is a choice", *(f"{CHOICE_SHARE}{op}" for op in OP_NAMES)),
            ),
            section(
                "Slots",
                line("Stages of slots, as shares", *(f"{STAGE_SHARE}{stage}" for stage in STAGE_NAMES[1:])),
                line("Modules kept", FOSSILIZED),
                wr.MediaBrowser(title="Slot timelines", media_keys=[f"plots/slot_timeline_{LEARNED}"]),
            ),
            section(
                "Results",
                *compared,
                wr.ScatterPlot(
                    title="Test accuracy against added parameters",
                    x=wr.SummaryMetric(FRONTIER[0]),
                    y=wr.SummaryMetric(FRONTIER[1]),
                ),
            ),
        ],
    )
