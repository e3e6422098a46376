"""Networks taken away: exported to forms that need no Esper, and compared with what was trained."""

from esper.exporting.network import export_network

__all__ = ["export_network"]
