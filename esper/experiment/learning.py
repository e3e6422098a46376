"""Hyperparameters of the algorithms from a configuration."""

from __future__ import annotations

from esper.algorithms import A2CSettings, ImitationSettings, PPOSettings, Schedule
from esper.config.learning import A2CConfig, ImitationConfig, PPOConfig
from esper.growth.actions import HEADS


def ppo_settings(ppo: PPOConfig) -> PPOSettings:
    """Return the hyperparameters of PPO."""
    return PPOSettings(
        schedule=Schedule(
            lr=ppo.lr,
            lr_final=0.0 if ppo.anneal_lr else ppo.lr,
            ent_coef=ppo.ent_coef,
            ent_coef_final=ppo.ent_coef_final,
            num_iterations=ppo.anneal_iterations,
        ),
        adam_eps=ppo.adam_eps,
        gae_lambda=ppo.gae_lambda,
        num_minibatches=ppo.num_minibatches,
        update_epochs=ppo.update_epochs,
        norm_adv=ppo.norm_adv,
        clip_coef=ppo.clip_coef,
        clip_vloss=ppo.clip_vloss,
        vf_coef=ppo.vf_coef,
        max_grad_norm=ppo.max_grad_norm,
        target_kl=ppo.target_kl,
        ratio=ppo.ratio,
        entropy_multipliers=tuple(getattr(ppo.entropy_multipliers, head) for head in HEADS),
    )


def a2c_settings(a2c: A2CConfig) -> A2CSettings:
    """Return the hyperparameters of A2C."""
    return A2CSettings(
        schedule=Schedule(
            lr=a2c.lr,
            lr_final=a2c.lr,
            ent_coef=a2c.ent_coef,
            ent_coef_final=a2c.ent_coef_final,
            num_iterations=a2c.anneal_iterations,
        ),
        adam_eps=a2c.adam_eps,
        gae_lambda=a2c.gae_lambda,
        vf_coef=a2c.vf_coef,
        max_grad_norm=a2c.max_grad_norm,
    )


def imitation_settings(imitation: ImitationConfig) -> ImitationSettings:
    """Return the hyperparameters of imitation."""
    return ImitationSettings(
        lr=imitation.lr,
        adam_eps=imitation.adam_eps,
        num_minibatches=imitation.num_minibatches,
        update_epochs=imitation.update_epochs,
        ent_coef=imitation.ent_coef,
        vf_coef=imitation.vf_coef,
        max_grad_norm=imitation.max_grad_norm,
    )
