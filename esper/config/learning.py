"""Configuration of the learned controller and its training: policy, algorithms, reward, trainer. CleanRL's names."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum

from esper.config.choices import ChoicesConfig, InitialOpLogits
from esper.runtime.checks import at_least, distinct, positive, within
from esper.runtime.options import BodyName, Critic, Ratio, Rent, SlotHead


class Twin(StrEnum):
    """Baseline of the reward: the score of the same host without growth, or none."""

    cached = "cached"
    none = "none"


@dataclass(kw_only=True, slots=True)
class PolicyConfig:
    """Section ``policy``: widths and options of the recurrent policy."""

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
    """Estimate of the value head."""
    body: BodyName = BodyName.flat
    """Weights before the heads: for one number of slots (flat), or the same for each slot, so that the policy acts on
    any number of slots and treats them alike (shared).
    """
    slot_depth: bool = True
    """With ``body=shared``, tell the policy the relative depth of each slot, in which slots then still differ."""
    choices: ChoicesConfig = field(default_factory=ChoicesConfig)
    """Choices left to the heads."""
    initial_op_logits: InitialOpLogits = field(default_factory=InitialOpLogits)
    """Logits of the ops in a new policy."""
    compile: bool = False
    """Compile encoder and heads with ``torch.compile``; on a CPU it takes a minute or more and rarely pays off."""

    def __post_init__(self) -> None:
        for key in ("embedding_dim", "encoder_dim", "lstm_dim", "head_dim", "value_dim"):
            at_least(f"policy.{key}", getattr(self, key), 1)
        if self.body is BodyName.shared and self.slot_head is SlotHead.flat:
            raise ValueError(
                "policy.slot_head=flat has a logit for each slot, and policy.body=shared takes any number of them: use "
                "policy.slot_head=pointer"
            )
        if self.body is BodyName.flat and not self.slot_depth:
            raise ValueError("policy.slot_depth=false is an option of policy.body=shared, and policy.body is flat")
        if not self.blueprint_head_dims:
            raise ValueError("policy.blueprint_head_dims must name at least one width, got []")
        for index, width in enumerate(self.blueprint_head_dims):
            at_least(f"policy.blueprint_head_dims[{index}]", width, 1)


@dataclass(kw_only=True, slots=True)
class EntropyMultipliers:
    """Factors on the entropy bonuses of the action heads."""

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
    """Section ``ppo``: hyperparameters of proximal policy optimization."""

    lr: float = 1e-3
    """Adam learning rate of the policy."""
    adam_eps: float = 1e-5
    """Adam epsilon of the policy."""
    gamma: float = 0.995
    """Discount of the environment's return, whatever the algorithm; 1.0 in presets with episodes of a fixed length."""
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
    """Number of iterations over which ``ent_coef`` (and with ``anneal_lr`` the learning rate) falls, whatever a run's
    length.
    """
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradient norm at which the policy's gradient is clipped."""
    target_kl: float | None = 0.05
    """Stop an update before a step once the KL divergence exceeds 1.5 times this; null = never."""
    anneal_lr: bool = False
    """Let the learning rate fall linearly to 0 over ``anneal_iterations``."""
    ratio: Ratio = Ratio.joint
    """Probability ratio that is clipped."""
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
class A2CConfig:
    """Section ``a2c``: hyperparameters of advantage actor-critic, which takes one step per rollout. The discount is
    ``ppo.gamma``.
    """

    lr: float = 3e-3
    """Adam learning rate of the policy."""
    adam_eps: float = 1e-5
    """Adam epsilon of the policy."""
    gae_lambda: float = 0.95
    """Decay of generalised advantage estimation; 1 = returns of the whole episode."""
    ent_coef: float = 0.02
    """Entropy bonus at the first iteration."""
    ent_coef_final: float = 0.002
    """Entropy bonus from iteration ``anneal_iterations`` on."""
    anneal_iterations: int = 300
    """Iterations over which ``ent_coef`` falls, whatever a run's length."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradient norm at which the policy's gradient is clipped."""

    def __post_init__(self) -> None:
        for key in ("lr", "adam_eps", "max_grad_norm"):
            positive(f"a2c.{key}", getattr(self, key))
        within("a2c.gae_lambda", self.gae_lambda, 0, 1)
        at_least("a2c.anneal_iterations", self.anneal_iterations, 1)
        for key in ("ent_coef", "ent_coef_final", "vf_coef"):
            at_least(f"a2c.{key}", getattr(self, key), 0)


