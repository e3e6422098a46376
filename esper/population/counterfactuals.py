"""Validation, and what each seed module is worth, from as few passes as possible.

A *configuration* of an environment is the set of its modules that are on. Activations before a slot are computed once
per batch; a configuration only re-runs the suffix from the first slot in which it differs from the present one, and
none is run twice.

Axis legend: E = environments, S = slots, R = rows (configurations run), N = samples, B = batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esper.population.forward import read_logits, run
from esper.population.losses import Scores, weighted_sums
from esper.population.mapping import Features
from esper.population.plan import FROM_INPUT, Flow, Rows, build_plan
from esper.population.population import Population
from esper.tasks.batches import Prepare, as_stored

EVALUATION_LOGITS = 1 << 22
"""The same of output numbers: of text there are far more of them."""

EVALUATION_ELEMENTS = 1 << 20
"""Input numbers of all hosts together in one evaluation batch: few calls for tiny images, bounded memory for others."""

MIN_EVALUATION_BATCH = 64
"""In targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Validation or test samples, the same for all hosts, and how much each counts for each of them.

    Attributes:
        inputs: ``[N, ...]``, as they are stored.
        targets: ``[N, ...]``.
        weights: ``[E, N]``; 0 leaves a sample out for that environment.
        prepare: makes of inputs what hosts read.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    prepare: Prepare = as_stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Valuation:
    """What validation found.

    Attributes:
        scores: of the hosts as they are, each ``[E]``.
        contribution: ``[E, S]`` points that a module is worth: present minus without it; for a developing module its
            preview, with it at alpha 1 minus without it. NaN where there is nothing to measure.
        interaction: ``[E, S]`` sum over the other modules of the pair terms f(ij) - f(i) - f(j) + f(none), in points;
            NaN where not measured.
        boost: ``[E, S]`` the largest of those terms, at least 0; NaN where not measured.
        kept: scores with only the kept modules on, each ``[E]``, NaN where not asked for.
        off: scores with every module off, each ``[E]``, NaN where neither asked for nor needed for pair terms. Equal to
            ``scores`` to the bit where no module acts.
        configurations: ``[E, K]`` points of further configurations, NaN where not asked for.
    """

    scores: Scores
    contribution: Tensor
    interaction: Tensor
    boost: Tensor
    kept: Scores
    off: Scores
    configurations: Tensor


def evaluate(
    population: Population, samples: Samples, alpha: Tensor, configurations: Rows | None = None
) -> tuple[Scores, Scores | None]:
    """Scores of all hosts at the given alphas, and of other configurations of them.

    Args:
        population: hosts and modules.
        samples: what to evaluate on; every sample is used.
        alpha: ``[E, S]``.
        configurations: rows that start at a slot.
    """
    device, parts = population.device, population.parts()
    weights = samples.weights.to(population.dtype).to(device, non_blocking=True)
    if len(parts) == 1:
        main, other = _sums(population, samples, weights, alpha, configurations)
    else:
        pieces = []
        for number, part in enumerate(parts):
            own = None if configurations is None else _rows_of(configurations, number)
            row = slice(number, number + 1)
            pieces.append(_sums(part, samples, weights[row], alpha[row], own))
        main, other = (torch.cat(sums, dim=1) for sums in zip(*pieces, strict=True))
    if configurations is not None and len(parts) > 1:
        other = other[:, configurations.environments.argsort(stable=True).argsort().to(device, non_blocking=True)]
    totals = weights.sum(dim=1, dtype=torch.float64)
    hosts = torch.arange(population.num_envs)
    if configurations is not None:
        hosts = torch.cat([hosts, configurations.environments])
    # One transfer for both, so that the device is waited for once.
    means = (torch.cat([main, other], dim=1) / totals[hosts.to(device, non_blocking=True)]).cpu()
    scores = _scores(means[:, : population.num_envs])
    return scores, None if configurations is None else _scores(means[:, population.num_envs :])


def _rows_of(rows: Rows, environment: int) -> Rows:
    """The rows of one environment, as those of a population of one."""
    own = rows.environments == environment
    return Rows(
        environments=torch.zeros_like(rows.environments[own]),
        start=rows.start[own],
        alpha=rows.alpha[own],
        flow=rows.flow[own],
    )


