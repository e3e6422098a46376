"""Every plot is a readable PNG, whatever there is to draw, and says what was recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure

from esper.growth import Stage
from esper.growth.actions import OP_NAMES
from esper.telemetry.metric_names import GAIN_SEM, NEVER, VAL
from esper.telemetry.timeline import EpisodeTimeline, OpMark
from esper.views import plots, timeline_plot
from esper.views.palette import OP_MARKERS, STAGE_COLOURS
from esper.views.plots import learning_curve, op_mix
from esper.views.timeline_plot import Run, runs, slot_timeline
from tests.tiers import few

SLOT_IDS = ("r0c0", "r0c1")


def test_every_op_but_wait_has_a_marker_and_every_stage_a_colour() -> None:
    assert set(OP_MARKERS) == set(OP_NAMES) - {"WAIT"}
    assert len(set(OP_MARKERS.values())) == len(OP_MARKERS)
    assert set(STAGE_COLOURS) == {stage.name for stage in Stage}


def history(length: int) -> list[dict[str, float | None]]:
    return [
        {
            "iteration": iteration,
            "charts/episodic_return": 0.1 * iteration,
            "charts/episodic_return_sem": 0.05,
            "charts/final_val_accuracy": 0.7 + 0.01 * iteration,
            "charts/final_val_accuracy_sem": None,
            "charts/never_val_accuracy": 0.7,
            "charts/val_accuracy_gain_sem": 0.002,
            **{f"ops/choice_share/{op}": 1 / len(OP_NAMES) for op in OP_NAMES},
        }
        for iteration in range(1, length + 1)
    ]


def episode(num_epochs: int = 12, *, twin: bool = True) -> EpisodeTimeline:
    """Slot 0 stays empty; slot 1 goes through every stage that a module can."""
    stages = torch.full((num_epochs, 2), int(Stage.DORMANT))
    stages[:, 1] = torch.tensor(([1, 2, 3, 3, 4, 5, 6, 7, 8, 9] + [1] * num_epochs)[:num_epochs])
    blueprints = [(None, "conv_light" if 1 <= epoch < 7 else None) for epoch in range(num_epochs)]
    alphas = torch.zeros(num_epochs, 2)
    alphas[4:7, 1] = torch.tensor([0.5, 1.0, 1.0])[: max(0, min(3, num_epochs - 4))]
    ops = [OpMark("WAIT", None, True)] * num_epochs
    for epoch, op in enumerate(OP_MARKERS):
        if epoch < num_epochs:
            ops[epoch] = OpMark(op, 1, epoch % 2 == 0)
    accuracy = torch.linspace(0.3, 0.9, num_epochs)
    return EpisodeTimeline(
        stages=stages,
        alphas=alphas,
        slot_ids=SLOT_IDS,
        blueprints=tuple(blueprints),
        ops=tuple(ops),
        val_accuracy=accuracy,
        twin_accuracy=accuracy * 0.8 if twin else None,
        family="intact",
        instance=3,
        controller="learned",
    )


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures as they were saved."""
    saved: list[Figure] = []
    real = plots.save

    def keep(figure: Figure, path: Path) -> None:
        saved.append(figure)
        real(figure, path)

    monkeypatch.setattr(plots, "save", keep)
    monkeypatch.setattr(timeline_plot, "save", keep)
    return saved


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000


def texts(figure: Figure) -> str:
    legends = [legend for axes in figure.axes if (legend := axes.get_legend())] + figure.legends
    shown = [text.get_text() for axes in figure.axes for text in axes.texts]
    return "\n".join(shown + [text.get_text() for legend in legends for text in legend.get_texts()])


@pytest.mark.parametrize("length", [0, 1, 2, 80])
@few(2)
def test_curves_are_drawn_for_any_number_of_iterations(length: int, tmp_path: Path) -> None:
    learning_curve(history(length), tmp_path / "plots" / "curve.png", never_accuracy=0.71)
    op_mix(history(length), tmp_path / "plots" / "mix.png")
    assert is_png(tmp_path / "plots" / "curve.png")
    assert is_png(tmp_path / "plots" / "mix.png")


def test_an_empty_history_is_said_in_the_picture(tmp_path: Path, figures: list[Figure]) -> None:
    learning_curve([], tmp_path / "curve.png")
    op_mix([], tmp_path / "mix.png")
    assert "no iterations recorded" in texts(figures[0])
    assert "no iteration with a choice" in texts(figures[1])


