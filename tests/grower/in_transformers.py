"""A small GPT that grows in a Trainer. Importing Transformers takes seconds, so only tests that need it do so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from nets import Script, born, kept
from schema_defaults import growth_rules
from torch import Tensor, nn

import esper
from esper.grower.transformers import GrowerCallback
from esper.growth.actions import Blueprint, Style

EPOCHS, SAMPLES, BATCH = 8, 20, 4
SLOTS = ["transformer.h.0", "transformer.h.1"]
GROWING = {0: born(0, blueprint=Blueprint.LORA), 1: born(1, Style.GATED_GATE, Blueprint.MLP_SMALL), 7: kept(0)}
DEVELOPING = {0: born(0, blueprint=Blueprint.LORA), 1: born(1, blueprint=Blueprint.MLP_SMALL)}
NEVER_BLENDS = growth_rules(max_developing=2, max_seeds=2, min_training_epochs=99, min_cull_age=1)


class InOrder(transformers.Trainer):  # type: ignore[misc]
    def _get_train_sampler(self, *given: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def gpt(dropout: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def samples() -> list[dict[str, Tensor]]:
    """Sequences that count up."""
    tokens = (torch.arange(SAMPLES)[:, None] + torch.arange(8)) % 11
    return [{"input_ids": row, "labels": row} for row in tokens]


def score(model: nn.Module) -> esper.Score:
    tokens = torch.stack([sample["input_ids"] for sample in samples()])
    return esper.language_score(model, [(tokens[:, :-1], tokens[:, 1:])])


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(
    folder: Path,
    model: nn.Module,
    callbacks: Sequence[Any] = (),
    *,
    optimizer: Any = None,
    resume: Path | None = None,
    scaler: torch.amp.GradScaler | None = None,
    **options: Any,
) -> nn.Module:
    """Train a model.

    Args:
        folder: of the trainer.
        model: trained in place.
        callbacks: of the trainer.
        optimizer: ``"own"`` for the trainer's own, with two groups.
        resume: checkpoint to resume from.
        scaler: train in fp16 under this one, which a Trainer has on GPUs only.
        options: further arguments of the trainer.
    """
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        **(
            {"num_train_epochs": EPOCHS, "max_grad_norm": 0.0, "save_strategy": "no"}
            | {"per_device_train_batch_size": BATCH}
            | options
        ),
    )
    pair: tuple[Any, Any] = None, None
    if optimizer != "own":
        optimizer = optimizer or optimizer_of(model)
        pair = optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    trainer = InOrder(
        model=model,
        args=arguments,
        train_dataset=samples(),
        optimizers=pair,
        callbacks=list(callbacks),
    )
    if scaler is not None:
        trainer.accelerator.scaler, trainer.accelerator.native_amp = scaler, True
        trainer.accelerator.state._mixed_precision = "fp16"
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return model


def callback(script: dict[int, Tensor], **options: Any) -> GrowerCallback:
    return GrowerCallback(**({"slots": SLOTS, "controller": Script(script), "evaluate": score} | options))


def host(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if ".esper." not in name}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class NoLoss(nn.Module):
    """A model whose first pass returns no loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        return {"logits": self.inner(input_ids).logits}