def _sums(
    population: Population, samples: Samples, weights: Tensor, alpha: Tensor, configurations: Rows | None
) -> tuple[Tensor, Tensor]:
    """Weighted sums ``float64 [3, E]`` of all hosts and ``[3, R]`` of other configurations (R = 0 without any)."""
    device, dtype = population.device, population.dtype
    environments = torch.arange(population.num_envs)
    directory = population.directory()
    joint = torch.full(alpha.shape, int(Flow.JOINT))
    present = Rows(environments=environments, start=torch.full_like(environments, FROM_INPUT), alpha=alpha, flow=joint)
    main = build_plan(present, directory, device=device, dtype=dtype)
    main_sums = torch.zeros(3, population.num_envs, device=device, dtype=torch.float64)
    other, other_sums = None, main_sums.new_zeros(3, 0)
    if configurations is not None and len(configurations.environments):
        other = build_plan(configurations, directory, device=device, dtype=dtype)
        other_sums = main_sums.new_zeros(3, len(other.hosts))
    mapping, network, values = population.mapping, population.network, population.hosts.values.detach()

    def add(sums: Tensor, logits: Features, counted: Tensor) -> None:
        wanted = (*targets.shape, population.host.num_classes)
        sums += weighted_sums(read_logits(mapping, logits, wanted), targets, counted)

    with torch.no_grad():
        for batch in _batches(samples, population.num_envs, population.host.num_classes):
            x, targets = population.cast(samples.prepare(samples.inputs[batch])), samples.targets[batch].long()
            entry = mapping.share(x, population.num_envs)
            result = run(network, main, values, entry=entry, keep=other is not None)
            add(main_sums, result.logits, weights[:, batch])
            if other is not None:
                suffix = run(network, other, values, arrived=result.arrived, keep=False)
                add(other_sums, suffix.logits, weights[other.hosts.tensor, batch])
    return main_sums, other_sums


def _batches(samples: Samples, num_envs: int, num_classes: int) -> list[slice]:
    """Consecutive slices that cover every sample."""
    size = evaluation_batch(samples.inputs, samples.targets, num_envs, num_classes)
    return [slice(begin, begin + size) for begin in range(0, len(samples.targets), size)]


