"""Contributions of modules from as few passes as possible, equal to evaluating each configuration separately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

import esper.population.counterfactuals as counterfactuals
from esper.growth.actions import BlendAlgorithm
from esper.population import MAPPINGS, GrowthStage, Population, Questions, Samples, Valuation, valuate
from esper.population.counterfactuals import num_pair_configurations
from esper.population.plan import Rows
from tests.population.growing import CNN_BLUEPRINTS, pool, populate, random_growth, stir
from tests.tiers import few

NUM_ENVS = 6


def samples(num_envs: int, size: int = 60) -> Samples:
    images, labels = pool(size)
    # Each environment counts samples of its own.
    weights = torch.rand(num_envs, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Samples(inputs=images, targets=labels, weights=weights)


def score(population: Population, environment: int, alpha: Tensor, data: Samples) -> float:
    """Score by the definition: build the network and run it completely."""
    logits = population.grown(environment, alpha.tolist())(data.inputs.double())
    right = logits.softmax(dim=1)[torch.arange(len(data.targets)), data.targets]
    weights = data.weights[environment]
    return float(100 * (right * weights).sum().detach() / weights.sum())


def with_modules(alpha: Tensor, on: Iterable[int], growth: GrowthStage, environment: int) -> Tensor:
    """Return alphas with only the given slots on; a developing module is at 1."""
    full = torch.where(growth.developing[environment], 1.0, alpha)
    picked = torch.zeros_like(alpha)
    picked[list(on)] = full[list(on)]
    return picked


def grown(seed: int, mapping: str) -> tuple[Population, GrowthStage]:
    sites, growth = random_growth(seed, NUM_ENVS)
    population = populate(mapping, range(NUM_ENVS), sites, torch.float64)
    stir(population)
    return population, growth


def valued(
    population: Population, growth: GrowthStage, data: Samples, pairs: bool = True, off: bool = False
) -> Valuation:
    kept = growth.alpha > 0.5
    everywhere = torch.ones(len(kept), dtype=torch.bool)
    return valuate(
        population,
        data,
        Questions(
            alpha=growth.alpha,
            developing=growth.developing,
            kept=kept,
            kept_wanted=everywhere,
            pairs_due=everywhere & pairs,
            off_wanted=everywhere & off,
        ),
    )


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("seed", range(3))
@few(4)
def test_contributions_previews_and_interactions_equal_their_definitions(mapping: str, seed: int) -> None:
    population, growth = grown(seed, mapping)
    data = samples(NUM_ENVS)
    found = valued(population, growth, data)
    for env in range(NUM_ENVS):
        alpha = growth.alpha[env]
        active = (alpha > 0).nonzero().flatten().tolist()

        def f(on: Iterable[int], env: int = env, alpha: Tensor = alpha) -> float:
            return score(population, env, with_modules(alpha, on, growth, env), data)

        now = f(active)
        assert found.scores.points[env].item() == pytest.approx(now, abs=1e-9)
        for slot in range(3):
            contribution = found.contribution[env, slot].item()
            if slot in active:
                assert contribution == pytest.approx(now - f(set(active) - {slot}), abs=1e-9)
            elif growth.developing[env, slot]:
                assert contribution == pytest.approx(f([*active, slot]) - now, abs=1e-9)
            else:
                assert contribution != contribution  # not measured
            if slot in active and len(active) >= 2:
                terms = [f({slot, other}) - f({slot}) - f({other}) + f(()) for other in active if other != slot]
                assert found.interaction[env, slot].item() == pytest.approx(sum(terms), abs=1e-8)
                assert found.boost[env, slot].item() == pytest.approx(max(0.0, *terms), abs=1e-8)
            else:
                assert found.interaction[env, slot].isnan()
                assert found.boost[env, slot].isnan()
        kept = [slot for slot in active if alpha[slot] > 0.5]
        assert found.kept.points[env].item() == pytest.approx(f(kept), abs=1e-9)


@pytest.mark.parametrize("pairs", [False, True])
def test_modules_are_measured_where_they_are_due_and_nothing_else_changes(pairs: bool) -> None:
    population, growth = grown(0, "loop")
    data, due = samples(NUM_ENVS), torch.arange(NUM_ENVS) % 2 == 0
    asked = {"alpha": growth.alpha, "developing": growth.developing, "kept": growth.alpha > 0.5}
    wanted = {"kept_wanted": torch.ones_like(due), "pairs_due": torch.full_like(due, pairs)}
    whole = valuate(population, data, Questions(**asked, **wanted))
    some = valuate(population, data, Questions(**asked, **wanted, modules_due=due))
    assert torch.equal(some.scores.points, whole.scores.points)
    torch.testing.assert_close(some.kept.points, whole.kept.points)
    torch.testing.assert_close(some.contribution[due], whole.contribution[due], equal_nan=True)
    assert whole.contribution[~due].isfinite().any()
    assert some.contribution[~due].isnan().all()
    two = (growth.alpha > 0).sum(dim=1) == 2
    assert some.interaction[~due & two].isnan().all(), "which follows from the same passes"


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_all_off_is_the_bare_host_and_the_present_one_to_the_bit_where_nothing_acts(mapping: str) -> None:
    population, growth = grown(0, mapping)
    data = samples(NUM_ENVS)
    growth.alpha[::2] = 0.0
    found = valued(population, growth, data, pairs=False, off=True)
    for name in ("points", "loss", "accuracy"):
        off, present = getattr(found.off, name), getattr(found.scores, name)
        assert torch.equal(off[::2], present[::2])
        assert off.isfinite().all()
    acting = (growth.alpha > 0).any(dim=1)
    assert acting.any()
    assert (found.off.points != found.scores.points)[acting].all()
    for env in range(NUM_ENVS):
        expected = score(population, env, torch.zeros_like(growth.alpha[env]), data)
        assert found.off.points[env].item() == pytest.approx(expected, abs=1e-9)


def run_configurations(
    monkeypatch: pytest.MonkeyPatch, growth: GrowthStage, population: Population
) -> list[tuple[int, ...]]:
    """Return (environment, slots that are on) of every configuration that runs besides the present one."""
    seen: list[Rows] = []
    original = counterfactuals.evaluate

    def spy(population: Population, data: Samples, alpha: Tensor, configurations: Rows | None = None):  # type: ignore[no-untyped-def]
        if configurations is not None:
            seen.append(configurations)
        return original(population, data, alpha, configurations)

    monkeypatch.setattr(counterfactuals, "evaluate", spy)
    valued(population, growth, samples(population.num_envs), pairs=False)
    return [
        (environment, *row)
        for rows in seen
        for environment, row in zip(rows.environments.tolist(), (rows.alpha > 0).int().tolist(), strict=True)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_no_configuration_is_run_twice_and_none_without_need(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sites, growth = random_growth(seed, NUM_ENVS)
    growth.developing[:] = False
    population = populate("grouped", range(NUM_ENVS), sites, torch.float64)
    kept = growth.alpha > 0.5
    growth.alpha[~kept] = 0.0  # so that "only the kept" is the present configuration
    found = run_configurations(monkeypatch, growth, population)
    assert max(Counter(found).values(), default=0) <= 1
    present = [(env, *row) for env, row in enumerate((growth.alpha > 0).int().tolist())]
    assert not set(found) & set(present)
    for env in range(NUM_ENVS):
        live = int((growth.alpha[env] > 0).sum())
        assert sum(key[0] == env for key in found) == {0: 0, 1: 1, 2: 3, 3: 3}[live]  # each off; all off for pairs


@pytest.mark.parametrize("seed", range(6))
def test_an_ordinary_epoch_evaluates_at_most_two_functions_more_than_there_are_modules(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host as it is, each module off or previewed, and all off."""
    sites, growth = random_growth(seed, NUM_ENVS)
    population = populate("grouped", range(NUM_ENVS), sites, torch.float64)
    planned: list[Rows] = []
    build = counterfactuals.build_plan
    ran: list[int] = []
    forward = counterfactuals.run

    def spy_plan(rows: Rows, *arguments, **options):  # type: ignore[no-untyped-def]
        planned.append(rows)
        return build(rows, *arguments, **options)

    def spy_run(network, plan, *arguments, **options):  # type: ignore[no-untyped-def]
        ran.append(len(plan.hosts))
        return forward(network, plan, *arguments, **options)

    monkeypatch.setattr(counterfactuals, "build_plan", spy_plan)
    monkeypatch.setattr(counterfactuals, "run", spy_run)
    nobody = torch.zeros(NUM_ENVS, dtype=torch.bool)
    valuate(
        population,
        samples(NUM_ENVS),
        Questions(
            alpha=growth.alpha,
            developing=growth.developing,
            kept=torch.zeros_like(growth.developing),
            kept_wanted=nobody,
            pairs_due=nobody,
        ),
    )
    functions = [
        (environment, *row)
        for rows in planned
        for environment, row in zip(rows.environments.tolist(), rows.alpha.tolist(), strict=True)
    ]
    assert sum(ran) == len(functions) == len(set(functions)), "one batch, every function once"
    modules = ((growth.alpha > 0) | growth.developing).sum(dim=1).tolist()
    for env in range(NUM_ENVS):
        assert sum(function[0] == env for function in functions) <= modules[env] + 2


