"""A module that grows in Lightning. Importing Lightning takes seconds, so only tests that need it do so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from nets import SLOTS, Net, Script, batch, born, kept, net, score_of
from schema_defaults import growth_rules
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from esper.grower.lightning import GrowerCallback
from esper.growth.actions import Style

EPOCHS, BATCHES = 9, 4
GROWING = {0: born(0), 1: born(1, Style.GATED_GATE), 7: kept(0)}
DEVELOPING = {0: born(0), 1: born(1)}
NEVER_BLENDS = growth_rules(max_developing=2, max_seeds=2, min_training_epochs=99, min_cull_age=1)

Pair = tuple[Tensor, Tensor]


class Module(lightning.LightningModule):  # type: ignore[misc]
    """A classifier with everything that a trace could show in."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = net(**options)
        self.norms: list[float] = []
        self.optimizer: Callable[[Any], Any] = lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def training_step(self, pair: Pair, index: int) -> Tensor:
        value = cross_entropy(self, pair)
        self.log("loss", value)
        return value

    def on_before_zero_grad(self, optimizer: Any) -> None:
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        if gradients:
            self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters())


def cross_entropy(module: Module, pair: Pair) -> Tensor:
    return F.cross_entropy(module.net(pair[0]), pair[1])


def loader() -> DataLoader[Pair]:
    return DataLoader([batch(step) for step in range(BATCHES)], batch_size=None)  # type: ignore[arg-type]


def fit(
    module: Module,
    callbacks: Sequence[Any] = (),
    epochs: int = EPOCHS,
    resume: Path | None = None,
    data: DataLoader[Pair] | None = None,
    **options: Any,
) -> Module:
    torch.manual_seed(1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"enable_checkpointing": False} | options),
    )
    trainer.fit(module, data or loader(), ckpt_path=resume)
    return module


def callback(script: dict[int, Tensor], **options: Any) -> GrowerCallback:
    return GrowerCallback(
        slots=SLOTS,
        controller=Script(script),
        loss=cross_entropy,
        evaluate=lambda module: score_of(module.net),
        network="net",
        **options,
    )


def host(model: Net) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if ".esper." not in name}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
