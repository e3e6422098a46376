"""Host networks, in one registry.

To add a kind of host, write a module and add one line to :data:`HOSTS` in ``registry.py``, or call
:func:`register_host` from your own module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.hosts.faults import check_fault, parse_faults
from esper.runtime.lazy import names_of

if TYPE_CHECKING:
    from esper.hosts.base import Place, SegmentedHost
    from esper.hosts.cnn import CNNHost
    from esper.hosts.custom import CustomHost
    from esper.hosts.init import reset_parameters
    from esper.hosts.masks import fault_mask
    from esper.hosts.registry import HOSTS, build_host, register_host
    from esper.hosts.transformer import TransformerHost
else:
    __getattr__ = names_of(
        __name__,
        {
            "base": (
                "Place",
                "SegmentedHost",
            ),
            "cnn": ("CNNHost",),
            "custom": ("CustomHost",),
            "init": ("reset_parameters",),
            "masks": ("fault_mask",),
            "registry": (
                "HOSTS",
                "build_host",
                "register_host",
            ),
            "transformer": ("TransformerHost",),
        },
    )

__all__ = [
    "HOSTS",
    "CNNHost",
    "CustomHost",
    "Place",
    "SegmentedHost",
    "TransformerHost",
    "build_host",
    "check_fault",
    "fault_mask",
    "parse_faults",
    "register_host",
    "reset_parameters",
]
