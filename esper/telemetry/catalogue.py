"""Every metric that a run logs: what it means, how it is computed, and where it is healthy.

``docs/metrics.md`` is made from this table (``make docs``), and a test compares it with what runs write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from esper.growth import STAGE_NAMES
from esper.growth.actions import HEADS, OP_NAMES

PLACEHOLDERS: dict[str, tuple[str, ...] | None] = {
    "op": OP_NAMES,
    "head": HEADS,
    "stage": STAGE_NAMES[1:],
    "family": None,
}
"""What may stand for ``<op>`` in a name; ``None`` = whatever the configuration names."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, or one for each of something.

    Attributes:
        name: as in ``metrics.jsonl``; ``<op>``, ``<head>``, ``<stage>`` and ``<family>`` stand for each of those.
        meaning: in one sentence.
        formula: how it is computed.
        unit: of the number.
        healthy: what is usual, and what is not.
    """

    name: str
    meaning: str
    formula: str
    unit: str
    healthy: str

    def matches(self, key: str) -> bool:
        """Whether a logged name is this metric."""
        pattern = re.escape(self.name)
        for placeholder, values in PLACEHOLDERS.items():
            choices = ".+" if values is None else "|".join(map(re.escape, values))
            pattern = pattern.replace(f"<{placeholder}>", f"(?:{choices})")
        return re.fullmatch(pattern, key) is not None


@dataclass(frozen=True, slots=True)
class Section:
    """Metrics under one heading, with what they have in common."""

    title: str
    text: str
    metrics: tuple[Metric, ...]


SEM = "standard error of that mean over the episodes, s / √n; `null` for one episode"

SECTIONS: tuple[Section, ...] = (
    Section(
        "What the controller achieves",
        "Over the episodes that ended in the iteration; `null` where none did.",
        (
            Metric(
                "charts/episodic_return",
                "Mean return of an episode: what growing was worth on these hosts.",
                "mean of G: final score with FOSSILIZED modules only, minus the twin's, minus rent",
                "points (100 × mean probability of the right class)",
                "0 is never growing; rises above it. A random policy is a little below 0",
            ),
            Metric("charts/episodic_return_sem", "How sure that mean is.", SEM, "points", "falls as √num_envs"),
            Metric(
                "charts/final_val_accuracy",
                "Mean val accuracy of the hosts after their last epoch.",
                "right / all, mean over episodes",
                "fraction of 1",
                "above `charts/never_val_accuracy`; a fall of 0.1 below the mean of five iterations (relative to the "
                "twins) is the anomaly `accuracy_drop`",
            ),
            Metric("charts/final_val_accuracy_sem", "How sure that mean is.", SEM, "fraction of 1", "–"),
            Metric(
                "charts/never_val_accuracy",
                "The same for the never-grown twins of the same hosts; `null` without twins.",
                "right / all, mean over the twins of the episodes",
                "fraction of 1",
                "varies with the families that were drawn, not with learning",
            ),
            Metric(
                "charts/added_parameters",
                "Mean number of parameters of the modules kept.",
                "parameters of FOSSILIZED modules at the end, mean over episodes",
                "parameters",
                "as few as the return allows; rent sets the price",
            ),
            Metric("charts/added_parameters_sem", "How sure that mean is.", SEM, "parameters", "–"),
            Metric(
                "charts/num_fossilized",
                "Mean number of modules kept for good.",
                "FOSSILIZED slots at the end, mean over episodes",
                "modules",
                "between 0 and `slots.max_seeds`; 0 for ever means that the controller has given up growing",
            ),
            Metric("charts/num_fossilized_sem", "How sure that mean is.", SEM, "modules", "–"),
            Metric(
                "charts/num_episodes",
                "Episodes that ended in the iteration.",
                "count",
                "episodes",
                "num_envs × num_steps / num_epochs",
            ),
            Metric(
                "charts/num_crashed",
                "Episodes that ended because a number of their host was not finite; such a host counts as guessing.",
                "count",
                "episodes",
                "0",
            ),
            Metric(
                "return_by_family/<family>",
                "Mean return on hosts of one family; one metric for each family that may be drawn.",
                "as `charts/episodic_return`",
                "points",
                "families that need growing rise above 0; on those that do not, 0 is the best there is",
            ),
        ),
    ),
    Section(
        "What it does",
        "Ops are those of [the life of a seed module](../README.md#the-life-of-a-seed-module).",
        (
            Metric(
                "ops/attempted/<op>",
                "How often the op was chosen.",
                "count over environments and steps",
                "actions",
                "every op above 0 early on",
            ),
            Metric(
                "ops/successful/<op>",
                "How often it was carried out.",
                "count",
                "actions",
                "equal to attempted: masks forbid what is impossible",
            ),
            Metric(
                "ops/choice_share/<op>",
                "Share of the op among steps with more than one legal op; `null` if there was none.",
                "chosen / steps with a choice",
                "fraction of 1",
                "WAIT near 1 from early on is op collapse; a share of 0 for good is a dead op",
            ),
            Metric(
                "charts/forced_wait_share",
                "Steps in which WAIT was the only legal op, which teach the policy nothing.",
                "steps without a choice / all steps",
                "fraction of 1",
                "depends on the rules; rises where slots fill up",
            ),
            Metric(
                "stages/<stage>",
                "Share of slots in that stage after a step, over environments, slots and steps.",
                "slots in the stage / all slots",
                "fraction of 1",
                "BLENDING and HOLDING above 0 once modules get through G2; FOSSILIZED grows with learning",
            ),
        ),
    ),
    Section(
        "What it is paid",
        "Reward components per step, unscaled; they sum to the reward.",
        (
            Metric(
                "reward/gain",
                "Score gained on the twin (or, by family, on guessing or on the bare host).",
                "mean of γΔ′ − Δ, Δ the score's lead",
                "points per step",
                "rises above 0",
            ),
            Metric(
                "reward/rent",
                "Rent for parameters.",
                "mean of ρ − γρ′",
                "points per step",
                "below 0 where modules are kept; smaller than the gain",
            ),
            Metric(
                "reward/stage",
                "Stage shaping, 0 unless `reward.stage_shaping` is set.",
                "mean of γΨ′ − Ψ",
                "points per step",
                "sums to 0 over an episode",
            ),
            Metric(
                "reward/crash",
                "Penalty for hosts that crashed; none where the never-grown twin crashes too.",
                "mean of −`reward.crash_penalty` where crashed",
                "points per step",
                "0",
            ),
        ),
    ),
    Section(
        "How it learns",
        "Names and meanings are CleanRL's. Means over the minibatches that were stepped on; only steps with more than "
        "one legal op count for policy, entropy and KL. `null` where no minibatch was stepped on.",
        (
            Metric(
                "losses/policy_loss",
                "Clipped surrogate objective.",
                "mean of max(−A r, −A clip(r, 1 ± ε))",
                "–",
                "small, of either sign; its trend says little",
            ),
            Metric(
                "losses/value_loss",
                "Error of Q(s, op), or of V(s).",
                "½ mean (Q − G)²",
                "scaled reward²",
                "falls at first, then follows the returns",
            ),
            Metric(
                "losses/entropy",
                "Entropy bonus before `ent_coef`, heads weighted.",
                "Σ heads: multiplier × normalised entropy, per step with a choice",
                "–",
                "falls slowly",
            ),
            Metric(
                "losses/entropy/<head>",
                "How undecided a head is, where it matters and has a choice.",
                "entropy / log(number legal), mean over those steps",
                "fraction of 1",
                "1 is uniform; falls slowly. Below 0.01 is the anomaly `entropy_collapse`; `null` if it never had "
                "a choice",
            ),
            Metric(
                "losses/approx_kl",
                "How far the policy moved, at the last minibatch looked at.",
                "mean of e^r − 1 − r, r the log ratio",
                "nats",
                "up to 1.5 × `ppo.target_kl`, where an update stops",
            ),
            Metric(
                "losses/clipfrac",
                "Share of ratios outside the clipping range.",
                "ratios with |r − 1| > ε / ratios",
                "fraction of 1",
                "0.05 to 0.3",
            ),
            Metric(
                "losses/explained_variance",
                "How well stored values predicted returns.",
                "1 − Var(G − V) / Var(G), complete episodes",
                "fraction of 1",
                "towards 1; below 0 is worse than their mean: usual at the start, later below −1 the anomaly "
                "`value_collapse`. `null` if returns do not vary",
            ),
            Metric(
                "losses/grad_norm",
                "Gradient norm before clipping.",
                "L2 norm over all parameters",
                "–",
                "near `ppo.max_grad_norm` or a few times it; above 100 is the anomaly `gradient_norm`",
            ),
            Metric(
                "losses/ratio_mean",
                "Mean probability ratio of an action, new over old.",
                "mean of exp(log π − log π_old)",
                "–",
                "1 ± 0.1",
            ),
            Metric("losses/ratio_std", "Its spread.", "standard deviation", "–", "below 0.5"),
            Metric(
                "losses/ratio_min", "The smallest.", "minimum", "–", "above 0.1, else the anomaly `ratio_explosion`"
            ),
            Metric("losses/ratio_max", "The largest.", "maximum", "–", "below 5, else the anomaly `ratio_explosion`"),
            Metric(
                "losses/skipped_minibatches",
                "Minibatches skipped because loss or gradient was not finite.",
                "count",
                "minibatches",
                "0; with fp16 a few while the loss scale settles. Otherwise the anomaly `non_finite`",
            ),
            Metric(
                "losses/early_stop_epoch",
                "Pass in which the KL limit ended the update, from 0; `null` if none did.",
                "index",
                "passes",
                "`null`, or a late pass; 0 for long means that the learning rate is too high",
            ),
            Metric(
                "charts/ent_coef",
                "Weight of the entropy bonus now.",
                "linear from `ppo.ent_coef` to `ppo.ent_coef_final`",
                "–",
                "as configured",
            ),
            Metric(
                "charts/learning_rate",
                "Learning rate of the policy now.",
                "`ppo.lr`, with `ppo.anneal_lr` falling to 0",
                "–",
                "as configured",
            ),
        ),
    ),
    Section(
        "How the hosts fare",
        "Summed over all hosts of the iteration.",
        (
            Metric(
                "charts/skipped_host_steps",
                "Training steps of a host or a module skipped by its own loss scale (fp16).",
                "count",
                "steps",
                "0 without fp16; with it a few",
            ),
            Metric(
                "charts/non_finite_gradients",
                "Epochs in which a host or a module had a gradient that was not finite.",
                "count",
                "host and module epochs",
                "0",
            ),
        ),
    ),
    Section(
        "How fast it goes",
        "Of the first rank. Times depend on the machine; nothing else differs between two runs of one seed.",
        (
            Metric(
                "charts/env_epochs",
                "Host epochs trained so far, over all environments.",
                "iteration × num_envs × num_steps",
                "env-epochs",
                "grows evenly",
            ),
            Metric(
                "charts/SPS",
                "Steps per second: host epochs trained, over all environments.",
                "num_envs × num_steps / seconds of the iteration",
                "env-epochs per second",
                "steady",
            ),
            Metric(
                "time/rollout",
                "Collecting the rollout, hosts' training included.",
                "wall clock",
                "seconds",
                "most of the iteration",
            ),
            Metric(
                "time/hosts",
                "Training and validating hosts, within the rollout.",
                "wall clock",
                "seconds",
                "most of the rollout",
            ),
            Metric(
                "time/update",
                "Updating the policy, waiting for other ranks included.",
                "wall clock",
                "seconds",
                "a small part",
            ),
            Metric(
                "time/control_share",
                "Everything but training and validating hosts.",
                "1 − time/hosts / (time/rollout + time/update)",
                "fraction of 1",
                "below 0.3 on hosts of any size",
            ),
        ),
    ),
)

METRICS: tuple[Metric, ...] = tuple(metric for section in SECTIONS for metric in section.metrics)


def explain(key: str) -> Metric | None:
    """The entry of a logged name, ``None`` if there is none."""
    return next((metric for metric in METRICS if metric.matches(key)), None)