def test_the_learning_curve_shows_both_never_lines(tmp_path: Path, figures: list[Figure]) -> None:
    learning_curve(history(5), tmp_path / "curve.png", never_accuracy=0.71)
    returns, accuracy, _ = figures[0].axes
    assert any(set(line.get_ydata()) == {0.0} for line in returns.lines)  # type: ignore[arg-type]
    assert any(set(line.get_ydata()) == {0.71} for line in accuracy.lines)  # type: ignore[arg-type]
    assert any(set(line.get_ydata()) == {0.7} for line in accuracy.lines)  # type: ignore[arg-type]


def test_an_iteration_without_a_choice_is_a_gap_and_not_a_zero(tmp_path: Path, figures: list[Figure]) -> None:
    records = history(4)
    records[1] |= dict.fromkeys([f"ops/choice_share/{op}" for op in OP_NAMES])
    op_mix(records, tmp_path / "mix.png")
    (axes,) = figures[0].axes
    tops = axes.patches[-1].get_data().values  # type: ignore[attr-defined]
    assert tops[[0, 2, 3]] == pytest.approx([1.0, 1.0, 1.0])
    assert tops[1] != tops[1]


@pytest.mark.parametrize("twin", [True, False])
@pytest.mark.parametrize("num_epochs", [0, 1, 12, 60])
@few(3)
def test_a_timeline_is_drawn_for_any_episode(num_epochs: int, twin: bool, tmp_path: Path) -> None:
    slot_timeline(episode(num_epochs, twin=twin), tmp_path / "timeline.png")
    assert is_png(tmp_path / "timeline.png")


def test_a_timeline_names_module_stages_ops_and_twin(tmp_path: Path, figures: list[Figure]) -> None:
    slot_timeline(episode(), tmp_path / "timeline.png")
    shown = texts(figures[0])
    for text in ("conv_light", "fossilized", "germinated", *OP_MARKERS, "never-grown twin", "not executed"):
        assert text in shown
    assert "unknown" not in shown
    assert [label.get_text() for label in figures[0].axes[0].get_yticklabels()] == list(SLOT_IDS)


def test_a_timeline_says_what_was_scored_where_a_module_was_not_kept(tmp_path: Path, figures: list[Figure]) -> None:
    for scored in (0.632, 0.9):
        slot_timeline(replace(episode(), scored=scored), tmp_path / "timeline.png")
    apart, same = (texts(figure) for figure in figures)
    assert "grown (90.0% at the end)" in apart
    assert "scored, without what was not kept (63.2%)" in apart
    assert "scored" not in same, "the host at the end is what is scored"


def test_the_learning_curve_has_the_gain_on_the_twins_of_the_same_hosts(tmp_path: Path, figures: list[Figure]) -> None:
    rows = [row | {NEVER: 0.7} for row in history(3)]
    learning_curve(rows, tmp_path / "learning_curve.png")
    gain = figures[0].axes[2].lines[0].get_ydata()
    assert list(gain) == pytest.approx([100 * (row[VAL] - row[NEVER]) for row in rows])
    (band,) = figures[0].axes[2].collections
    assert band.get_paths()[0].get_extents().y0 == pytest.approx(gain[0] - 100 * rows[0][GAIN_SEM])


def test_runs_cover_all_epochs_without_overlap() -> None:
    assert list(runs([1, 1, 4, 1])) == [Run(1, 0, 2), Run(4, 2, 3), Run(1, 3, 4)]
    assert list(runs([])) == []


def test_a_timeline_with_rows_missing_is_refused() -> None:
    whole = episode()
    parts = {name: getattr(whole, name) for name in EpisodeTimeline.__slots__}
    with pytest.raises(ValueError, match="12 rows, but"):
        EpisodeTimeline(**parts | {"ops": whole.ops[:-1]})
    with pytest.raises(ValueError, match="share one shape"):
        EpisodeTimeline(**parts | {"alphas": whole.alphas[:, :1]})
    with pytest.raises(ValueError, match="for 3 slot ids, got"):
        EpisodeTimeline(**parts | {"slot_ids": ("a", "b", "c")})


def test_drawing_leaves_no_figure_behind_and_changes_no_global_setting(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    op_mix(history(3), tmp_path / "mix.png")
    slot_timeline(episode(), tmp_path / "timeline.png")
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []
