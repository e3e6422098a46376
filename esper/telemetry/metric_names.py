"""Names of the metrics that other code reads, as in ``metrics.jsonl``."""

from __future__ import annotations

RETURN = "charts/episodic_return"
RETURN_SEM = "charts/episodic_return_sem"
VAL = "charts/final_val_accuracy"
VAL_SEM = "charts/final_val_accuracy_sem"
NEVER = "charts/never_val_accuracy"
GAIN_SEM = "charts/val_accuracy_gain_sem"
SPS = "charts/SPS"
ADDED = "charts/added_parameters"
FOSSILIZED = "charts/num_fossilized"
CHOICE_SHARE = "ops/choice_share/"
STAGE_SHARE = "stages/"
