"""Growth of a user's own network in the user's own training loop."""

from esper.grower.deciding import usual_rules
from esper.grower.grower import Grower
from esper.grower.scores import Score, classification_score, language_score
from esper.grower.views import GrowthReport, GrowthView, SlotView

__all__ = [
    "Grower",
    "GrowthReport",
    "GrowthView",
    "Score",
    "SlotView",
    "classification_score",
    "language_score",
    "usual_rules",
]