@pytest.mark.parametrize("num_modules", range(6))
def test_the_cost_of_pairs_is_what_they_ask_for(num_modules: int) -> None:
    """Against counting the distinct sets of modules by hand."""
    everything = frozenset(range(num_modules))
    asked = {everything - {one} for one in everything}
    if num_modules > 1:
        asked |= {frozenset(), *(frozenset({one, other}) for one in everything for other in everything)}
    assert int(num_pair_configurations(torch.tensor(num_modules))) == len(asked - {everything})


def test_a_population_without_modules_runs_nothing_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    population = populate("grouped", range(2))
    empty = torch.zeros(2, 3, dtype=torch.bool)
    growth = GrowthStage(alpha=empty.double(), developing=empty, isolated=empty)
    assert run_configurations(monkeypatch, growth, population) == []


def test_rows_start_at_the_first_slot_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefix reuse: a suffix is never longer than it needs to be."""
    population = populate("grouped", [0], [(0, 2, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD)])
    alpha = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    starts: list[list[int]] = []
    original = counterfactuals.build_plan

    def spy(rows: Rows, *arguments, **options):  # type: ignore[no-untyped-def]
        starts.append(rows.start.tolist())
        return original(rows, *arguments, **options)

    monkeypatch.setattr(counterfactuals, "build_plan", spy)
    empty = torch.zeros(1, 3, dtype=torch.bool)
    valued(population, GrowthStage(alpha=alpha, developing=empty, isolated=empty), samples(1))
    assert starts == [[-1, 2]]
