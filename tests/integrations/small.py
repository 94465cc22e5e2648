"""What the tests of trainers share: small data, small models, and the same training in a plain loop."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import cigl

ROWS = 48


class Rows(Dataset):
    """Points in three classes, as the batches of ``Trainer`` or of Lightning want them."""

    def __init__(self, as_dict=False, rows=ROWS):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(rows, 10, generator=generator)
        self.y = (self.x[:, :3] + 0.1 * torch.randn(rows, 3, generator=generator)).argmax(1)
        self.as_dict = as_dict

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        if self.as_dict:
            return {"x": self.x[place], "labels": self.y[place]}
        return self.x[place], self.y[place]


def network(norm=False):
    torch.manual_seed(3)
    layers = [nn.Linear(10, 24), *([nn.BatchNorm1d(24)] if norm else []), nn.ReLU(), nn.Linear(24, 24), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(24, 3))


def density(model):
    """The share of non-zeros among the matrices; a weight that was just grown is zero too."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    return sum(int((p != 0).sum()) for p in matrices) / sum(p.numel() for p in matrices)


class Net(nn.Module):
    """A plain model whose parameters have the names that they have in the trainers' models: Z depends on them."""

    def __init__(self, norm=False):
        super().__init__()
        self.net = network(norm)

    def forward(self, x):
        return self.net(x)


def plain_loop(passes, batch, accumulate=1, clip=None, norm=False, **options):
    """The reference: the same training in a loop of one's own. Returns the final model and the sparsifier."""
    net = Net(norm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    data = Rows()
    batches = [(data.x[i : i + batch], data.y[i : i + batch]) for i in range(0, ROWS, batch)]
    sparse = cigl.attach(net, optimizer, **options)
    for _ in range(passes):
        for place in range(0, len(batches), accumulate):
            for x, y in batches[place : place + accumulate]:
                (F.cross_entropy(net(x), y) / accumulate).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return sparse.finalize(batches if norm else None), sparse


def same(one, other):
    """Equal bit by bit: state dictionaries, or dictionaries of masks."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Wrong(Rows):
    """Held-out examples whose labels nobody can know, so that whoever is sure of them is over-confident."""

    def __init__(self, as_dict=False):
        super().__init__(as_dict, rows=4 * ROWS)
        self.y = torch.arange(len(self.y)) % 3


EAGER = cigl.method("cigl-auto", patience=0, gain=20.0, update_every=3)