MAX_COMPUTE_WEIGHT = 1e6
"""Largest price of training, beyond which rewards would overflow; scores have 100 points."""


@dataclass(kw_only=True, slots=True)
class ImitationConfig:
    """Section ``imitation``: first iterations in which another controller plays, and the policy learns to do the same
    (behaviour cloning) and what it earns. Then the algorithm takes over.
    """

    controller: str | None = None
    """Controller to imitate, from the controller registry; null = none, and the rest of the section has no effect."""
    iterations: int = 10
    """Iterations that it plays."""
    update_epochs: int = 8
    """Passes over each of these rollouts."""
    num_minibatches: int = 4
    """Minibatches per pass, each of whole environments."""
    lr: float = 1e-3
    """Adam learning rate of the policy."""
    adam_eps: float = 1e-5
    """Adam epsilon of the policy."""
    ent_coef: float = 0.01
    """Entropy bonus, which keeps other actions possible."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradient norm at which the policy's gradient is clipped."""

    def __post_init__(self) -> None:
        for key in ("iterations", "update_epochs", "num_minibatches"):
            at_least(f"imitation.{key}", getattr(self, key), 1)
        for key in ("lr", "adam_eps", "max_grad_norm"):
            positive(f"imitation.{key}", getattr(self, key))
        for key in ("ent_coef", "vf_coef"):
            at_least(f"imitation.{key}", getattr(self, key), 0)


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    """Section ``reward``: reward of a controller."""

    family: str = "paired"
    """paired: score against the never-grown twin; loss: the same with the loss; contribution: score against the same
    host with every module off, which also rewards dependence on modules.
    """
    rent_weight: float = 3.0
    """Price of size: score points that doubling the host's parameters must earn to break even (with linear rent)."""
    rent_weights: list[float] | None = None
    """Prices to draw from, one for each host and the same in all its episodes; null = ``rent_weight`` for all."""
    rent: Rent = Rent.linear
    """Growth of rent with added parameters."""
    compute_weight: float = 0.0
    """Price of training: score points for as many training FLOPs, beyond those of the bare host, as its whole training
    takes.
    """
    twin: Twin = Twin.cached
    """Baseline subtracted from the score: that of the never-grown twin, computed once per instance, or none."""
    stage_shaping: float = 0.0
    """Score points per stage of the furthest module, given along the way and taken back at the end (0 = off)."""
    crash_penalty: float = 10.0
    """Score points taken from a host whose loss is not finite, unless its never-grown twin crashes too."""
    scale: float = 0.1
    """Fixed factor on the reward."""

    def __post_init__(self) -> None:
        at_least("reward.rent_weight", self.rent_weight, 0)
        if self.rent_weights is not None:
            distinct("reward.rent_weights", self.rent_weights)
            for number, weight in enumerate(self.rent_weights):
                at_least(f"reward.rent_weights[{number}]", weight, 0)
        within("reward.compute_weight", self.compute_weight, 0, MAX_COMPUTE_WEIGHT)
        at_least("reward.stage_shaping", self.stage_shaping, 0)
        at_least("reward.crash_penalty", self.crash_penalty, 0)
        positive("reward.scale", self.scale)


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """Section ``trainer``: sizes of the training loop: collect a rollout, update the policy, log, save."""

    num_envs: int = 32
    """Number of hosts that grow at once."""
    num_steps: int | None = None
    """Actions per environment in a rollout; null = env.num_epochs, a whole episode."""
    num_iterations: int = 30
    """Number of rollouts, each followed by an update."""
    checkpoint_every: int = 10
    """Iterations between checkpoints that are kept; ``last.pt`` is written after every one, ``best.pt`` at every new
    best.
    """

    def __post_init__(self) -> None:
        at_least("trainer.num_envs", self.num_envs, 1)
        if self.num_steps is not None:
            at_least("trainer.num_steps", self.num_steps, 1)
        at_least("trainer.num_iterations", self.num_iterations, 1)
        at_least("trainer.checkpoint_every", self.checkpoint_every, 1)
