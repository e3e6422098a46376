"""The learned growth policy: masked distributions, network, observation normaliser."""

from esper.policy.distributions import MaskedCategorical
from esper.policy.network import ActResult, Evaluation, GrowthPolicy, Hidden
from esper.policy.normaliser import Moments, Normaliser, merge_moments, moments

__all__ = [
    "ActResult",
    "Evaluation",
    "GrowthPolicy",
    "Hidden",
    "MaskedCategorical",
    "Moments",
    "Normaliser",
    "merge_moments",
    "moments",
]
