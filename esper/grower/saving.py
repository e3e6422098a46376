"""Header of a saved Grower, and the check that it fits the one that loads it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from torch import nn

from esper.grower.modules import Site
from esper.runtime.state import State

FORMAT = "esper-grower"
VERSION = 1


def fingerprint(model: nn.Module) -> str:
    """Hash of names and shapes of a model's parameters."""
    text = ";".join(f"{name} {list(parameter.shape)}" for name, parameter in model.named_parameters())
    return blake2b(text.encode(), digest_size=8).hexdigest()


def digest(model: nn.Module) -> str:
    """Hash of the values of a model's parameters."""
    hashed = blake2b(digest_size=8)
    for parameter in model.parameters():
        hashed.update(parameter.detach().cpu().numpy().tobytes())
    return hashed.hexdigest()


def header(
    slots: Sequence[str], sites: Sequence[Site], model: str, num_epochs: int, controller: str, policy: str | None
) -> State:
    """Describe what a saved state of a grower fits, so that one of another model or other slots can be refused.

    Args:
        slots: paths.
        sites: requirements of their places.
        model: fingerprint of the model before growth.
        num_epochs: total number of epochs.
        controller: kind of the source of decisions.
        policy: digest of its policy; ``None`` if it has none.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "slots": list(slots),
        "sites": [[site.family, site.channels] for site in sites],
        "model": model,
        "num_epochs": num_epochs,
        "controller": controller,
        "policy": policy,
    }


def check_state(state: State, own: State) -> None:
    """Refuse a state that does not belong to this Grower, whose header is ``own``.

    Raises:
        ValueError: the state belongs to other slots, or another model, number of epochs, controller or version.
    """
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError("state: it is not of a Grower; give what state_dict() returned")
    if state["version"] != VERSION:
        raise ValueError(f"state: it has version {state['version']}, this Esper reads {VERSION}: update Esper")
    for name, what in (("slots", "other slots"), ("model", "another model"), ("sites", "another model")):
        if state[name] != own[name]:
            raise ValueError(f"state: it is of {what} ({state[name]}), this Grower has {own[name]}: build it as then")
    for name in ("num_epochs", "controller"):
        if state[name] != own[name]:
            raise ValueError(f"state: it is of {name}={state[name]!r}, this Grower has {own[name]!r}: use the same")
    if state.get("policy") not in (None, own["policy"]):
        raise ValueError("state: it is of another trained controller than this Grower has: use the same checkpoint")
