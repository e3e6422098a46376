"""Growing in a Lightning ``Trainer``; needs ``pip install '.[lightning]'``.

Lightning hands the optimizer a closure that computes the gradients, so that hooks before the optimizer's step come too
early: the callback incubates and measures in Lightning's own hooks after ``backward``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from esper.controllers import Controller
from esper.grower.deciding import Function
from esper.grower.grower import Grower
from esper.grower.resuming import Aside, check_saved, group_sizes, grown_keys, saved, without_joined
from esper.grower.scores import Score
from esper.grower.views import GrowthReport
from esper.runtime.state import State

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "esper.grower.lightning needs Lightning: pip install '.[lightning]'", name=error.name
        ) from error


class GrowerCallback(Callback):  # type: ignore[misc]
    """Lets a Lightning module grow while a ``Trainer`` trains it.

    Modules are incubated after ``backward`` and **before** gradients are clipped, because Lightning has no hook after
    that: under ``gradient_clip_val`` by norm, the gradients of modules that are not blended in yet count.

    Args:
        slots: paths of submodules, relative to ``network``, as :class:`~esper.grower.Grower` takes them.
        controller: source of decisions, as it takes it.
        loss: ``loss(module, batch)``, the loss of a training batch, without logging anything. It is called apart from
            ``training_step``.
        evaluate: ``evaluate(module)``, the score on the validation split. It must not use the test split.
        network: path of the submodule that grows; the Lightning module itself by default.
        options: further arguments of the Grower, such as ``rules``, ``incubation`` or ``seed``.

    Attributes:
        grower: the Grower; ``None`` before the first training batch.
        report: report of the last epoch; ``None`` before its end.
    """

    def __init__(
        self,
        *,
        slots: Sequence[str],
        controller: str | Path | Controller | Function,
        loss: Callable[[Any, Any], Tensor],
        evaluate: Callable[[Any], Score],
        network: str = "",
        **options: Any,
    ) -> None:
        self._slots, self._controller, self._network = slots, controller, network
        self._loss, self._evaluate, self._options = loss, evaluate, options
        self._batch: Any = None
        self._finished, self._open = False, False
        self._state: State | None = None
        self._aside: Aside | None = None
        self._parts: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = []
        self.grower: Grower | None = None
        self.report: GrowthReport | None = None

    def state_dict(self) -> State:
        """Return the Grower's state for a checkpoint of the trainer."""
        return saved(self.grower, self._open, self._finished)

    def load_state_dict(self, state_dict: State) -> None:
        """Keep a state until there is a Grower."""
        self._state = state_dict

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set parameters of seed modules aside, should a checkpoint with some be loaded."""
        if stage != "fit" or self.grower is not None:
            return
        prefix = f"{self._network}." if self._network else ""

        def take(module: nn.Module, state: dict[str, Tensor], *given: Any) -> None:
            keys = grown_keys(list(state), pl_module.state_dict(), self._slots, prefix)
            self._parts = {key.removeprefix(prefix): state.pop(key) for key in keys}

        self._hooks = [pl_module.register_load_state_dict_pre_hook(take)]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse modules and trainers with which the callback cannot work, and prepare to resume.

        Raises:
            ValueError: manual optimization, a checkpoint from which growth cannot go on, or no number of epochs.
        """
        self._unhook()
        if not pl_module.automatic_optimization:
            raise ValueError(
                "automatic_optimization=False: the callback cannot follow; call a Grower in training_step yourself"
            )
        if trainer.max_epochs is None or trainer.max_epochs < 1:
            raise ValueError(f"max_epochs={trainer.max_epochs}: a Grower needs a number of epochs from 1 on")
        if trainer.ckpt_path is None or self.grower is not None:
            return
        remedy = "save with ModelCheckpoint(save_on_train_epoch_end=True)"
        check_saved(f"ckpt_path={str(trainer.ckpt_path)!r}", self._state, remedy)
        assert self._state is not None
        if self._state["grower"] is not None:
            aside = self._aside = Aside(grower=self._state["grower"], modules=self._parts)

            def take(optimizer: Optimizer, state: State) -> State:
                aside.optimizer = state
                return without_joined(state, group_sizes(optimizer))

            self._hooks = [each.register_load_state_dict_pre_hook(take) for each in trainer.optimizers]

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Remember the batch; build the Grower on the first one.

        Raises:
            ValueError, TypeError: something cannot be grown.
        """
        self._batch, self._open = batch, True
        if self.grower is None:
            self._unhook()
            self.grower = self._build(trainer, pl_module)
            if self._aside is not None:
                self._aside.restore(self.grower, pl_module.get_submodule(self._network), trainer.optimizers[0])
            self._aside, self._state, self._parts = None, None, {}

    def _build(self, trainer: Trainer, pl_module: LightningModule) -> Grower:
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"optimizer: the callback needs one, configure_optimizers returns {len(trainer.optimizers)}"
            )
        model: nn.Module = pl_module.get_submodule(self._network)
        return Grower(
            model,
            trainer.optimizers[0],
            slots=self._slots,
            controller=self._controller,
            num_epochs=trainer.max_epochs,
            first_loss=lambda: self._batch_loss(trainer, pl_module),
            **self._options,
        )

    def _batch_loss(self, trainer: Trainer, pl_module: LightningModule) -> Tensor:
        with trainer.precision_plugin.train_step_context():
            return self._loss(pl_module, self._batch)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Incubate on every batch, including those whose gradients are accumulated."""
        if self.grower is None or self._finished:
            return
        scaler = _scaler(trainer)
        scale = (1.0 if scaler is None else scaler.get_scale()) / trainer.accumulate_grad_batches
        self.grower.incubate(lambda: self._batch_loss(trainer, pl_module), scale)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Measure gradients; under a gradient scaler, whose steps have no closure, the Grower does so itself."""
        if self.grower is not None and not self._finished and _scaler(trainer) is None:
            self.grower.measure()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End an epoch of growth: validate, change stages, and decide about the next epoch."""

        def evaluate() -> Score:
            with trainer.precision_plugin.val_step_context():
                return self._evaluate(pl_module)

        if self.grower is not None and not self._finished:
            self.report = self.grower.end_epoch(evaluate)
            self._open = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Turn kept modules into ordinary layers. Later fits train the network without growing it."""
        self._batch = None
        if self.grower is not None:
            self._finished = True
            self.grower.finish()


def _scaler(trainer: Trainer) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)
