"""Training many growing hosts as one program."""

from __future__ import annotations

from esper.population.counterfactuals import Questions, Samples, Valuation, evaluate, valuate
from esper.population.epoch import EpochStats, train_epoch
from esper.population.flops import MultiplyAdds, count_multiply_adds, incubation_share, training_multiply_adds
from esper.population.losses import Scores
from esper.population.mapping import MAPPINGS, build_mapping
from esper.population.population import Population
from esper.population.probes import NUM_PROBES, PROBE_NAMES, chosen_probes
from esper.population.training import GrowthStage, probe_hosts

__all__ = [
    "MAPPINGS",
    "NUM_PROBES",
    "PROBE_NAMES",
    "EpochStats",
    "GrowthStage",
    "MultiplyAdds",
    "Population",
    "Questions",
    "Samples",
    "Scores",
    "Valuation",
    "build_mapping",
    "chosen_probes",
    "count_multiply_adds",
    "evaluate",
    "incubation_share",
    "probe_hosts",
    "train_epoch",
    "training_multiply_adds",
    "valuate",
]
