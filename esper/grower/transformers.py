"""Growing in a ``Trainer`` of Hugging Face; needs ``pip install '.[transformers]'``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from esper.controllers import Controller
from esper.grower.deciding import Function
from esper.grower.grower import Grower
from esper.grower.resuming import Aside, check_saved, group_sizes, grown_keys, saved, without_joined
from esper.grower.scores import Score
from esper.grower.views import GrowthReport
from esper.runtime.files import replacing

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer import OPTIMIZER_NAME
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "esper.grower.transformers needs Transformers: pip install '.[transformers]'", name=error.name
    ) from error

Loss = Callable[[Any, Mapping[str, Any]], Tensor]

_SHARED = "num_items_in_batch"
"""Argument of a model that divides its loss by the number of targets in all batches of a step."""

FILE = "esper.pt"
"""File of the growth in a checkpoint's folder."""


class GrowerCallback(TrainerCallback):  # type: ignore[misc]
    """Lets a model grow while a ``Trainer`` of Hugging Face trains it.

    Modules are incubated right before the optimizer's step, **after** gradients are clipped: those that are not blended
    in yet do not count in ``max_grad_norm``. Of gradients that are accumulated, all batches but the last come before.

    Args:
        slots: paths of submodules, as :class:`~esper.grower.Grower` takes them.
        controller: source of decisions, as it takes it.
        evaluate: ``evaluate(model)``, the score on the validation split. It must not use the test split.
        loss: ``loss(model, inputs)``, the mean loss of a batch; by default that which the model returns for the
            arguments that the ``Trainer`` calls it with.
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
        evaluate: Callable[[Any], Score],
        loss: Loss | None = None,
        **options: Any,
    ) -> None:
        self._slots, self._controller, self._options = slots, controller, options
        self._evaluate, self._loss = evaluate, loss
        self._inputs: Mapping[str, Any] = {}
        self._batches, self._own_pass = 0, False
        self._shares, self._open = 1, False
        self._host: frozenset[str] = frozenset()
        self._sizes: list[int] = []
        self._aside: Aside | None = None
        self._hook: RemovableHandle | None = None
        self.grower: Grower | None = None
        self.report: GrowthReport | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Watch the model's training passes, the first of which builds the Grower.

        Raises:
            ValueError: growth cannot go on from the checkpoint, or another state of the model is loaded in the end.
        """
        if args.load_best_model_at_end:
            raise ValueError(
                "load_best_model_at_end=True: a model that has grown since cannot load it; set it to False"
            )
        if self.grower is not None:
            return
        model, optimizer = given["model"], _plain(given["optimizer"])
        self._host, self._sizes = frozenset(model.state_dict()), group_sizes(optimizer)
        self._shares = args.world_size if args.average_tokens_across_devices else 1
        if state.global_step > 0:
            self._aside = _aside(_checkpoint(args, state))

        def see(module: nn.Module, arguments: tuple[Any, ...], inputs: dict[str, Any]) -> None:
            if self._own_pass or not module.training or not is_grad_enabled():
                return
            self._inputs = inputs
            if self.grower is None:
                self.grower = Grower(
                    model,
                    optimizer,
                    slots=self._slots,
                    controller=self._controller,
                    num_epochs=state.num_train_epochs,
                    first_loss=lambda: self._batch_loss(model),
                    **self._options,
                )
                if self._aside is not None:
                    self._aside.restore(self.grower, model, optimizer)
                    self._aside = None
            self._open = True

        self._hook = model.register_forward_pre_hook(see, with_kwargs=True)

    def _batch_loss(self, model: nn.Module) -> Tensor:
        self._own_pass = True
        try:
            if self._loss is not None:
                return self._loss(model, self._inputs)
            output = model(**self._inputs)
        finally:
            self._own_pass = False
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if not isinstance(loss, Tensor):
            raise ValueError(
                "loss: the model returns none; give GrowerCallback(loss=...), which takes model and inputs"
            )
        return loss * self._shares if _SHARED in self._inputs else loss  # as the Trainer does: gradients are averaged

    def _incubate(self, args: TrainingArguments, given: Mapping[str, Any], scale: float) -> None:
        self._batches += 1
        if self._hook is None or self.grower is None:
            return
        if self._loss is not None or _SHARED not in self._inputs:
            scale /= _step_size(self._batches, args.gradient_accumulation_steps, given["train_dataloader"])
        self.grower.incubate(lambda: self._batch_loss(given["model"]), scale)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Incubate on a batch that is not the last of its step; under fp16 the gradients are scaled."""
        scaler = getattr(given["optimizer"], "scaler", None)
        self._incubate(args, given, 1.0 if scaler is None else scaler.get_scale())

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Incubate on the last batch of a step, whose gradients are clipped and unscaled."""
        scaler = getattr(given["optimizer"], "scaler", None)
        if scaler is not None:
            with suppress(RuntimeError):  # the Trainer has done so, unless its version neither clips nor logs a norm
                scaler.unscale_(_plain(given["optimizer"]))
        self._incubate(args, given, 1.0)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Restart the count of batches."""
        self._batches = 0

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """End an epoch of growth: validate, change stages, and decide about the next epoch."""
        if self._hook is not None and self.grower is not None:
            self.report = self.grower.end_epoch(lambda: self._evaluate(given["model"]))
            self._open = False

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Add a file with the growth to a checkpoint, whose optimizer keeps the rest."""
        folder = _checkpoint(args, state)
        file = folder / OPTIMIZER_NAME
        if self._hook is None or self.grower is None or not args.should_save or not file.exists():
            return
        model, optimizer = given["model"], _plain(given["optimizer"])
        values = model.state_dict()
        record = {
            "growth": saved(self.grower, self._open, finished=False),
            "modules": {key: values[key] for key in grown_keys(values, self._host, self._slots)},
            "optimizer": optimizer.state_dict(),
        }
        with replacing(folder / FILE) as temporary:
            torch.save(record, temporary)
        with replacing(file) as temporary:
            torch.save(without_joined(record["optimizer"], self._sizes), temporary)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Turn kept modules into ordinary layers. Later training does not grow the network."""
        if self._hook is not None:
            self._hook.remove()
        self._hook, self._inputs = None, {}
        if self.grower is not None:
            self.grower.finish()


def _plain(optimizer: Any) -> Optimizer:
    """Return an optimizer without Accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)  # type: ignore[no-any-return]


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _aside(folder: Path) -> Aside:
    file = folder / FILE
    if not file.exists():
        raise ValueError(
            f"resume_from_checkpoint: there is no {file}, which a GrowerCallback adds to checkpoints in output_dir: "
            "resume from one of these, or leave it out"
        )
    record = torch.load(file, map_location="cpu", weights_only=True)
    check_saved(f"resume_from_checkpoint={str(folder)!r}", record["growth"], "save with save_strategy='epoch'")
    return Aside(grower=record["growth"]["grower"], modules=record["modules"], optimizer=record["optimizer"])


def _step_size(batch: int, accumulated: int, loader: Any) -> int:
    """Number of batches whose gradients the step of a batch accumulates: fewer in the last step of an epoch.

    Args:
        batch: its number in the epoch, from 1.
        accumulated: number of batches of other steps.
        loader: source of batches, which may know how many there are.
    """
    begin = (batch - 1) // accumulated * accumulated
    try:
        return min(accumulated, len(loader) - begin)
    except TypeError:  # a stream
        return accumulated
