"""Growth of a network in its owner's own training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.controllers import Controller
from esper.envs.lifecycle import Lifecycle
from esper.envs.observations import Observation
from esper.grower.compiling import tell
from esper.grower.deciding import Function, decider, fitting
from esper.grower.decisions import Decisions
from esper.grower.distributed import Replicas, outside_wrapper
from esper.grower.inspection import (
    check_arguments,
    check_function,
    check_model,
    check_optimizer,
    check_slots,
    look,
    measure,
    stand_back,
    stand_in,
)
from esper.grower.membership import Membership, groups_of
from esper.grower.modules import SeedModules
from esper.grower.norms import GradientNorms
from esper.grower.parameters import HostParameters
from esper.grower.reporting import changes, kept_modules, slot_views, warn_of_loss, warn_of_steps
from esper.grower.saving import check_state, fingerprint, header
from esper.grower.scores import Score
from esper.grower.statistics import RecentBatches
from esper.grower.untouched import untouched
from esper.grower.validation import validate
from esper.grower.views import GrowthReport, GrowthView, SlotView
from esper.growth import GrowthRules, Incubation, SeedReport, Stage
from esper.growth.actions import BlendAlgorithm
from esper.runtime.state import State


class Grower:
    """A network that grows while its owner trains it.

    Call :meth:`incubate` after ``backward`` in every step, :meth:`end_epoch` after every epoch and :meth:`finish` when
    done. Nothing else of the training loop changes.

    Args:
        model: changed in place: each submodule that ``slots`` names is replaced by one that holds it. Names of
            parameters and keys of the state dict stay as they are; those of a seed module begin with
            ``<path>.esper.``.
        optimizer: optimizer of the model's parameters. Parameters of seed modules join the groups of their places.
        slots: paths of the submodules behind which modules may grow, in the order in which they run. Each returns
            ``[B, C, H, W]``, ``[B, T, C]`` or ``[B, C]``, or a tuple that begins with such a feature.
        controller: source of decisions: ``"heuristic"``, ``"never"``, ``"random"``, the name of a shipped controller
            (``"digits_pays"``, for slots with maps), a run folder or checkpoint (for as many slots as it was
            trained on, or with ``policy.body=shared`` for any number), a
            :class:`~esper.controllers.base.Controller`, or a function of the :class:`~esper.grower.views.GrowthView`
            that returns a :class:`~esper.growth.actions.FactoredAction` or ``None`` to wait.
        num_epochs: total number of epochs.
        first_loss: computes the loss of a first batch. It is called once, without lasting effect.
        rules: limits and times of growth, instead of the defaults or those of a checkpoint.
        blueprints: kinds of module that may grow; all that fit when ``None``.
        incubation: training of modules before they are blended in: ``"auxiliary"``, in separate passes in
            :meth:`incubate`, or ``"straight_through"``, in the model's own pass.
        rent_weight: price of size, for a controller that observes one: the points that as many parameters as the
            network has must earn.
        statistics_batches: batches from which statistics of batch norm are taken for networks that were never trained.
        seed: seed of all random numbers.

    Raises:
        ValueError, TypeError: in one line that names the wrong argument and the remedy. The model is then unchanged.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        slots: Sequence[str],
        controller: str | Path | Controller | Function,
        num_epochs: int,
        first_loss: Callable[[], Tensor],
        rules: GrowthRules | None = None,
        blueprints: Sequence[str] | None = None,
        incubation: str | None = None,
        rent_weight: float | None = None,
        statistics_batches: int = 8,
        seed: int = 0,
    ) -> None:
        chosen = check_arguments(num_epochs, statistics_batches, incubation, rules, blueprints, first_loss, rent_weight)
        self._model = check_model(model)
        self._optimizer = check_optimizer(optimizer, model)
        self._slots = check_slots(slots, model)
        self._replicas = Replicas()
        self._decider = decider(
            controller, len(self._slots), seed=seed, rules=rules, incubation=chosen, rent_weight=rent_weight
        )
        self._decisions = Decisions(self._decider, self._slots, self._replicas.ranks)
        self._fingerprint = fingerprint(model)
        host = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._scores: list[Score] = []
        self._log: list[dict[str, Any]] = []
        self._removed: list[str] = []
        self._incubated, self._finished = False, False
        self._told, self._told_of_steps = False, False
        places = stand_in(model, self._slots)
        with ExitStack() as undo:
            undo.callback(stand_back, model, self._slots, places)
            with outside_wrapper("first_loss"):
                sites, probes = look(model, self._slots, places, first_loss, self._decider.settings.slot_probes)
            self._modules = SeedModules(
                places,
                sites,
                Membership(optimizer, groups_of(model, optimizer, places), self._replicas),
                num_host_parameters=sum(parameter.numel() for parameter in host),
                seed=self._replicas.ranks.broadcast(seed),
            )
            self._lifecycle = Lifecycle(
                self._modules,
                self._slots,
                1,
                num_epochs=num_epochs,
                rules=self._decider.rules,
                compatible=fitting(self._slots, sites, self._decider, blueprints),
                settings=self._decider.settings,
            )
            self._lifecycle.probes = None if probes is None else self._replicas.mean(probes)
            self._norms = GradientNorms(optimizer, host, self._modules.bodies)
            undo.callback(self._norms.close)
            self._batches = RecentBatches(model, statistics_batches)
            undo.callback(self._batches.close)
            self._parameters = HostParameters(model, self._batches.end_epoch)
            observation = self._lifecycle.observation()
            self._decide(observation, slot_views(self._lifecycle, observation))
            undo.pop_all()

    # ----------------------------------------------------------------------------------------------- the training loop

    def incubate(self, loss: Callable[[], Tensor], scale: float = 1.0) -> None:
        """Train the modules that are not blended in yet; call it after ``backward`` and clipping, before the
        optimizer's step.

        Each one runs in a separate pass at alpha 1 on a detached feature, with the other such modules off. Gradients
        reach its own parameters only and are added to their ``.grad``. Random generators and buffers are restored
        afterwards. ``loss`` is not called when there is no such module, under ``incubation="straight_through"``, or in
        a step in which the controller's training let them rest (``slots.incubate_every``).

        Args:
            loss: computes the loss of the present batch in a new pass through the model.
            scale: factor on the loss: that of a loss scaler (``scaler.get_scale()``) if gradients are not unscaled yet,
                or one over the number of accumulated batches.
        """
        self._check_open("incubate")
        check_function("incubate", loss, "loss")
        self._incubated = True
        if self._straight:
            return
        if self._norms.num_steps % self._decider.settings.incubate_every:
            return self._modules.rest(self._developing)
        for slot in self._developing:
            with self._batches.closed(), untouched(self._model), outside_wrapper("incubate"):
                broken = self._modules.incubate(slot, loss, scale)
            if scale <= 1.0:  # under a loss scale an overflow is not the module's fault
                self._norms.not_finite(slot, broken)

    def measure(self) -> None:
        """Measure the present gradients. Call it only where the optimizer's step is handed a closure, after
        :meth:`incubate` in it; before any other step it happens by itself.
        """
        self._check_open("measure")
        self._norms.measure()

    def end_epoch(self, evaluate: Callable[[], Score]) -> GrowthReport:
        """Validate, measure contributions of modules, update stages, and decide about the next epoch.

        Args:
            evaluate: computes the score of the model on the **validation** split, such as
                ``lambda: esper.classification_score(model, val_loader)``. It must not use the test split, because the
                score decides which modules are kept. It is called once for the network as it is and once for each
                configuration to compare with it.

        Raises:
            ValueError, TypeError: it does not return a score. The epoch is then still open.
            RuntimeError: all epochs are over, or modules that had to be incubated were not.
        """
        self._check_open("end_epoch")
        check_function("evaluate", evaluate, "score")
        lifecycle = self._lifecycle
        epoch = int(lifecycle.history.epoch) + 1
        if epoch > lifecycle.num_epochs:
            raise RuntimeError(
                f"end_epoch: all num_epochs={lifecycle.num_epochs} epochs are over: call finish(), or ask for more"
            )
        waiting = [] if self._straight or self._incubated else self._developing
        if waiting:
            raise RuntimeError(
                f"end_epoch: incubate() was not called in epoch {epoch}, and {self._slots[waiting[0]]!r} has a module "
                "that learns nothing without it: call it after backward in every step"
            )
        questions = lifecycle.questions(torch.tensor([epoch == lifecycle.num_epochs]))
        score, valuation = validate(
            self._model, self._modules, self._slots, lifecycle.state, questions, self._batches, evaluate, self._replicas
        )
        host_norm, module_norm = map(self._replicas.mean, self._norms.read(len(self._slots)))
        self._told_of_steps = warn_of_steps(epoch, host_norm, self._told_of_steps)
        lifecycle.record(valuation, module_norm=module_norm, host_norm=host_norm, probes=self._probes())
        moved = changes(lifecycle.transition(), self._slots)
        warn_of_loss(epoch, score)
        lifecycle.end_epoch(valuation.scores.loss, valuation.scores.accuracy.nan_to_num(nan=0.0))
        self._scores.append(score)
        self._batches.end_epoch()
        self._incubated = False
        observation = lifecycle.observation()
        views = slot_views(lifecycle, observation)
        self._log[-1] |= {"epoch": epoch, "score": asdict(score), "changes": list(moved)}
        if epoch < lifecycle.num_epochs:
            self._decide(observation, views)
        else:
            self._decisions.end()
        return GrowthReport(
            epoch=epoch,
            num_epochs=lifecycle.num_epochs,
            score=score,
            slots=views,
            changes=moved,
            action=self._decisions.action,
            reason=self._decisions.reason,
            added_parameters=int(self._modules.num_parameters().sum()),
        )

    def finish(self) -> nn.Module:
        """Remove modules that are not FOSSILIZED, make the others ordinary layers of the network, and detach from model
        and optimizer.

        Returns:
            The model, in which kept modules are ordinary layers whose parameters remain in the optimizer. Further
            calls return the same; of the other methods, only :meth:`sheet` can be called then. Another Grower can grow
            the model further.
        """
        if self._finished:
            return self._model
        stages = self._lifecycle.state.stage[0].tolist()
        for slot, (path, place) in enumerate(zip(self._slots, self._modules.places, strict=True)):
            if place.seed_module is not None and stages[slot] != Stage.FOSSILIZED:
                self._removed.append(path)
                self._modules.remove(0, slot)
            place.tap = None
            if place.seed_module is not None:
                self._modules.settle(slot)
            elif not place.hooked:
                stand_back(self._model, [path], [place])
        self._norms.close()
        self._batches.close()
        self._finished = True
        return self._model

    # -------------------------------------------------------------------------------------------------- what is known

    def view(self) -> GrowthView:
        """Return the view that decisions are based on."""
        self._check_open("view")
        return self._view(slot_views(self._lifecycle, self._lifecycle.observation()))

    def _view(self, slots: Mapping[str, SlotView]) -> GrowthView:
        lifecycle, history = self._lifecycle, self._lifecycle.history
        return GrowthView(
            epoch=int(history.epoch),
            num_epochs=lifecycle.num_epochs,
            slots=slots,
            scores=tuple(self._scores),
            plateau_epochs=int(history.plateau_epochs),
            host_parameters=int(self._modules.num_host_parameters()),
            added_parameters=int(self._modules.num_parameters().sum()),
            last_action=self._decisions.action,
            last_success=bool(history.last_success),
            last_reason=self._decisions.reason,
        )

    def reports(self) -> dict[str, SeedReport]:
        """Return records of all slots, by path."""
        self._check_open("reports")
        return self._lifecycle.reports(0)

    def sheet(self) -> dict[str, Any]:
        """Summarise the growth in plain JSON types; after :meth:`finish` too."""
        settings = self._decider.settings
        return {
            "controller": self._decider.name,
            "slots": list(self._slots),
            "num_epochs": self._lifecycle.num_epochs,
            "rules": asdict(self._decider.rules),
            "incubation": str(settings.incubation),
            "rent_weight": settings.rent_weight if settings.price else None,
            "host_parameters": int(self._modules.num_host_parameters()),
            "kept": kept_modules(self._lifecycle.reports(0)),
            "removed": list(self._removed),
            "illegal_actions": self._decisions.illegal,
            "epochs": [dict(entry) for entry in self._log],
        }

    def state_dict(self) -> State:
        """Return the state except parameters and buffers, which are in the model's own state dict; tensors and plain
        types.

        To resume: build model, optimizer and Grower as before, load this, then the states of model and optimizer.
        """
        self._check_open("state_dict")
        return {
            **self._header(),
            "lifecycle": self._lifecycle.state_dict(),
            "births": self._modules.births,
            "joined": [list(each) for each in self._modules.membership.order],
            "decisions": self._decisions.state_dict(),
            "norms": self._norms.state_dict(),
            "scores": [asdict(score) for score in self._scores],
            "log": [dict(entry) for entry in self._log],
            "incubated": self._incubated,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state, before those of model and optimizer are loaded, which then have the same parameters.

        Raises:
            ValueError: it belongs to another model, slots, controller, number of epochs or version; nothing changes.
        """
        self._check_open("load_state_dict")
        check_state(state, self._header())
        lifecycle, modules = self._lifecycle, self._modules
        for slot, place in enumerate(modules.places):
            if place.seed_module is not None:
                modules.remove(0, slot)
        lifecycle.load_state_dict(state["lifecycle"])
        for slot, blueprint in enumerate(lifecycle.state.blueprint[0].tolist()):
            if blueprint >= 0:
                modules.renew(slot, blueprint, BlendAlgorithm(int(lifecycle.state.algorithm[0, slot])))
        for slot, name in state["joined"]:
            modules.membership.join(slot, name, dict(modules.blended(slot).named_parameters())[name])
        modules.births = state["births"]
        self._decisions.load_state_dict(state["decisions"])
        self._norms.load_state_dict(state["norms"])
        self._scores = [Score(**score) for score in state["scores"]]
        self._log = [dict(entry) for entry in state["log"]]
        self._incubated = state["incubated"]
        self._set_up()

    # --------------------------------------------------------------------------------------------------------- inside

    def _check_open(self, method: str) -> None:
        if self._finished:
            raise RuntimeError(
                f"{method}: finish() was called: train the model on without this Grower, and read sheet() for what has "
                "grown, or build another Grower"
            )
        self._parameters.check(method)

    def _header(self) -> State:
        num_epochs, decider = self._lifecycle.num_epochs, self._decider
        return header(self._slots, self._modules.sites, self._fingerprint, num_epochs, decider.kind, decider.policy)

    @property
    def _straight(self) -> bool:
        return self._decider.settings.incubation is Incubation.straight_through

    def _decide(self, observation: Observation, slots: Mapping[str, SlotView]) -> None:
        """Request the decision for the next epoch from the present observation and views, and apply it."""
        self._decisions.make(self._lifecycle, observation, self._view(slots))
        assert self._decisions.action is not None
        said = {name: value for name, value in asdict(self._decisions.action).items() if value is not None}
        self._log.append({"action": said, "reason": self._decisions.reason})
        self._lifecycle.tick()
        self._set_up()

    def _set_up(self) -> None:
        self._developing = self._lifecycle.state.developing[0].nonzero().flatten().tolist()
        before = self._modules.flows
        self._modules.set_up(
            self._lifecycle.state,
            straight=self._straight,
            isolate_until_fossilized=self._decider.settings.isolate_until_fossilized,
        )
        if self._modules.compiled and self._modules.flows != before and not self._told:
            self._told = True
            tell(len(self._slots))

    def _probes(self) -> Tensor | None:
        """Slot probes of the last step, ``[1, S, F]``; ``None`` if this epoch measures none."""
        names = self._lifecycle.probes_due()
        return self._replicas.mean(measure(self._modules.places, names)) if names else None