def evaluation_batch(inputs: Tensor, targets: Tensor, num_envs: int, num_classes: int) -> int:
    """Number of samples that hosts are evaluated on in one pass, where there are so many."""
    outputs = targets[0].numel()
    inputs_fit = EVALUATION_ELEMENTS // (num_envs * inputs[0].numel())
    outputs_fit = EVALUATION_LOGITS // (num_envs * outputs * num_classes)
    return max(-(-MIN_EVALUATION_BATCH // outputs), min(inputs_fit, outputs_fit))


def _scores(means: Tensor) -> Scores:
    probability, loss, hits = means
    return Scores(points=100.0 * probability, loss=loss, accuracy=hits)


def valuate(
    population: Population,
    samples: Samples,
    *,
    alpha: Tensor,
    developing: Tensor,
    kept: Tensor,
    kept_wanted: Tensor,
    pairs_due: Tensor,
    modules_due: Tensor | None = None,
    off_wanted: Tensor | None = None,
    configurations: Tensor | None = None,
) -> Valuation:
    """Validate all hosts and measure their modules.

    Args:
        population: hosts and modules.
        samples: validation samples.
        alpha: ``[E, S]`` present alphas.
        developing: ``bool [E, S]`` modules in isolation, whose preview is wanted.
        kept: ``bool [E, S]`` modules that count at the end of an episode.
        kept_wanted: ``bool [E]`` where the score with only the kept modules is wanted.
        pairs_due: ``bool [E]`` where pair terms are wanted although they need passes of their own (three modules or
            more; with two they follow from the other passes).
        modules_due: ``bool [E]`` where contributions and previews are wanted, and what follows from their passes;
            everywhere when ``None``.
        off_wanted: ``bool [E]`` where the score with every module off is wanted; nowhere when ``None``.
        configurations: ``int64 [E, K]`` further sets of modules to switch on, bit s for slot s; -1 for none.
    """
    if configurations is None:
        configurations = torch.empty(len(alpha), 0, dtype=torch.int64)
    if off_wanted is None:
        off_wanted = torch.zeros_like(kept_wanted)
    if modules_due is None:
        modules_due = torch.ones_like(kept_wanted)
    wanted = _Wanted(alpha, developing, kept, kept_wanted, pairs_due, modules_due, off_wanted, configurations)
    rows, inverse = wanted.rows(alpha, developing)
    scores, others = evaluate(population, samples, alpha, rows if len(rows.environments) else None)
    others = others or Scores(*(empty[:0] for empty in (scores.points, scores.loss, scores.accuracy)))
    return wanted.read(scores, others, inverse)


def num_pair_configurations(num_modules: Tensor) -> Tensor:
    """Passes that pair terms ask for, the present state not counted: each module off, alone, each pair, and none."""
    count = num_modules
    pairs = count * (count - 1) // 2
    # Of two modules "off" is the other one alone and the pair is the present state; of three, "off" is the other pair.
    return torch.where(count > 3, 2 * count + pairs + 1, torch.where(count == 3, 7, torch.where(count == 2, 3, count)))


class _Wanted:
    """Bit masks of the configurations that are asked for, -1 for none: one column per question."""

    def __init__(
        self,
        alpha: Tensor,
        developing: Tensor,
        kept: Tensor,
        kept_wanted: Tensor,
        pairs_due: Tensor,
        modules_due: Tensor,
        off_wanted: Tensor,
        configurations: Tensor,
    ) -> None:
        num_slots = alpha.shape[1]
        self.num_slots = num_slots
        self.bits = 1 << torch.arange(num_slots)
        self.active = alpha > 0
        self.developing = developing
        self.main = (self.active * self.bits).sum(dim=1)
        count = self.active.sum(dim=1, keepdim=True)
        due = modules_due[:, None]
        apart = self.active & (((count == 2) & due) | ((count > 2) & pairs_due[:, None]))
        pairs = (apart[:, :, None] & apart[:, None, :]).triu(1) | (apart[:, :, None] & apart[:, None, :]).tril(-1)
        pair_bits = self.bits[:, None] | self.bits[None, :]
        self.questions = {
            "without": torch.where(self.active & due, self.main[:, None] ^ self.bits, -1),
            "preview": torch.where(developing & due, self.main[:, None] | self.bits, -1),
            "alone": torch.where(apart, self.bits, -1),
            "pair": torch.where(pairs, pair_bits, -1).flatten(1),
            "none": torch.where(apart.any(dim=1) | off_wanted, 0, -1)[:, None],
            "kept": torch.where(kept_wanted, (kept * self.active * self.bits).sum(dim=1), -1)[:, None],
            "further": configurations,
        }
        self.masks = torch.cat(list(self.questions.values()), dim=1)
        self.new = (self.masks >= 0) & (self.masks != self.main[:, None])

    def rows(self, alpha: Tensor, developing: Tensor) -> tuple[Rows, Tensor]:
        """Distinct configurations to run, sorted by first differing slot, and which one answers each question."""
        environments = torch.arange(len(self.masks))[:, None].expand_as(self.masks)
        keys, inverse = torch.unique((environments << self.num_slots | self.masks)[self.new], return_inverse=True)
        environment, mask = keys >> self.num_slots, keys & ((1 << self.num_slots) - 1)
        differs = ((mask ^ self.main[environment])[:, None] & self.bits) != 0
        start = differs.long().argmax(dim=1)
        order = start.argsort(stable=True)
        on = (mask[order][:, None] & self.bits) != 0
        chosen = environment[order]
        rows = Rows(
            environments=chosen,
            start=start[order],
            alpha=torch.where(on, torch.where(developing, 1.0, alpha)[chosen], 0.0),
            flow=torch.full(on.shape, int(Flow.JOINT)),
        )
        return rows, order.argsort()[inverse]

    def table(self, main: Tensor, others: Tensor, inverse: Tensor) -> dict[str, Tensor]:
        """Score of every question, NaN where it was not asked."""
        answers = torch.where(self.masks == self.main[:, None], main[:, None], torch.nan)
        answers[self.new] = others[inverse]
        pieces = torch.split(answers, [question.shape[1] for question in self.questions.values()], dim=1)
        return dict(zip(self.questions, pieces, strict=True))

    def read(self, scores: Scores, others: Scores, inverse: Tensor) -> Valuation:
        """Contributions and interactions from the answers."""
        table = self.table(scores.points, others.points, inverse)
        loss = self.table(scores.loss, others.loss, inverse)
        accuracy = self.table(scores.accuracy, others.accuracy, inverse)

        def answer(question: str) -> Scores:
            return Scores(*(found[question].squeeze(1) for found in (table, loss, accuracy)))

        points = scores.points[:, None]
        contribution = torch.where(self.developing, table["preview"] - points, points - table["without"])
        pair = table["pair"].view(-1, self.num_slots, self.num_slots)
        terms = pair - table["alone"][:, :, None] - table["alone"][:, None, :] + table["none"][:, :, None]
        measured = terms.isfinite().any(dim=2)
        interaction = torch.where(measured, terms.nan_to_num(0.0).sum(dim=2), torch.nan)
        boost = torch.where(measured, terms.nan_to_num(0.0).amax(dim=2).clamp(min=0.0), torch.nan)
        return Valuation(
            scores=scores,
            contribution=contribution,
            interaction=interaction,
            boost=boost,
            kept=answer("kept"),
            off=answer("none"),
            configurations=table["further"],
        )
