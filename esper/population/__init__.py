"""Training many growing hosts as one program."""

from __future__ import annotations

from esper.population.counterfactuals import Samples, Valuation, evaluate, valuate
from esper.population.flops import MultiplyAdds, count_multiply_adds, training_multiply_adds
from esper.population.losses import Scores
from esper.population.mapping import MAPPINGS, build_mapping
from esper.population.population import Population
from esper.population.probes import NUM_PROBES, PROBE_NAMES, chosen_probes
from esper.population.training import INCUBATIONS, EpochStats, GrowthStage, probe_hosts, train_epoch

__all__ = [
    "INCUBATIONS",
    "MAPPINGS",
    "NUM_PROBES",
    "PROBE_NAMES",
    "EpochStats",
    "GrowthStage",
    "MultiplyAdds",
    "Population",
    "Samples",
    "Scores",
    "Valuation",
    "build_mapping",
    "chosen_probes",
    "count_multiply_adds",
    "evaluate",
    "probe_hosts",
    "train_epoch",
    "training_multiply_adds",
    "valuate",
]
