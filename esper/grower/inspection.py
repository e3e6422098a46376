"""Checks of a user's arguments before anything grows: the model, its optimizer, the places, the first loss.

Every refusal is one line that names the argument, the value and the remedy.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.grower.compiling import eager
from esper.grower.modules import Site
from esper.grower.place import Place, put
from esper.grower.untouched import untouched
from esper.growth import GrowthRules, Incubation
from esper.growth.layouts import FAMILY_LAYOUTS, Layout
from esper.population.probes import slot_probes

_WRAPPERS = {
    "DataParallel": "use DistributedDataParallel",
    "DistributedDataParallel": "hand over the module inside of it (model.module)",
    "FullyShardedDataParallel": "grow it before it is sharded",
    "FSDPModule": "grow it before it is sharded",
    "OptimizedModule": "hand over the model that was compiled (model._orig_mod)",
}
"""Kinds of model that cannot be grown, by class name, with the remedy."""

_PARTIAL = {
    "Muon": "steps matrices only, and seed modules have vectors too",
    "SparseAdam": "steps sparse gradients only, and those of seed modules are dense",
}
"""Optimizers that cannot step every parameter, by class name, with the reason."""


def check_function(argument: str, given: object, what: str) -> None:
    """Refuse a value where a function that computes it is needed."""
    if not callable(given):
        raise TypeError(
            f"{argument}: it must be a function that computes the {what}, got a {type(given).__name__}: "
            "put 'lambda:' before it"
        )


def check_arguments(
    num_epochs: object,
    statistics_batches: object,
    incubation: str | None,
    rules: object,
    blueprints: object,
    first_loss: object,
    rent_weight: object,
) -> Incubation | None:
    """Refuse arguments of a Grower that are wrong whatever the model; return the incubation."""
    for name, value in (("num_epochs", num_epochs), ("statistics_batches", statistics_batches)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number from 1 on")
    if incubation is not None and incubation not in list(Incubation):
        raise ValueError(f"incubation={incubation!r}: choose one of {', '.join(Incubation)}")
    number = isinstance(rent_weight, int | float) and not isinstance(rent_weight, bool)
    if rent_weight is not None and not (number and 0.0 <= float(rent_weight) < math.inf):  # type: ignore[arg-type]
        raise ValueError(f"rent_weight={rent_weight!r} must be a number from 0 on: points of the score")
    if rules is not None and not isinstance(rules, GrowthRules):
        raise TypeError(f"rules: give esper.usual_rules(num_slots, ...), got a {type(rules).__name__}")
    if isinstance(blueprints, str):
        raise ValueError(f"blueprints: it must be a list of names, got {blueprints!r}")
    check_function("first_loss", first_loss, "loss")
    return None if incubation is None else Incubation(incubation)


def check_model(model: object) -> nn.Module:
    """Refuse an object that is not a module, a wrapper around a module, and a model that is being grown already."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: it must be a torch.nn.Module, got a {type(model).__name__}")
    for name, module in model.named_modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                where = f" at {name!r}" if name else ""
                raise ValueError(f"model: a {kind.__name__}{where} cannot be grown: {_WRAPPERS[kind.__name__]}")
        if isinstance(module, Place) and module.tap is not None:
            raise ValueError(f"model: a Grower already grows {name!r}: use that one, or call its finish() first")
    return model


