"""Validation of hosts, and contributions of their seed modules, with as few passes as possible.

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
from esper.population.plan import FROM_INPUT, Flow, Rows, build_plan
from esper.population.population import Population
from esper.tasks.batches import Prepare, as_stored

EVALUATION_LOGITS = 1 << 22
"""Largest number of logits of all hosts together in one evaluation batch; text has far more logits than inputs."""

EVALUATION_ELEMENTS = 1 << 20
"""Largest number of input values of all hosts together in one evaluation batch: few calls for tiny images, bounded
memory for large ones.
"""

MIN_EVALUATION_BATCH = 64
"""Smallest number of targets in an evaluation batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Validation or test samples, the same for all hosts, with weights for each of them.

    Attributes:
        inputs: ``[N, ...]``, as stored.
        targets: ``[N, ...]``.
        weights: ``[E, N]``; 0 excludes a sample for that environment.
        prepare: function that converts stored inputs to the inputs of hosts.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    prepare: Prepare = as_stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Valuation:
    """Results of a validation.

    Attributes:
        scores: scores of the hosts as they are, ``[E]`` each.
        contribution: ``[E, S]`` contribution of each module in points: present minus without it; for a developing
            module its preview, with it at alpha 1 minus without it. NaN where there is nothing to measure.
        interaction: ``[E, S]`` sum over the other modules of the pair terms f(ij) - f(i) - f(j) + f(none), in points;
            NaN where not measured.
        boost: ``[E, S]`` the largest of those terms, at least 0; NaN where not measured.
        kept: scores with only the kept modules on, each ``[E]``, NaN where not requested.
        off: scores with every module off, each ``[E]``, NaN where neither requested nor needed for pair terms. Equal to
            ``scores`` to the bit where no module acts.
        configurations: ``[E, K]`` points of further configurations, NaN where not requested.
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
    """Compute the scores of all hosts at the given alphas, and of other configurations of them.

    Args:
        population: hosts and modules.
        samples: samples, all of which are used.
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
    """Select the rows of one environment, as those of a population of one."""
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
    """Compute weighted sums ``float64 [3, E]`` of all hosts and ``[3, R]`` of other configurations (R = 0 without
    any).
    """
    device, num_envs = population.device, population.num_envs
    environments = torch.arange(num_envs)
    joint = torch.full(alpha.shape, int(Flow.JOINT))
    rows = Rows(environments=environments, start=torch.full_like(environments, FROM_INPUT), alpha=alpha, flow=joint)
    if configurations is not None:
        rows = Rows.join(rows, configurations)
    plan = build_plan(rows, population.directory(), device=device, dtype=population.dtype)
    weights = weights[plan.hosts.tensor]
    sums = torch.zeros(3, len(plan.hosts), device=device, dtype=torch.float64)
    mapping, network, values = population.mapping, population.network, population.hosts.values.detach()
    with torch.no_grad():
        for batch in _batches(samples, num_envs, population.host.num_classes):
            x, targets = population.cast(samples.prepare(samples.inputs[batch])), samples.targets[batch].long()
            logits = run(network, plan, values, mapping.share(x, num_envs)).logits
            wanted = (*targets.shape, population.host.num_classes)
            sums += weighted_sums(read_logits(mapping, logits, wanted), targets, weights[:, batch])
    return sums[:, :num_envs], sums[:, num_envs:]


def _batches(samples: Samples, num_envs: int, num_classes: int) -> list[slice]:
    """Divide all samples into consecutive slices."""
    size = evaluation_batch(samples.inputs, samples.targets, num_envs, num_classes)
    return [slice(begin, begin + size) for begin in range(0, len(samples.targets), size)]


