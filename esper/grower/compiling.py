"""Growing a network that ``torch.compile`` has compiled.

Only training passes run compiled code: measurements and incubation use each configuration a few times, and comparisons
need the same arithmetic on both sides.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from types import CodeType
from typing import Any

import torch

_DYNAMO = "torch._dynamo"


def eager() -> AbstractContextManager[Any]:
    """Run compiled functions without compilation within the block."""
    return torch.compiler.set_stance("force_eager") if _DYNAMO in sys.modules else nullcontext()


def at_limit(code: CodeType) -> bool:
    """Return whether a function has as many compiled versions as it may have."""
    from torch._dynamo import config
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    return len(_debug_get_cache_entry_list(code)) >= config.recompile_limit


def limit_error() -> RuntimeError:
    """Return the error for a place that the limit of recompilations keeps from being compiled."""
    from torch._dynamo import config

    return RuntimeError(
        f"torch.compile: growth needs more compiled versions of a place than torch._dynamo.config.recompile_limit="
        f"{config.recompile_limit} allows: set it higher before the training, or do not compile the model"
    )


def tell(num_places: int) -> None:
    """Warn that growth leads to compilation."""
    from torch._dynamo import config

    warnings.warn(
        "torch.compile: modules that are blended in or removed have the network compiled again, changes of alpha do "
        f"not; torch._dynamo.config.recompile_limit={config.recompile_limit} is for all {num_places} places together",
        stacklevel=5,
    )
