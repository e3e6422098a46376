"""One network grown in a plain training loop: ``python examples/one_host.py``, 20 seconds on a CPU core."""

import torch
from sklearn.datasets import load_digits

import esper

x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
net = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10)).double()
adam, loss = torch.optim.Adam(net.parameters(), lr=1e-3), torch.nn.CrossEntropyLoss()
grower = esper.Grower(net, adam, slots=["1"], controller="heuristic", num_epochs=25, first_loss=lambda: loss(net(x), y))
for _ in range(25):
    for rows in torch.randperm(1200).split(64):
        adam.zero_grad()
        loss(net(x[rows]), y[rows]).backward()
        grower.incubate(lambda rows=rows: loss(net(x[rows]), y[rows]))
        adam.step()
    print(grower.end_epoch(lambda: esper.classification_score(net, [(x[1200:1500], y[1200:1500])])))
network = grower.finish()