def evaluation_batch(inputs: Tensor, targets: Tensor, num_envs: int, num_classes: int) -> int:
    """Return the largest number of samples for one evaluation pass."""
    outputs = targets[0].numel()
    inputs_fit = EVALUATION_ELEMENTS // (num_envs * inputs[0].numel())
    outputs_fit = EVALUATION_LOGITS // (num_envs * outputs * num_classes)
    return max(-(-MIN_EVALUATION_BATCH // outputs), min(inputs_fit, outputs_fit))


def _scores(means: Tensor) -> Scores:
    probability, loss, hits = means
    return Scores(points=100.0 * probability, loss=loss, accuracy=hits)


def valuate(population: Population, samples: Samples, questions: Questions) -> Valuation:
    """Validate all hosts and measure their modules.

    Args:
        population: hosts and modules.
        samples: validation samples.
        questions: measurements to make for each host.
    """
    rows = questions.rows
    scores, others = evaluate(population, samples, questions.alpha, rows if len(rows.environments) else None)
    return questions.read(scores, others)


def num_pair_configurations(num_modules: Tensor) -> Tensor:
    """Count the passes for pair terms, without the present state: each module off, alone, each pair, and none."""
    count = num_modules
    pairs = count * (count - 1) // 2
    # Of two modules, "off" is the other one alone and the pair the present state; of three, "off" is the other pair.
    return torch.where(count > 3, 2 * count + pairs + 1, torch.where(count == 3, 7, torch.where(count == 2, 3, count)))


class Questions:
    """Requested measurements beyond the present scores, the configurations that they need, and their evaluation.

    Args:
        alpha: ``[E, S]`` present alphas.
        developing: ``bool [E, S]`` modules in isolation, whose preview is requested.
        kept: ``bool [E, S]`` modules that count at the end of an episode.
        kept_wanted: ``bool [E]`` where the score with only the kept modules is requested.
        pairs_due: ``bool [E]`` where pair terms are requested although they need extra passes (three modules or more;
            with two they follow from the other passes).
        modules_due: ``bool [E]`` where contributions and previews are requested, and all that follows from their
            passes; everywhere when ``None``.
        off_wanted: ``bool [E]`` where the score with every module off is requested; nowhere when ``None``.
        configurations: ``int64 [E, K]`` further sets of modules to switch on, bit s for slot s; -1 for none.

    Attributes:
        alpha: as given.
        rows: the distinct configurations to run besides the present one, sorted by the first slot that differs.
    """

    def __init__(
        self,
        *,
        alpha: Tensor,
        developing: Tensor,
        kept: Tensor,
        kept_wanted: Tensor,
        pairs_due: Tensor,
        modules_due: Tensor | None = None,
        off_wanted: Tensor | None = None,
        configurations: Tensor | None = None,
    ) -> None:
        if configurations is None:
            configurations = torch.empty(len(alpha), 0, dtype=torch.int64)
        if off_wanted is None:
            off_wanted = torch.zeros_like(kept_wanted)
        if modules_due is None:
            modules_due = torch.ones_like(kept_wanted)
        self.alpha, self._developing = alpha, developing
        num_slots = alpha.shape[1]
        self._num_slots = num_slots
        self._bits = bits = 1 << torch.arange(num_slots)
        active = alpha > 0
        self._main = main = (active * bits).sum(dim=1)
        count = active.sum(dim=1, keepdim=True)
        due = modules_due[:, None]
        apart = active & (((count == 2) & due) | ((count > 2) & pairs_due[:, None]))
        pairs = (apart[:, :, None] & apart[:, None, :]).triu(1) | (apart[:, :, None] & apart[:, None, :]).tril(-1)
        pair_bits = bits[:, None] | bits[None, :]
        asked = {
            "without": torch.where(active & due, main[:, None] ^ bits, -1),
            "preview": torch.where(developing & due, main[:, None] | bits, -1),
            "alone": torch.where(apart, bits, -1),
            "pair": torch.where(pairs, pair_bits, -1).flatten(1),
            "none": torch.where(apart.any(dim=1) | off_wanted, 0, -1)[:, None],
            "kept": torch.where(kept_wanted, (kept * active * bits).sum(dim=1), -1)[:, None],
            "further": configurations,
        }
        # Bit masks of the requested configurations, -1 for none: a column per question.
        self._widths = {question: masks.shape[1] for question, masks in asked.items()}
        self._masks = torch.cat(list(asked.values()), dim=1)
        self._new = (self._masks >= 0) & (self._masks != main[:, None])
        self.rows, self._answers = self._distinct()

    def _distinct(self) -> tuple[Rows, Tensor]:
        """Return the distinct configurations to run, and the index of the one that answers each question."""
        environments = torch.arange(len(self._masks))[:, None].expand_as(self._masks)
        keys, inverse = torch.unique((environments << self._num_slots | self._masks)[self._new], return_inverse=True)
        environment, mask = keys >> self._num_slots, keys & ((1 << self._num_slots) - 1)
        differs = ((mask ^ self._main[environment])[:, None] & self._bits) != 0
        start = differs.long().argmax(dim=1)
        order = start.argsort(stable=True)
        on = (mask[order][:, None] & self._bits) != 0
        chosen = environment[order]
        rows = Rows(
            environments=chosen,
            start=start[order],
            alpha=torch.where(on, torch.where(self._developing, 1.0, self.alpha)[chosen], 0.0),
            flow=torch.full(on.shape, int(Flow.JOINT)),
        )
        return rows, order.argsort()[inverse]

    def read(self, scores: Scores, others: Scores | None = None) -> Valuation:
        """Compute contributions and interactions from scores.

        Args:
            scores: scores of the hosts as they are, ``[E]`` each.
            others: scores of the configurations in :attr:`rows`, ``[R]`` each; ``None`` if there are none.
        """
        others = others or Scores(*(empty[:0] for empty in (scores.points, scores.loss, scores.accuracy)))
        table = self._table(scores.points, others.points)
        loss, accuracy = self._table(scores.loss, others.loss), self._table(scores.accuracy, others.accuracy)

        def answer(question: str) -> Scores:
            return Scores(*(found[question].squeeze(1) for found in (table, loss, accuracy)))

        points = scores.points[:, None]
        contribution = torch.where(self._developing, table["preview"] - points, points - table["without"])
        pair = table["pair"].view(-1, self._num_slots, self._num_slots)
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

    def _table(self, main: Tensor, others: Tensor) -> dict[str, Tensor]:
        """Return the score of every question, NaN where it was not asked."""
        answers = torch.where(self._masks == self._main[:, None], main[:, None], torch.nan)
        answers[self._new] = others[self._answers]
        pieces = torch.split(answers, list(self._widths.values()), dim=1)
        return dict(zip(self._widths, pieces, strict=True))
