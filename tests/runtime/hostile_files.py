"""Files that are whole and small, and made to cost much when they are loaded.

    python tests/runtime/hostile_files.py FOLDER

prints as JSON what loading each of them took at its peak. A test runs it in a process of its own with little memory.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import warnings
from pathlib import Path

import torch

import cigl
from cigl.common.errors import CiglError
from cigl.runtime.format import container
from cigl.runtime.format.allowed import MODULES

INPUT = {"op": "input", "name": "x"}
PLAIN = {
    "stride": 1, "padding": 0, "dilation": 1, "groups": 1, "output_padding": 0, "bias": False, "padding_mode": "zeros",
    "eps": 1e-5, "momentum": 0.1, "affine": False, "track_running_stats": True,
}  # fmt: skip


def function(name, *args, **kwargs):
    return {"op": "function", "name": name, "args": list(args), "kwargs": kwargs}


def module(name, number):
    return {"op": "module", "name": name, "args": [at(number)]}


def tensor(name):
    return {"op": "tensor", "name": name}


def at(number):
    return {"node": number}


def fields(kind, **given):
    return {"type": kind} | {name: PLAIN.get(name) for name in MODULES[kind].split()} | given


class File:
    """A file in the making."""

    def __init__(self):
        self.nodes, self.modules, self.stored, self.index = [INPUT], {}, {}, {}
        self.output, self.more = None, {}

    def add(self, node):
        self.nodes.append(node)
        return len(self.nodes) - 1

    def weight(self, name, *shape, zeros=False):
        """Dense; or all zeros, so that a byte stands for 255 elements."""
        self.index[name] = {"dtype": "F32", "shape": list(shape), "kind": "buffer"}
        size = torch.Size(shape).numel()
        if zeros:
            self.stored[f"{name}.gaps"] = torch.full((size // 255,), 255, dtype=torch.uint8)
            self.stored[f"{name}.values"] = torch.zeros(0)
        else:
            self.stored[name] = torch.ones(shape)

    def tied(self, name, owner):
        self.index[name] = {"same": owner}

    def norm(self, path, channels):
        self.weight(f"{path}.running_mean", channels)
        self.weight(f"{path}.running_var", channels)
        self.index[f"{path}.num_batches_tracked"] = {"dtype": "I64", "shape": [], "kind": "buffer"}
        self.stored[f"{path}.num_batches_tracked"] = torch.tensor(1)
        self.modules[path] = fields("BatchNorm2d", num_features=channels)

    def write(self, path):
        output = at(len(self.nodes) - 1) if self.output is None else self.output
        graph = {"modules": self.modules, "nodes": [*self.nodes, {"op": "output", "args": [output]}]}
        container.write(path, self.stored, {"tensors": self.index, "graph": graph, "temperature": None, **self.more})


# Much time: each with n nodes


def nested_lists(file, n):
    for number in range(n):
        file.add(function("operator.getitem", [at(number), at(number)], {"slice": [None, None, None]}))


def nested_items(file, n):
    for number in range(n):
        file.add(function("operator.getitem", at(number), at(number)))


def changes_in_place(file, n):
    for number in range(n // 4):
        file.add(function("torch.cat", [at(number), at(0)]))
    for _ in range(n):
        file.add(function("torch.nn.functional.relu", at(len(file.nodes) - 1), inplace=True))


def changes_of_one_memory(file, n):
    """All of them views of the input, and the last node reads every one."""
    views = [file.add({"op": "method", "name": "view", "args": [at(number // 2), -1]}) for number in range(n)]
    last = views[-1]
    for _ in range(n):
        last = file.add({"op": "method", "name": "relu_", "args": [at(last)]})
    file.output = {"tuple": [at(last)]}


def names_of_one_value(file, n):
    """In place again and again, and all of its names are read in the end."""
    file.add(function("torch.add", at(0), at(0)))
    for number in range(1, n):
        file.add(function("torch.relu_", at(number)))
    file.output = [at(number) for number in range(1, n)]


def long_concatenation(file, n):
    for _ in range(n):
        file.add(function("torch.sin", at(0)))
    file.add(function("torch.cat", [at(number) for number in range(n)]))
    file.add(function("torch.stack", [at(number) for number in range(n)]))


def transposes(file, n):
    file.weight("w", 16, 16)
    last = file.add(tensor("w"))
    for number in range(n):
        last = file.add(function("torch.transpose", at(last), 0, 1))
        if number % 4 == 0:
            file.add(function("torch.nn.functional.linear", at(0), at(last)))


def calls_of_a_layer(file, n):
    file.weight("c.weight", 4, 4, 1, 1)
    file.modules["c"] = fields("Conv2d", in_channels=4, out_channels=4, kernel_size=1)
    file.norm("b", 4)
    for number in range(n):
        file.add(module("cb"[number % 2], number))


def calls_in_torch(file, n):
    """Of a module without a kernel; its zeros are counted once."""
    file.weight("c.weight", 16, 16, 1, 1, 1)
    file.modules["c"] = fields("Conv3d", in_channels=16, out_channels=16, kernel_size=1)
    for number in range(n):
        file.add(module("c", number))


def conditions(file, n):
    condition = ["==", ["size", 0, 0], ["size", 0, 0]]
    signature = {"order": ["x"], "defaults": {}, "fixed": [], "dtypes": [], "conditions": [condition] * n}
    file.more = {"signature": signature}


def shapes_in_a_plan(file, n):
    file.more = {"plan": {"version": 1, "shapes": [{"inputs": [[k, 3]], "threads": 1, "units": []} for k in range(n)]}}


LONG = {
    each.__name__: each
    for each in (
        nested_lists, nested_items, changes_in_place, changes_of_one_memory, names_of_one_value, long_concatenation,
        transposes, calls_of_a_layer, calls_in_torch, conditions, shapes_in_a_plan,
    )
}  # fmt: skip


# Much memory: a few hundred kilobytes, in which a weight of 8 MB is used again and again

SIDE = 1448  # of a square weight


def gaps(file, n):
    file.weight("w", 255 * n * 1000, zeros=True)
    file.add(tensor("w"))


def one_convolution(file, n):
    file.weight("c.weight", SIDE, SIDE, 1, 1, zeros=True)
    file.modules["c"] = fields("Conv2d", in_channels=SIDE, out_channels=SIDE, kernel_size=1)
    for number in range(n):
        file.add(module("c", number))


def one_convolution_of_a_line(file, n):
    file.weight("c.weight", SIDE, SIDE, 1, zeros=True)
    file.modules["c"] = fields("Conv1d", in_channels=SIDE, out_channels=SIDE, kernel_size=1)
    for number in range(n):
        file.add(module("c", number))


def one_convolution_with_many_norms(file, n):
    file.weight("c.weight", 4, SIDE * SIDE // 4, 1, 1, zeros=True)
    file.modules["c"] = fields("Conv2d", in_channels=SIDE * SIDE // 4, out_channels=4, kernel_size=1)
    for number in range(n // 4):
        file.norm(f"b{number}", 4)
        file.add(module(f"b{number}", file.add(module("c", 0))))


def one_transposed_convolution(file, n):
    file.weight("c.weight", SIDE, SIDE, 1, 1, zeros=True)
    kind = "ConvTranspose2d"
    file.modules["c"] = fields(kind, in_channels=SIDE, out_channels=SIDE, kernel_size=1)
    file.modules["d"] = fields(kind, in_channels=SIDE, out_channels=SIDE, kernel_size=1, stride=30_000)
    file.tied("d.weight", "c.weight")
    for number in range(n):
        file.add(module("cd"[number % 2], number))


def tied_layers(file, n):
    file.weight("0.weight", SIDE, SIDE, zeros=True)
    for number in range(n // 4):
        if number:
            file.tied(f"{number}.weight", "0.weight")
        file.modules[str(number)] = fields("Linear", in_features=SIDE, out_features=SIDE)
        file.add(module(str(number), number))


def tied_layers_in_torch(file, n):
    file.weight("0.weight", SIDE, SIDE, 1, 1, zeros=True)
    for number in range(n // 4):
        if number:
            file.tied(f"{number}.weight", "0.weight")
        reflecting = {"in_channels": SIDE, "out_channels": SIDE, "kernel_size": 1, "padding_mode": "reflect"}
        file.modules[str(number)] = fields("Conv2d", **reflecting)
        file.add(module(str(number), number))


def products_with_one_matrix(file, n):
    file.weight("w", SIDE, SIDE, zeros=True)
    for number in range(n // 4):
        file.weight(f"b{number}", SIDE) if number < 4 else file.tied(f"b{number}", f"b{number % 4}")
        copied = {"op": "method", "name": "contiguous", "args": [at(file.add(tensor("w")))]}
        matrix, bias = file.add(copied), file.add(tensor(f"b{number}"))
        file.add(function("torch.addmm", at(bias), at(0), at(matrix)))
        file.add(function("torch.matmul", at(0), at(file.add(function("torch.transpose", at(matrix), 0, 1)))))


def convolutions_with_one_weight(file, n):
    file.weight("w", SIDE, SIDE, 1, 1, zeros=True)
    weight = file.add(tensor("w"))
    for number in range(n // 4):
        file.add(function("torch.nn.functional.conv2d", at(0), at(weight), None, [1, 1 + number]))


def one_norm(file, n):
    file.norm("b", 30_000)
    for number in range(n):
        file.add(module("b", number))


def deep_paths(file, n):
    for number in range(2 * n):
        path = f"{number}." + ".".join("a" * 30)
        file.modules[path] = fields("Sigmoid")
        file.add(module(path, number))


def empty_tensors(file, n):
    for number in range(4 * n):
        file.weight(f"w{number}", 0)


def empty_lists(file, n):
    file.more = {"about": [[]] * (100 * n)}


LARGE = {
    each.__name__: each
    for each in (
        gaps, one_convolution, one_convolution_of_a_line, one_convolution_with_many_norms, one_transposed_convolution,
        tied_layers, tied_layers_in_torch, products_with_one_matrix, convolutions_with_one_weight, one_norm, deep_paths,
        empty_tensors, empty_lists,
    )
}  # fmt: skip


def written(make, n, path):
    file = File()
    make(file, n)
    file.write(path)
    return path


def _memory(which):
    """Bytes in memory: VmRSS now, VmHWM at the peak."""
    return 1024 * int(re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def peak(path, engine):
    """What loading takes beyond what there is, and what it says."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, message = _memory("VmRSS"), None
    try:
        model = cigl.load(path, engine=engine)
        del model
    except CiglError as error:
        message = str(error)
    return _memory("VmHWM") - before, message


def main(folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cigl.sparse_inference(torch.nn.Linear(300, 300))  # whatever is imported only then
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    found = {}
    for name, make in LARGE.items():
        path = written(make, 400, Path(folder) / f"{name}.cigl")
        for engine in ("sparse", "dense"):
            found[f"{name} {engine}"] = (path.stat().st_size, *peak(path, engine))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
