"""A tiny GPT for a textbook, byte by byte, grows: ``python -m examples.gpt``.

Growing did not pay with one random seed: the heuristic removed both modules that it tried, and the schedule's two, with
8,480 parameters, gained nothing; 38.4 % of the test bytes are right in each case, after this short training.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import esper
from esper.blueprints import blueprint_ids
from esper.controllers import Controller, PlannedGermination, Schedule
from esper.tasks import load_task

EPOCHS, STEPS, BATCH, LENGTH, WIDTH = 16, 24, 8, 32, 32
SLOTS, KINDS = ("blocks.0", "blocks.1"), ("flex_attention", "mlp_small")
PLAN = [PlannedGermination(2 * slot, slot, blueprint_ids().index(kind)) for slot, kind in enumerate(KINDS)]


class GPT(nn.Module):
    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(num_tokens, WIDTH), nn.Embedding(LENGTH, WIDTH)
        block = {"dim_feedforward": WIDTH, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, **block) for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, num_tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        x, causal = self.tokens(tokens) + self.positions.weight, torch.ones(LENGTH, LENGTH).triu(1).bool()
        for block in self.blocks:
            x = block(x, src_mask=causal)
        return self.head(x)


def grown(controller: str | Controller) -> tuple[float, dict]:
    torch.manual_seed(0)
    data = load_task("textbook", context_length=LENGTH, num_val=256)
    (x, y), val, test = ((split.inputs.long(), split.targets.long()) for split in data.splits().values())
    model = GPT(data.num_classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    first = {"first_loss": lambda: F.cross_entropy(model(x[:BATCH]).mT, y[:BATCH])}
    grower = esper.Grower(model, optimizer, slots=SLOTS, controller=controller, num_epochs=EPOCHS, **first)
    for _ in range(EPOCHS):
        for rows in torch.randint(len(x), (STEPS, BATCH)):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]).mT, y[rows]).backward()
            grower.incubate(lambda rows=rows: F.cross_entropy(model(x[rows]).mT, y[rows]))
            optimizer.step()
        grower.end_epoch(lambda: esper.language_score(model, [val]))
    return esper.language_score(grower.finish(), [test]).accuracy, grower.sheet()["kept"]


if __name__ == "__main__":
    found = {"never": grown("never"), "heuristic": grown("heuristic"), "schedule": grown(Schedule([PLAN]))}
    for name, (accuracy, kept) in found.items():
        gain, added = 100 * (accuracy - found["never"][0]), sum(module["parameters"] for module in kept.values())
        modules = ", ".join(f"{module['blueprint']} behind {path}" for path, module in kept.items()) or "nothing"
        paid = "the base" if name == "never" else f"growing {'paid' if kept and gain >= 0.5 else 'did not pay'}"
        print(f"{name}: {100 * accuracy:.1f} % of test bytes ({gain:+z.1f}), kept {modules}, {added} weights: {paid}")
