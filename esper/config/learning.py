"""Who decides and how it learns: policy, PPO, reward, trainer. PPO's names are CleanRL's."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum

from esper.config.checks import at_least, positive, within


class Critic(StrEnum):
    """What the value head estimates: Q(s, op) with V = E[Q] as the baseline, or V(s) itself."""

    op = "op"
    state = "state"


class SlotHead(StrEnum):
    """How slots get their logits: each its own from the trunk, or a shared score of its own features."""

    flat = "flat"
    pointer = "pointer"


class Ratio(StrEnum):
    """Probability ratio that PPO clips: of all relevant heads together, or of each head."""

    joint = "joint"
    per_head = "per_head"


class Rent(StrEnum):
    """How rent grows with added parameters."""

    linear = "linear"
    log = "log"


class Twin(StrEnum):
    """Whether the reward subtracts the score of the same host left alone."""

    cached = "cached"
    none = "none"


@dataclass(kw_only=True, slots=True)
class PolicyConfig:
    """Widths and options of the recurrent policy."""

    embedding_dim: int = 4
    """Width of a slot's blueprint embedding."""
    encoder_dim: int = 256
    """Width of the encoder's layer."""
    lstm_dim: int = 256
    """Width of the LSTM's hidden state."""
    head_dim: int = 128
    """Hidden width of every action head but the blueprint head."""
    blueprint_head_dims: list[int] = field(default_factory=lambda: [256, 128])
    """Hidden widths of the blueprint head."""
    value_dim: int = 128
    """Hidden width of the value head."""
    conditional_heads: bool = True
    """Let the later heads see the sampled op, slot and that slot's features."""
    slot_head: SlotHead = SlotHead.pointer
    """A logit per slot from the trunk (flat), or a score of each slot's own features by shared weights (pointer)."""
    critic: Critic = Critic.op
    """What the value head estimates."""
    compile: bool = False
    """Run encoder and heads through ``torch.compile``: on a CPU it takes a minute or more and rarely pays."""

    def __post_init__(self) -> None:
        for key in ("embedding_dim", "encoder_dim", "lstm_dim", "head_dim", "value_dim"):
            at_least(f"policy.{key}", getattr(self, key), 1)
        if not self.blueprint_head_dims:
            raise ValueError("policy.blueprint_head_dims must name at least one width, got []")
        for index, width in enumerate(self.blueprint_head_dims):
            at_least(f"policy.blueprint_head_dims[{index}]", width, 1)


@dataclass(kw_only=True, slots=True)
class EntropyMultipliers:
    """Factor on the entropy bonus of each action head."""

    op: float = 1.0
    """Factor of the op head."""
    slot: float = 1.0
    """Factor of the slot head."""
    blueprint: float = 1.5
    """Factor of the blueprint head."""
    style: float = 1.2
    """Factor of the style head."""
    tempo: float = 1.5
    """Factor of the tempo head."""
    alpha_target: float = 1.2
    """Factor of the alpha target head."""
    alpha_speed: float = 1.3
    """Factor of the alpha speed head."""
    alpha_curve: float = 1.3
    """Factor of the alpha curve head."""

    def __post_init__(self) -> None:
        for item in fields(self):
            at_least(f"ppo.entropy_multipliers.{item.name}", getattr(self, item.name), 0)


@dataclass(kw_only=True, slots=True)
class PPOConfig:
    """Proximal policy optimization."""

    lr: float = 1e-3
    """Adam learning rate of the policy."""
    adam_eps: float = 1e-5
    """Adam epsilon of the policy."""
    gamma: float = 0.995
    """Discount; 1.0 in presets whose episodes have a fixed length."""
    gae_lambda: float = 0.95
    """Decay of generalised advantage estimation."""
    num_minibatches: int = 4
    """Minibatches per pass, each of whole environments."""
    update_epochs: int = 8
    """Passes over each rollout."""
    norm_adv: bool = True
    """Normalise advantages over the whole rollout."""
    clip_coef: float = 0.2
    """Clipping range of the probability ratio."""
    clip_vloss: bool = False
    """Clip the value loss as well."""
    ent_coef: float = 0.02
    """Entropy bonus at the first iteration."""
    ent_coef_final: float = 0.002
    """Entropy bonus from iteration ``anneal_iterations`` on."""
    anneal_iterations: int = 30
    """Iterations over which ``ent_coef`` (and with ``anneal_lr`` the learning rate) falls, whatever a run's length."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradient norm at which the policy's gradient is clipped."""
    target_kl: float | None = 0.05
    """An update stops before a step once the KL divergence exceeds 1.5 times this; null = never."""
    anneal_lr: bool = False
    """Let the learning rate fall linearly to 0 over ``anneal_iterations``."""
    ratio: Ratio = Ratio.joint
    """Which probability ratio is clipped."""
    entropy_multipliers: EntropyMultipliers = field(default_factory=EntropyMultipliers)
    """Factor on each head's entropy bonus."""

    def __post_init__(self) -> None:
        for key in ("lr", "adam_eps", "clip_coef", "max_grad_norm"):
            positive(f"ppo.{key}", getattr(self, key))
        for key in ("gamma", "gae_lambda"):
            within(f"ppo.{key}", getattr(self, key), 0, 1)
        for key in ("num_minibatches", "update_epochs", "anneal_iterations"):
            at_least(f"ppo.{key}", getattr(self, key), 1)
        for key in ("ent_coef", "ent_coef_final", "vf_coef"):
            at_least(f"ppo.{key}", getattr(self, key), 0)
        if self.target_kl is not None:
            positive("ppo.target_kl", self.target_kl)


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    """What a controller is paid for."""

    family: str = "paired"
    """paired: against the never-grown twin; loss: likewise, by the loss; contribution: against the same host with every
    module off, which pays dependence too."""
    rent_weight: float = 3.0
    """Price of size: score points that doubling the host's parameters must earn to break even (with linear rent)."""
    rent: Rent = Rent.linear
    """How rent grows with added parameters."""
    twin: Twin = Twin.cached
    """Subtract the score of the never-grown twin, computed once per instance, or nothing."""
    stage_shaping: float = 0.0
    """Score points per stage of the furthest module, lent on the way and taken back at the end (0 = off)."""
    crash_penalty: float = 10.0
    """Score points taken from a host whose loss is not finite, unless its never-grown twin breaks down too."""
    scale: float = 0.1
    """Fixed factor on the reward."""

    def __post_init__(self) -> None:
        at_least("reward.rent_weight", self.rent_weight, 0)
        at_least("reward.stage_shaping", self.stage_shaping, 0)
        at_least("reward.crash_penalty", self.crash_penalty, 0)
        positive("reward.scale", self.scale)


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """The loop: collect, update, log, checkpoint."""

    num_envs: int = 32
    """Hosts that grow at once."""
    num_steps: int | None = None
    """Actions per environment in a rollout; null = env.num_epochs, a whole episode."""
    num_iterations: int = 30
    """Rollouts, each followed by an update."""
    checkpoint_every: int = 10
    """Iterations between checkpoints that are kept; ``last.pt`` is written after every one, ``best.pt`` when due."""

    def __post_init__(self) -> None:
        at_least("trainer.num_envs", self.num_envs, 1)
        if self.num_steps is not None:
            at_least("trainer.num_steps", self.num_steps, 1)
        at_least("trainer.num_iterations", self.num_iterations, 1)
        at_least("trainer.checkpoint_every", self.checkpoint_every, 1)
