"""Building of the parts for acting from a configuration: policy, rules and settings, without data or host."""

from __future__ import annotations

from typing import Any

import torch

from esper.blueprints import blueprint_ids
from esper.config.growth import IsolateUntil
from esper.config.learning import PolicyConfig
from esper.config.root import Config
from esper.envs.features import continuous_features, feature_kinds
from esper.envs.records import EnvSettings
from esper.experiment.checkpoint import CheckpointError, restore_policy
from esper.growth import GrowthRules
from esper.growth.actions import BLUEPRINT_IDS
from esper.policy import GrowthPolicy, Normaliser
from esper.population import chosen_probes
from esper.runtime.rng import derive_seed


def policy_options(policy: PolicyConfig) -> dict[str, Any]:
    """Return the arguments of a policy that its section of the configuration determines."""
    return {
        "embedding_dim": policy.embedding_dim,
        "encoder_dim": policy.encoder_dim,
        "lstm_dim": policy.lstm_dim,
        "head_dim": policy.head_dim,
        "blueprint_head_dims": policy.blueprint_head_dims,
        "value_dim": policy.value_dim,
        "conditional_heads": policy.conditional_heads,
        "slot_head": policy.slot_head,
        "critic": policy.critic,
        "body": policy.body,
        "slot_depth": policy.slot_depth,
        "choices": policy.choices.indices(),
        "initial_op_logits": policy.initial_op_logits.by_op(),
    }


def build_policy(
    config: Config, num_slots: int, device: torch.device | str = "cpu", *, num_blueprints: int | None = None
) -> tuple[GrowthPolicy, Normaliser]:
    """Build a new policy, initialised from the run's seed, and its normaliser.

    Args:
        config: configuration of the run.
        num_slots: S.
        device: device of both.
        num_blueprints: choices of the blueprint head, the first ones in index order; all registered ones when ``None``.
    """
    probes = chosen_probes(config.observation.slot_probes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("policy", config.seed))
        network = GrowthPolicy(
            num_slots,
            len(blueprint_ids()) if num_blueprints is None else num_blueprints,
            num_probes=len(probes),
            price=config.observation.price,
            **policy_options(config.policy),
            autocast_dtype=config.amp.dtype,
        )
    seen = num_slots, probes, config.observation.price
    normaliser = Normaliser(continuous_features(*seen), feature_kinds(*seen) if network.for_any_slots else None)
    return network.to(device), normaliser.to(device)


def trained_policy(
    record: dict[str, Any], config: Config, num_slots: int | None = None
) -> tuple[GrowthPolicy, Normaliser]:
    """Load the policy and the normaliser of a checkpoint on the CPU.

    A policy trained without users' blueprints never chooses one, however many are registered.

    Args:
        record: result of :func:`~esper.experiment.checkpoint.load_checkpoint`.
        config: result of :func:`~esper.experiment.checkpoint.config_of` for the record.
        num_slots: S, if the checkpoint is for any number of slots; ``None`` for the number that it was trained on.

    Raises:
        CheckpointError: it was trained with users' blueprints, and other ones are registered; or by a version of Esper
            that had fewer of its own.
    """
    its, known = len(record["policy"]["embedding.weight"]) - 1, blueprint_ids()
    if its < len(BLUEPRINT_IDS):
        raise CheckpointError(
            f"it was trained with {its} blueprints, and this Esper has {len(BLUEPRINT_IDS)} of its own: use the Esper "
            "that wrote it, or train from scratch"
        )
    if its not in (len(BLUEPRINT_IDS), len(known)):
        raise CheckpointError(
            f"it was trained with {its} blueprints, and {len(known)} are registered ({', '.join(known)}): import what "
            "registers its own, and no other"
        )
    slots = record["num_slots"] or num_slots or config.slots.num_slots
    policy, normaliser = build_policy(config, slots, num_blueprints=its)
    restore_policy(record, policy, normaliser)
    return policy, normaliser


def growth_rules(config: Config) -> GrowthRules:
    """Return limits and times of the lifecycle."""
    slots = config.slots
    assert slots.max_developing is not None, "nulls are resolved on loading"
    assert slots.max_seeds is not None, "nulls are resolved on loading"
    return GrowthRules(
        max_developing=slots.max_developing,
        max_seeds=slots.max_seeds,
        min_training_epochs=slots.min_training_epochs,
        min_cull_age=slots.min_cull_age,
        embargo_epochs=slots.embargo_epochs,
        resetting_epochs=slots.resetting_epochs,
        min_gradient_health=slots.min_gradient_health,
        vanish_norm=slots.vanish_norm,
        explode_norm=slots.explode_norm,
    )


def env_settings(config: Config) -> EnvSettings:
    """Return the numeric settings of the growth environment."""
    return EnvSettings(
        incubation=config.slots.incubation,
        incubate_every=config.slots.incubate_every,
        isolate_until_fossilized=config.slots.isolate_until is IsolateUntil.fossilized,
        contributions_every=config.counterfactual.every,
        pairs_every=config.counterfactual.pairs_every,
        shapley_permutations=config.counterfactual.shapley_permutations,
        max_configurations=config.counterfactual.max_configurations,
        gamma=config.ppo.gamma,
        rent_weight=config.reward.rent_weight,
        rent_kind=config.reward.rent,
        compute_weight=config.reward.compute_weight,
        stage_shaping=config.reward.stage_shaping,
        crash_penalty=config.reward.crash_penalty,
        reward_scale=config.reward.scale,
        param_budget=config.slots.param_budget,
        slot_probes=chosen_probes(config.observation.slot_probes),
        probe_every=config.observation.probe_every,
        price=config.observation.price,
        scale_free=config.observation.scale_free,
        contribution_decay=config.observation.contribution_decay,
    )
