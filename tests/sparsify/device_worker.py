"""Training on the device that counts: run by test_device.py in a process of its own, prints JSON.

counts NETWORK METHOD...      of an ordinary step and of a round, for each of two optimizers
loops                         the same of cigl and rigl in other loops, and what a step is given besides tensors
methods                       whether every method has the same bits here as on the CPU
warnings                      what is said of strays and of a stand-still
run FOLDER                    cigl train, interrupted and resumed, and cigl evaluate
"""

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import torch
import torch.nn.functional as F
from counting_device import NAME
from device_counts import NUMBERS, Loop, Training, count
from torch import nn
from torch.utils._pytree import tree_map

import cigl

torch.set_num_threads(1)


def counts(network, *methods):
    result = {}
    for optimizer in ("sgd", "adamw"):
        dense = count(network, None, Loop(optimizer))["step"]
        for method in methods:
            found = count(network, method, Loop(optimizer))
            active = found["layers"] - found["dense_layers"]
            added = {kind: {name: found[kind][name] - dense[name] for name in NUMBERS} for kind in ("step", "round")}
            result[f"{method} {optimizer}"] = {"layers": found["layers"], "masked": active, **added}
    return result


def loops():
    result = {}
    for method in ("rigl", "cigl"):
        for loop in (
            Loop("sgd-fused"),
            Loop("adamw-fused"),
            Loop("adamw", micro_batches=3),
            Loop("sgd", autocast=True),
            Loop("sgd", scaler=True),
            Loop("adamw-fused", scaler=True),
        ):
            dense, found = (count("mlp", m, loop) for m in (None, method))
            name = " ".join([method, loop.optimizer, *(k for k in ("autocast", "scaler") if getattr(loop, k))])
            name += " micro_batches" * (loop.micro_batches > 1)
            result[name] = {each: found["step"][each] - dense["step"][each] for each in NUMBERS}
        first, second = found_in_order(method)
        result[f"{method} changes"] = sorted({name for name, a, b in zip(*first, second[1], strict=True) if a != b})
        assert first[0] == second[0]
    return result


def found_in_order(method):
    """The operations of two ordinary steps, with what they are given besides tensors."""
    taken = count("mlp", method, Loop("sgd"))["ordinary"]
    return [(step.names, step.numbers) for step in taken]


def train(device, method, optimizer, steps=9):
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(162, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5)
    model = nn.Sequential(*layers).to(device)
    trainer = optimizer(model.parameters())
    chosen = cigl.method(method)
    options = {} if chosen.update_every is None else {"update_every": 3}
    sparsity = 0.0 if method == "dense" else 0.8
    sparse = cigl.attach(model, trainer, chosen, sparsity=sparsity, epochs=12, steps_per_epoch=1, **options)
    ema, generator = sparse.ema(0.9), torch.Generator().manual_seed(0)
    for number in range(12):
        x, y = torch.randn(8, 2, 9, 9, generator=generator), torch.randint(5, (8,), generator=generator)
        trainer.zero_grad()
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        trainer.step()
        if number == 6:
            saved = tree_map(_copied, (sparse.state_dict(), dict(model.state_dict()), trainer.state_dict()))
    results = [model, sparse.finalize(average=False), ema.finalize()]
    tensors = [t.cpu().clone() for each in results for t in each.state_dict().values()]
    tensors += [mask.cpu() for mask in sparse.masks.values()] + [torch.tensor([sparse.explored, sparse.density])]
    # and resumed
    model.load_state_dict(saved[1])
    trainer.load_state_dict(saved[2])
    sparse.load_state_dict(saved[0])
    model(torch.zeros(8, 2, 9, 9).to(device))
    return tensors


def _copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def methods():
    warnings.simplefilter("ignore")
    result = {}
    for method in cigl.methods():
        for name, optimizer in (
            ("sgd", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True)),
            ("adam", lambda p: torch.optim.Adam(p, lr=0.01, foreach=True)),
        ):
            pairs = zip(train(NAME, method, optimizer), train("cpu", method, optimizer), strict=True)
            result[f"{method} {name}"] = all(torch.equal(a, b) for a, b in pairs)
    return result


def said(steps, change, lr=0.01):
    training = Training("mlp", "rigl", Loop())
    for group in training.optimizer.param_groups:
        group["lr"] = lr
    for number in range(1, steps + 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            training.step()
        if caught:
            return number, str(caught[0].message)
        change(training, number)
    return None


def strays(training, number):
    if number == 2:
        layer = training.sparse.layers[0]
        layer.parameter.data[...] = 1.0  # not counted as a write


def two_messages():
    return {"strays": said(12, strays), "stand-still": said(20, lambda *_: None, lr=0.0)}


def run(folder):
    from typer.testing import CliRunner

    from cigl.cli.shared import app

    def call(*arguments):
        result = CliRunner().invoke(app, list(arguments))
        if result.exit_code:
            raise SystemExit(result.output)
        return result.output

    common = ["--model", "mlp-32", "--method", "cigl", "--epochs", "5", "--train-size", "256", "--kernels", "masked"]
    for device in (NAME, "cpu"):
        call("train", *common, "--device", device, "--out", f"{folder}/{device}")
        call("evaluate", f"{folder}/{device}")
    results = [json.loads(Path(f"{folder}/{device}/result.json").read_text()) for device in (NAME, "cpu")]
    return [result["test"]["report"] for result in results]


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    commands = {"counts": counts, "loops": loops, "methods": methods, "warnings": two_messages, "run": run}
    print("\n" + json.dumps(commands[command](*arguments)))
