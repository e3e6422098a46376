"""Random but consistent situations for policy tests."""

from __future__ import annotations

import torch
from helpers import give_opinions
from torch import Tensor

from esper.envs.features import num_features
from esper.growth.actions import NUM_BLUEPRINTS, NUM_OPS, OP_GERMINATE, OP_WAIT, ActionMasks, head_sizes
from esper.policy import GrowthPolicy


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def opinionated_policy(num_slots: int = 3, num_probes: int = 0, scale: float = 30.0, **kwargs: object) -> GrowthPolicy:
    """Make a small policy whose logits differ clearly, unlike a new one's."""
    torch.manual_seed(0)
    sizes = {"encoder_dim": 16, "lstm_dim": 16, "head_dim": 16, "blueprint_head_dims": (16, 16), "value_dim": 16}
    policy = GrowthPolicy(
        num_slots,
        NUM_BLUEPRINTS,
        num_probes=num_probes,
        **(sizes | kwargs),
    )
    give_opinions(policy, scale)
    with torch.no_grad():
        policy.embedding.weight.mul_(scale)
    return policy


def random_masks(*shape: int, num_slots: int = 3, generator: torch.Generator) -> ActionMasks:
    """Masks in which every legal op but WAIT has a slot, and every slot a blueprint."""

    def some(*size: int) -> Tensor:
        mask = torch.rand(*shape, *size, generator=generator) < 0.5
        sure = torch.randint(size[-1], (*shape, *size[:-1], 1), generator=generator)
        return mask.scatter(-1, sure, True)

    op = torch.rand(*shape, NUM_OPS, generator=generator) < 0.7
    op[..., OP_WAIT] = True
    slot = some(NUM_OPS, num_slots) & op.unsqueeze(-1)
    slot[..., OP_WAIT, :] = False
    alpha = torch.rand(*shape, num_slots, generator=generator)
    alpha = alpha * (torch.rand(*shape, num_slots, generator=generator) < 0.5)
    return ActionMasks(op=op, slot=slot, blueprint=some(num_slots, NUM_BLUEPRINTS), alpha=alpha)


def open_masks(*shape: int, num_slots: int = 3, alpha: float = 0.5) -> ActionMasks:
    """Masks in which everything is legal."""
    return ActionMasks(
        op=torch.ones(*shape, NUM_OPS, dtype=torch.bool),
        slot=torch.ones(*shape, NUM_OPS, num_slots, dtype=torch.bool),
        blueprint=torch.ones(*shape, num_slots, NUM_BLUEPRINTS, dtype=torch.bool),
        alpha=torch.full((*shape, num_slots), alpha),
    )


def masks_at(masks: ActionMasks, step: int) -> ActionMasks:
    """One step of masks ``[N, T, ...]``."""
    return ActionMasks(
        op=masks.op[:, step], slot=masks.slot[:, step], blueprint=masks.blueprint[:, step], alpha=masks.alpha[:, step]
    )


def repeated_masks(masks: ActionMasks, count: int) -> ActionMasks:
    """The first row's masks as ``count`` environments of one step, ``[count, 1, ...]``."""
    return masks[torch.zeros(count, 1, dtype=torch.int64)]


def random_view(
    *shape: int, num_slots: int = 3, num_probes: int = 0, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Features and blueprint indices."""
    features = torch.randn(*shape, num_features(num_slots, num_probes), generator=generator)
    return features, torch.randint(-1, NUM_BLUEPRINTS, (*shape, num_slots), generator=generator)


def all_actions(num_slots: int) -> Tensor:
    """Every combination of head values, ``int64 [n, 8]``."""
    sizes = head_sizes(num_slots, NUM_BLUEPRINTS)
    return torch.cartesian_prod(*[torch.arange(size) for size in sizes])


def assert_legal(actions: Tensor, masks: ActionMasks) -> None:
    """Op, slot and blueprint of each row ``[N, 8]`` obey the masks."""
    for row, (op, slot, blueprint, *_) in enumerate(actions.tolist()):
        assert masks.op[row, op]
        if op != OP_WAIT:
            assert masks.slot[row, op, slot]
        if op == OP_GERMINATE:
            assert masks.blueprint[row, slot, blueprint]
        assert all(
            value < size
            for value, size in zip(actions[row].tolist(), head_sizes(*masks.blueprint.shape[-2:]), strict=True)
        )
