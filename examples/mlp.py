"""A small MLP for rows of 64 numbers grows: ``python -m examples.mlp``.

With one random seed: 90.7 % of the test digits without growing. The heuristic kept two small modules, and growing did
not pay (+0.3 points for 120 parameters). The schedule's two MLPs paid (+1.5 points for 360 parameters).
"""

import torch
from torch import nn
from torch.nn import functional as F

import esper
from esper.blueprints import blueprint_ids
from esper.controllers import Controller, PlannedGermination, Schedule
from esper.tasks import load_task

EPOCHS, BATCH, WIDTH = 30, 50, 6
PLAN = [PlannedGermination(0, slot, blueprint_ids().index("mlp_small")) for slot in range(2)]


def grown(controller: str | Controller) -> tuple[float, dict]:
    torch.manual_seed(0)
    (x, y), val, test = ((part.inputs.flatten(1), part.targets) for part in load_task("digits").splits().values())
    hidden = (nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU()) for width in (x.shape[1], WIDTH))
    model = nn.Sequential(*hidden, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = {"first_loss": lambda: F.cross_entropy(model(x[:BATCH]), y[:BATCH])}
    grower = esper.Grower(model, optimizer, slots=["0", "1"], controller=controller, num_epochs=EPOCHS, **first)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            grower.incubate(lambda rows=rows: F.cross_entropy(model(x[rows]), y[rows]))
            optimizer.step()
        grower.end_epoch(lambda: esper.classification_score(model, [val]))
    return esper.classification_score(grower.finish(), [test]).accuracy, grower.sheet()["kept"]


if __name__ == "__main__":
    found = {"never": grown("never"), "heuristic": grown("heuristic"), "schedule": grown(Schedule([PLAN]))}
    for name, (accuracy, kept) in found.items():
        gain, added = 100 * (accuracy - found["never"][0]), sum(module["parameters"] for module in kept.values())
        modules = ", ".join(f"{module['blueprint']} behind {path}" for path, module in kept.items()) or "nothing"
        paid = "the base" if name == "never" else f"growing {'paid' if kept and gain >= 0.5 else 'did not pay'}"
        print(f"{name}: {100 * accuracy:.1f} % of test digits ({gain:+z.1f}), kept {modules}, {added} weights: {paid}")
