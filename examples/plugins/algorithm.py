"""REINFORCE with the critic as its baseline: ``plugins=[examples.plugins.algorithm] algorithm=reinforce``."""

import torch

from esper.algorithms import AlgorithmContext, PolicyOptimizer, RolloutBuffer, UpdateResult, register_algorithm


class Reinforce:
    def __init__(self, context: AlgorithmContext) -> None:
        self.context = context
        self.optimizer = PolicyOptimizer(context.policy, lr=1e-3, max_grad_norm=0.5, ranks=context.ranks)
        self.shared, self.own = self.optimizer.components, {}

    def update(self, buffer: RolloutBuffer, iteration: int) -> UpdateResult:
        advantages, returns = buffer.data.advantages(self.context.gamma, gae_lambda=1.0)
        said = buffer.data.evaluate(self.context.policy)
        losses = (said.q - returns).square() - advantages * said.log_prob.sum(-1)
        self.optimizer.backward(losses.sum() / self.context.ranks.sum(torch.tensor(losses.numel())))
        return UpdateResult(metrics={"losses/grad_norm": self.optimizer.step()})


register_algorithm("reinforce", Reinforce)