def check_optimizer(optimizer: object, model: nn.Module) -> Optimizer:
    """Refuse an optimizer that needs a closure, cannot step seed modules, or lacks parameters of the model."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: it must be a torch.optim.Optimizer, got a {type(optimizer).__name__}")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"optimizer: {type(optimizer).__name__} evaluates the loss several times a step, which seed modules cannot "
            "follow: use one like SGD or AdamW"
        )
    for kind in type(optimizer).__mro__:
        if kind.__name__ in _PARTIAL:
            raise ValueError(f"optimizer: {kind.__name__} {_PARTIAL[kind.__name__]}: use one like SGD or AdamW")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    left = [name for name, each in model.named_parameters() if each.requires_grad and id(each) not in held]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise ValueError(
            f"optimizer: it has no group with the model's parameter {left[0]!r}{more}: add it, or freeze it with "
            "requires_grad_(False)"
        )
    if not any(id(each) in held for each in model.parameters()):
        raise ValueError("optimizer: it has none of the model's parameters: build it from model.parameters()")
    return optimizer


def check_slots(slots: object, model: nn.Module) -> tuple[str, ...]:
    """Refuse paths that name no submodule, the whole model, a submodule twice, or one inside another."""
    if isinstance(slots, str) or not isinstance(slots, Sequence) or not slots:
        raise ValueError(f"slots: it must be a list of paths of submodules, got {slots!r}")
    known = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    modules: dict[int, str] = {}
    for path in slots:
        if path == "":
            raise ValueError("slots: '' is the model itself: name submodules at which it may grow")
        if path not in known:
            near = get_close_matches(str(path), known, n=3, cutoff=0.0)
            raise ValueError(f"slots: {path!r} is no submodule of the model; the nearest are {', '.join(near)}")
        module = model.get_submodule(path)
        if id(module) in modules:
            raise ValueError(f"slots: {path!r} is named twice: leave one out")
        modules[id(module)] = path
    owners: dict[int, str] = {}
    for path in slots:
        for other in slots:
            if path.startswith(f"{other}."):
                raise ValueError(f"slots: {path!r} is inside of {other!r}: leave one out")
        for parameter in model.get_submodule(path).parameters():
            if owners.setdefault(id(parameter), path) != path:
                raise ValueError(
                    f"slots: {path!r} shares parameters with {owners[id(parameter)]!r}: leave one out, or untie them"
                )
    return tuple(slots)


def stand_in(model: nn.Module, slots: Sequence[str]) -> list[Place]:
    """Replace submodules by places that contain them."""
    places = []
    for path in slots:
        places.append(Place(model.get_submodule(path)))
        put(model, path, places[-1])
    return places


def stand_back(model: nn.Module, slots: Sequence[str], places: Sequence[Place]) -> None:
    """Replace places by the submodules that they contain."""
    for path, place in zip(slots, places, strict=True):
        put(model, path, place.inner)


def look(
    model: nn.Module, slots: Sequence[str], places: Sequence[Place], loss: Callable[[], Tensor], probes: Sequence[str]
) -> tuple[list[Site], Tensor | None]:
    """Run the first loss once, for shapes and slot probes, without lasting effect.

    Args:
        model: model with its places.
        slots: paths of the places.
        places: places in the order of ``slots``.
        loss: computes the loss in a pass through the model.
        probes: names of slot probes.

    Returns:
        Requirements of each place, and probes ``[1, S, F]`` if requested.

    Raises:
        ValueError: a place runs twice, never, out of order, without gradients, or returns no feature; the loss has no
            graph.
        TypeError: the loss is not a tensor.
    """
    ran: list[int] = []
    features: list[Tensor] = []
    learning: list[bool] = []
    with eager(), untouched(model, modes=True), _watched(places, ran, features, learning), torch.enable_grad():
        value = loss()
        if not isinstance(value, Tensor):
            raise TypeError(f"first_loss: it must return a tensor, got a {type(value).__name__}")
        _check_order(slots, ran)
        ordered = [features[ran.index(slot)] for slot in range(len(slots))]
        sites = [_site(path, model, place, x) for path, place, x in zip(slots, places, ordered, strict=True)]
        if value.numel() != 1:
            raise ValueError(f"first_loss: it must return one number, got shape {list(value.shape)}")
        if not value.requires_grad:
            raise ValueError("first_loss: the loss has no graph: compute it without torch.no_grad() and detach()")
        _check_calls(slots, places, [learning[ran.index(slot)] for slot in range(len(slots))])
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        torch.autograd.grad(value.sum(), trained, allow_unused=True)
        measured = measure(places, probes) if probes else None
    return sites, measured


@contextmanager
def _watched(places: Sequence[Place], ran: list[int], features: list[Tensor], learning: list[bool]) -> Iterator[None]:
    """Record the order in which submodules of places run, their output features, and whether with gradients."""

    def note(slot: int) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, given: object, result: object) -> None:
            ran.append(slot)
            learning.append(torch.is_grad_enabled())
            features.append(result[0] if isinstance(result, tuple) and result else result)  # type: ignore[arg-type]

        return hook

    for place in places:
        if place.tap is not None:
            place.tap.copies = True
    handles = [place.inner.register_forward_hook(note(slot)) for slot, place in enumerate(places)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for place in places:
            if place.tap is not None:
                place.tap.copies = False


def _check_order(slots: Sequence[str], ran: Sequence[int]) -> None:
    for slot, path in enumerate(slots):
        if ran.count(slot) > 1:
            raise ValueError(f"slots: {path!r} runs {ran.count(slot)} times in a pass: name one that runs once")
        if slot not in ran:
            raise ValueError(f"slots: {path!r} does not run in first_loss: leave it out")
    if list(ran) != sorted(ran):
        right = ", ".join(repr(slots[slot]) for slot in ran)
        raise ValueError(f"slots: they run in another order, name them so: [{right}]")


def _check_calls(slots: Sequence[str], places: Sequence[Place], learning: Sequence[bool]) -> None:
    """Refuse places whose submodules were called otherwise than by their names in the model, or without gradients."""
    for path, place, learns in zip(slots, places, learning, strict=True):
        if place.tap is not None and not place.tap.ran:
            raise ValueError(
                f"slots: {path!r} is called by another reference than its name, such as a list, where nothing can grow "
                "behind it: call it by its name"
            )
        if not learns:
            raise ValueError(
                f"slots: {path!r} runs without gradients, in torch.no_grad() or a reentrant checkpoint, where no module"
                " can learn: freeze parameters with requires_grad_(False), and checkpoint with use_reentrant=False"
            )


def _site(path: str, model: nn.Module, place: Place, x: object) -> Site:
    layouts = {layout.num_axes: (family, layout) for family, layout in FAMILY_LAYOUTS.items()}
    if not isinstance(x, Tensor) or x.dim() not in layouts or not x.is_floating_point():
        shown = list(x.shape) if isinstance(x, Tensor) else f"a {type(x).__name__}"
        known = ", ".join(f"{layout.value}" for _, layout in layouts.values())
        raise ValueError(f"slots: {path!r} returns {shown}, which is none of {known}: name another submodule")
    family, layout = layouts[x.dim()]
    own = (each for each in (*place.parameters(), *model.parameters()) if each.is_floating_point())
    like = next((each for each in own if each.device == x.device), torch.empty(0, dtype=x.dtype, device=x.device))
    return Site(family, x.shape[1 if layout is Layout.MAP else -1], like)


def measure(places: Sequence[Place], names: Sequence[str]) -> Tensor:
    """Compute slot probes ``[1, S, F]`` of the last training pass; NaN for places without a recorded gradient."""
    rows = []
    for place in places:
        recorded = None if place.tap is None else place.tap.read()
        if recorded is None:
            rows.append(torch.full((1, 1, len(names)), torch.nan))
            continue
        kind = torch.promote_types(recorded[0].dtype, torch.float32)
        # A vector is one token.
        x, gradient = (part.unsqueeze(1) if part.dim() == 2 else part for part in recorded)
        rows.append(slot_probes([x.to(kind).unsqueeze(0)], [gradient.to(kind).unsqueeze(0)], names).cpu())
    return torch.cat(rows, dim=1)
