"""What ``print`` shows of an engine."""

from __future__ import annotations

import pytest
import torch
from nets import sparse
from torch import nn

import cigl
from cigl.runtime.program import library


def test_layers_with_their_zeros_and_what_runs_sparse():
    model = sparse(nn.Sequential(nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 10)), 0.9)
    with torch.no_grad():
        model[2].weight.fill_(1.0)
    fast = cigl.sparse_inference(model)
    first, header, one, two = str(fast).splitlines()
    zeros = 1 - (int(model[0].weight.count_nonzero()) + 3000) / 123_000
    assert first.startswith(f"SparseInference: 2 layers, {100 * zeros:.1f} % of 123,000 weights are zero, ")
    assert header.split() == ["layer", "weight", "zeros", "runs", "sparse", "ms", "dense", "ms"]
    assert "decided by the first call" in one
    fast(torch.ones(8, 400))
    first, header, one, two = str(fast).splitlines()
    assert first.endswith("inputs of 8x400")
    plan = {row["unit"]: row for row in fast.plan()["shapes"][0]["units"]}
    assert one.split()[:2] == ["0", "300x400"]
    assert one.split()[4] == plan["0"]["runs"]
    assert two.split()[:5] == ["2", "10x300", "0.0", "%", plan["2"]["runs"]]
    if library.available():
        assert f"{plan['0']['sparse_ms']:.3g}" in one


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = sparse(nn.Linear(64, 32), 0.9)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


@pytest.mark.filterwarnings("ignore:.*can't be traced")
def test_layers_of_a_model_that_torch_runs():
    fast = cigl.sparse_inference(Asking().eval())
    fast(torch.ones(4, 64))
    shown = str(fast)
    assert "can't be traced" in shown
    assert ("layer  32x64" in shown) == library.available()
    assert "SparseInference" in str(nn.Sequential(fast))
