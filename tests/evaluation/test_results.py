"""Rows of an evaluation from episodes with known numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from esper.config.errors import RunError
from esper.config.evaluate import EvaluateConfig
from esper.envs.instances import Instance
from esper.envs.records import EpisodeRecord
from esper.evaluation.play import Outcome
from esper.evaluation.results import Bootstrap, ControllerResult, family_rows, normalized_return, rent_rows, result_rows
from esper.telemetry.counters import OpCounts
from esper.telemetry.statistics import Interval, Mean
from esper.telemetry.timeline import EpisodeTimeline

FAMILIES = ("intact", "intact", "starved_0", "starved_0")
TIMELINE = EpisodeTimeline.__new__(EpisodeTimeline)  # nothing here draws it


def episode(
    number: int, worth: float, kept: Sequence[tuple[str, str]] = (), germinated: int = 0, text: bool = False
) -> EpisodeRecord:
    return EpisodeRecord(
        environment=number,
        instance=Instance(index=number, split="held_out", family=FAMILIES[number], host_seed=0, order_seed=0),
        num_epochs=8,
        episode_return=worth,
        val_accuracy=0.5,
        test_accuracy=0.5 + worth / 100,
        val_bits=3.0 if text else None,
        test_bits=3.0 - worth / 10 if text else None,
        added_parameters=100 * len(kept),
        num_fossilized=len(kept),
        kept=tuple(kept),
        num_germinated=germinated,
        relative_flops=1.0 + len(kept),
        crashed=False,
        shapley={},
    )


def result(name: str, *runs: Sequence[float], text: bool = False) -> ControllerResult:
    return ControllerResult(
        name=name,
        outcomes=tuple(
            Outcome(
                name=name,
                episodes=tuple(episode(number, worth, text=text) for number, worth in enumerate(run)),
                ops=OpCounts(),
                wall_seconds=2.0,
                timeline=TIMELINE,
            )
            for run in runs
        ),
    )


def test_differences_are_paired_by_run_and_host() -> None:
    """A rival that is 1 point behind on every host is behind for sure, however much hosts and runs differ."""
    learned = result("learned", [0.0, 10.0, 20.0, 30.0], [5.0, 15.0, 25.0, 35.0])
    behind = result("rival", [-1.0, 9.0, 19.0, 29.0], [4.0, 14.0, 24.0, 34.0])
    _, row = result_rows([learned, behind], Bootstrap(strata=FAMILIES, draws=300, seed=0))
    assert row.return_difference is not None
    assert row.improvement is not None
    assert row.test_difference is not None
    assert row.return_difference[:3] == pytest.approx((1.0, 1.0, 1.0))
    assert row.test_difference[:3] == pytest.approx((0.01, 0.01, 0.01))
    assert row.improvement.estimate == 1.0
    assert row.episode_return is not None
    assert row.episode_return.high - row.episode_return.low > 1.0
    assert (row.num_runs, row.num_hosts, row.wall_seconds) == (2, 4, 2.0)


def test_bits_of_text_are_paired_with_the_learned_controller_and_with_never() -> None:
    """Whoever is 1 bit below never on every host is that for sure, however much hosts and runs differ."""
    learned = result("learned", [10.0, 11.0, 12.0, 13.0], [15.0, 16.0, 17.0, 18.0], text=True)
    rival, never = (result(name, [0.0 + 5 * i, 1, 2, 3], text=True) for i, name in enumerate(("rival", "never")))
    bootstrap = Bootstrap(strata=FAMILIES, draws=300, seed=0)
    row, _ = result_rows([learned, result("never", [0.0, 1.0, 2.0, 3.0], text=True)], bootstrap)
    assert row.val_bits is not None
    assert row.test_bits is not None
    assert row.bits_over_never is not None
    assert row.val_bits[:3] == (3.0, 3.0, 3.0)
    assert row.test_bits.estimate == pytest.approx(3.0 - 1.4)
    assert row.bits_over_never.estimate == pytest.approx(-1.25)
    assert row.bits_difference is None
    _, row, idle = result_rows([learned, rival, never], bootstrap)
    assert idle.bits_over_never is None
    assert row.bits_difference is not None
    assert row.bits_over_never is not None
    assert row.bits_difference.estimate == pytest.approx(-1.25)
    assert row.bits_over_never.estimate == pytest.approx(0.5 / 4)
    fewer = result("learned_sampled", [10.0, 11.0, 12.0, 13.0], text=True)
    alone, _ = result_rows([fewer, result("never", [0.0, 1, 2, 3], text=True)], bootstrap)
    assert alone.bits_over_never is not None
    assert alone.bits_over_never[:3] == pytest.approx((-1.0, -1.0, -1.0))
    assert [row.test_bits for row in family_rows(rival)] == pytest.approx([2.95, 2.75])


def test_of_images_a_row_has_no_bits() -> None:
    learned, never = result("learned", [1.0, 2.0, 3.0, 5.0]), result("never", [0.0, 0.0, 0.0, 0.0])
    _, row = result_rows([learned, never], Bootstrap(strata=FAMILIES, draws=100, seed=0))
    assert row.val_bits is row.test_bits is row.bits_difference is row.bits_over_never is None
    assert [row.test_bits for row in family_rows(never)] == [None, None]


def test_a_row_does_not_depend_on_the_others() -> None:
    bootstrap = Bootstrap(strata=FAMILIES, draws=100, seed=0)
    learned, rival = result("learned", [1.0, 2.0, 3.0, 5.0]), result("rival", [0.0, 3.0, 1.0, 2.0])
    alone, best = result_rows([rival, learned], bootstrap)
    assert best.return_difference is None
    _, _, among_others = result_rows([learned, result("other", [0.0, 0.0, 1.0, 2.0]), rival], bootstrap)
    assert among_others == alone
    [unpaired] = result_rows([rival], bootstrap)
    assert unpaired.return_difference is None


def test_a_familys_row_says_what_was_kept_and_how_much_survived() -> None:
    conv, norm = ("r0c0", "conv_light"), ("r0c1", "norm")
    outcome = Outcome(
        name="learned",
        episodes=(
            episode(0, 0.0),
            episode(1, 0.0),
            episode(2, 4.0, [conv], germinated=3),
            episode(3, 8.0, [conv, norm], germinated=3),
        ),
        ops=OpCounts(),
        wall_seconds=0.0,
        timeline=TIMELINE,
    )
    intact, starved = family_rows(ControllerResult(name="learned", outcomes=(outcome, outcome)))
    assert (intact.family, intact.num_hosts, intact.survival, intact.kept) == ("intact", 2, None, {"nothing": 1.0})
    assert (starved.family, starved.num_hosts, starved.episode_return, starved.survival) == ("starved_0", 2, 6.0, 0.5)
    assert starved.kept == {"r0c0:conv_light": 0.5, "r0c0:conv_light+r0c1:norm": 0.5}


def test_a_price_has_a_row_with_the_interval_of_its_own_hosts() -> None:
    def priced(episode: EpisodeRecord) -> EpisodeRecord:
        price = 8.0 if episode.instance.index == 3 else 0.5
        return replace(episode, instance=replace(episode.instance, rent_weight=price))

    plain = result("learned", [1.0, 3.0, 5.0, -2.0], [2.0, 4.0, 6.0, -4.0])
    outcomes = tuple(replace(each, episodes=tuple(map(priced, each.episodes))) for each in plain.outcomes)
    bootstrap = Bootstrap(strata=list(FAMILIES), draws=100, seed=0)
    low, high = rent_rows(replace(plain, outcomes=outcomes), bootstrap)
    assert (low.rent_weight, low.num_hosts, high.rent_weight, high.num_hosts) == (0.5, 3, 8.0, 1)
    assert isinstance(low.episode_return, Interval)
    assert low.episode_return.estimate == pytest.approx(3.5)
    assert low.episode_return.low < 3.5 < low.episode_return.high
    assert high.episode_return == Mean(-3.0, None), "one host has no interval"
    assert rent_rows(plain, bootstrap) == []


@pytest.mark.parametrize(("worth", "way"), [(1.0, 0.0), (3.0, 0.5), (5.0, 1.0), (-1.0, -0.5)])
def test_the_normalized_return_begins_at_the_best_schedule(worth: float, way: float) -> None:
    best, per_family = result("schedule_best", [1.0] * 4), result("schedule_per_family", [5.0] * 4)
    assert normalized_return(result("learned", [worth] * 4, [worth] * 4), best, per_family) == pytest.approx(way)


def test_there_is_no_way_to_plans_of_families_that_are_no_better() -> None:
    same = result("schedule_best", [1.0] * 4)
    assert normalized_return(result("learned", [2.0] * 4), same, same) is None
    scattered = result("schedule_per_family", [3.0, -1.0, 2.0, 0.5])
    assert normalized_return(result("learned", [2.0] * 4), same, scattered) is None


def test_one_host_shows_no_normalized_return() -> None:
    learned, best, per_family = (result(name, [worth]) for name, worth in (("l", 2.0), ("b", 1.0), ("o", 5.0)))
    assert normalized_return(learned, best, per_family) is None


def test_tables_have_a_row_per_run_and_a_column_per_host() -> None:
    two = result("learned", [0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0])
    assert torch.equal(two.returns(), torch.arange(8, dtype=torch.float64).reshape(2, 4))
    assert two.families() == list(FAMILIES)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_returns_that_are_not_finite_are_said_in_one_line(value: float) -> None:
    with pytest.raises(RunError) as caught:
        result("learned", [1.0, value, 2.0, value], [0.0] * 4).check_finite()
    assert str(caught.value) == (
        "2 of 8 returns of 'learned' are not finite, so there is no mean or interval; the first is of instance 1, "
        "family intact (hosts.csv has all)"
    )
    result("learned", [1.0, 0.0, 2.0, 3.0]).check_finite()


@pytest.mark.parametrize(("key", "least"), [("draws", 40), ("num_hosts", 2)])
def test_an_evaluation_without_a_meaningful_interval_is_refused_by_its_key(key: str, least: int) -> None:
    with pytest.raises(ValueError, match=rf"^{key} must be at least {least}, got {least - 1}$"):
        EvaluateConfig(checkpoint="run", **{key: least - 1})  # type: ignore[arg-type]
    EvaluateConfig(checkpoint="run", **{key: least})  # type: ignore[arg-type]
