"""Algorithm 1 in plain tensors, written from the paper's pseudo-code and the design's order of a step.

The reference knows nothing of the library: it is given the initial M, the Z of each step and SET's draws,
and computes the network's gradient by hand.
"""

import copy
import math

import numpy as np
import pytest
import torch
from loops import attach, batch, sgd

import cigl
from cigl.runtime.program import library

STEPS, EPOCH, EVERY, RATE = 200, 20, 50, 0.05


def two_layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(12, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4))


class Reference:
    """Plain SGD on a two-layer network with masks, in float64 numpy."""

    def __init__(self, model, masks, growth, expectation=None):
        self.W = {k: v.detach().double().numpy().copy() for k, v in model.state_dict().items()}
        self.M = {k: v.numpy().copy() for k, v in masks.items()}
        for name, mask in self.M.items():
            self.W[name] = self.W[name] * mask
        self.growth = growth
        self.expectation = expectation  # of Z at step t, where that is averaged instead of Z
        self.mean, self.models = None, 0

    def gradient(self, effective, x, y):
        x = x.double().numpy()
        hidden = x @ effective["0.weight"].T + effective["0.bias"]
        active = np.maximum(hidden, 0)
        logits = active @ effective["2.weight"].T + effective["2.bias"]
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y.numpy()] -= 1
        p /= len(y)
        back = (p @ effective["2.weight"]) * (hidden > 0)
        return {"2.weight": p.T @ active, "2.bias": p.sum(0), "0.weight": back.T @ x, "0.bias": back.sum(0)}

    def step(self, t, Z, draws, x, y):
        effective = {k: w * self.M[k] * Z[k] if k in self.M else w for k, w in self.W.items()}
        dense = self.gradient(effective, x, y)
        for name in self.W:
            mask = self.M[name] * Z[name] if name in self.M else 1.0
            self.W[name] = self.W[name] - RATE * mask * dense[name]
        if t % EPOCH == 0 and t > 0.8 * STEPS:
            kept = Z if self.expectation is None else {k: self.expectation(k, t) for k in self.M}
            values = {k: w * self.M[k] * kept[k] if k in self.M else w for k, w in self.W.items()}
            if self.mean is None:
                self.mean, self.models = values, 1
            else:
                n = self.models
                self.mean = {k: (self.mean[k] * n + values[k]) / (n + 1) for k in values}
                self.models += 1
        end = math.floor(0.75 * STEPS)
        if t % EVERY == 0 and t <= end:
            fraction = 0.3 / 2 * (1 + math.cos(math.pi * t / end))
            for name in self.M:
                self.update(name, fraction, np.abs(dense[name]) if self.growth == "gradient" else draws[name])

    def update(self, name, fraction, score):
        shape, mask = self.M[name].shape, self.M[name].ravel()
        weights = (self.W[name] * self.M[name]).ravel()
        active = [i for i in range(mask.size) if mask[i]]
        k = min(math.floor(fraction * len(active)), mask.size - len(active))
        by_size = sorted(active, key=lambda i: (-abs(weights[i]), i))
        kept = set(by_size[: len(active) - k])
        score = score.ravel()
        candidates = sorted((i for i in range(mask.size) if i not in kept), key=lambda i: (-score[i], i))
        new = kept | set(candidates[:k])
        for i in range(mask.size):
            if i not in new or not mask[i]:
                weights[i] = 0.0
        self.W[name] = weights.reshape(shape)
        self.M[name] = np.array([i in new for i in range(mask.size)]).reshape(shape)


