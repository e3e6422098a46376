"""A reward: paired, by the square of the score, so that the last points count most. Select it by
`reward.family=squared`.
"""

from torch import Tensor

from esper.envs.rewards import RewardFamily, paired_reward, register_reward
from esper.population import Scores


def score(scores: Scores, guess: Scores) -> Tensor:
    return scores.points.double().square() / 100


register_reward("squared", RewardFamily(score=score, step=paired_reward))