@pytest.mark.parametrize("kernels", ["masked", "sparse"])
@pytest.mark.parametrize("method", ["cigl", "cigl-no-rm", "rigl", "set", "rigl-wdp", "static"])
def test_matches_algorithm_1_over_200_steps(method, kernels):
    if kernels == "sparse" and not library.available():
        pytest.skip(library.reason())
    model = two_layers()
    options = {"kernels": kernels} | ({} if method == "static" else {"update_every": EVERY})
    close = {"atol": 1e-6 if kernels == "masked" else 1e-5}
    initial = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = sgd(model, lr=RATE)
    sparse = attach(model, optimizer, method, epochs=STEPS // EPOCH, steps_per_epoch=EPOCH, sparsity=0.8, **options)
    start = two_layers()
    start.load_state_dict(initial)
    reference = Reference(start, sparse.masks, "random" if method == "set" else "gradient")
    if method == "static":
        reference.update = lambda *_: None
    moved = 0
    for t in range(1, STEPS + 1):
        x, y = batch(t)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        Z = {k: v.numpy() for k, v in (sparse.random_masks or {}).items()} or dict.fromkeys(reference.M, 1.0)
        optimizer.zero_grad()
        loss.backward()
        before = {k: v.clone() for k, v in sparse.masks.items()}
        optimizer.step()
        draws = {layer.name: layer.uniform("grow", t).numpy() for layer in sparse.layers}
        reference.step(t, Z, draws, x, y)
        moved += any(not torch.equal(before[k], sparse.masks[k]) for k in before)
        for name, mask in sparse.masks.items():
            assert np.array_equal(mask.numpy(), reference.M[name]), f"M of {name} after step {t}"
        for name, weight in model.state_dict().items():
            np.testing.assert_allclose(weight.numpy(), reference.W[name], **close, err_msg=f"{name}, step {t}")
    assert [row.kernels for row in sparse.summary().rows] == [kernels] * 2
    assert moved == (0 if method == "static" else 2)  # the third round, at t_end, drops nothing
    if cigl.method(method).average_from is not None:
        final = sparse.finalize()
        assert sparse.collection.count == reference.models == 2
        for name, weight in final.state_dict().items():
            np.testing.assert_allclose(weight.numpy(), reference.mean[name], **close, err_msg=name)


@pytest.mark.parametrize("kernels", ["masked", "sparse"])
def test_matches_algorithm_1_with_a_mask_that_rises(kernels):
    """Z is computed here too: from the numbers of each weight, and a rate per layer that rises to its bound."""
    if kernels == "sparse" and not library.available():
        pytest.skip(library.reason())
    model = two_layers()
    start = copy.deepcopy(model)
    optimizer = sgd(model, lr=RATE)
    rise = cigl.rise(0.4, begin=0.1, until=0.95)
    method = cigl.method("cigl-rise", random_mask=rise, fan_in_factor=0.4, snapshots_per_epoch=1)
    options = {"epochs": STEPS // EPOCH, "steps_per_epoch": EPOCH, "sparsity": 0.5, "update_every": EVERY}
    sparse = attach(model, optimizer, method, kernels=kernels, **options)
    fan_in = {name: mask.sum(1).float().mean().item() for name, mask in sparse.masks.items()}

    def rate(name, t):
        return min(max((t - 20) / (190 - 20), 0), 1) * min(0.4, bound[name])

    bound = {name: 0.4 * (n - 3) / n**0.5 / 2 for name, n in fan_in.items()}
    assert 0.1 < bound["0.weight"] < 0.3 < 0.4 < bound["2.weight"]  # one bound is at work, the other is not
    reference = Reference(start, sparse.masks, "gradient", expectation=lambda name, t: 1 - rate(name, t))
    for t in range(1, STEPS + 1):
        x, y = batch(t)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        Z = {
            layer.name: (layer.uniform("z", t).numpy() >= rate(layer.name, t)) | ~reference.M[layer.name]
            for layer in sparse.layers
        }
        reference.step(t, Z, {}, x, y)
        for name, weight in model.state_dict().items():
            np.testing.assert_allclose(weight.numpy(), reference.W[name], atol=1e-5, err_msg=f"{name}, step {t}")
    assert sparse.collection.count == reference.models == 2
    for name, weight in sparse.finalize().state_dict().items():
        np.testing.assert_allclose(weight.numpy(), reference.mean[name], atol=1e-5, err_msg=name)


def test_random_masks_differ_between_steps_and_drop_the_asked_share():
    model = two_layers()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", random_mask=0.25, sparsity=0.5, epochs=50)
    seen, off, active = set(), 0, 0
    for t in range(1, 61):
        x, y = batch(t)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        Z = sparse.random_masks
        seen.add(b"".join(z.numpy().tobytes() for z in Z.values()))
        off += sum(int((~z).sum()) for z in Z.values())
        active += sum(int(m.sum()) for m in sparse.masks.values())
        assert all((~z & ~sparse.masks[name]).sum() == 0 for name, z in Z.items())  # over active weights only
        optimizer.step()
        optimizer.zero_grad()
        assert sparse.random_masks is None
    assert len(seen) == 60
    assert abs(off / active - 0.25) < 4 * math.sqrt(0.25 * 0.75 / active)
