"""Files with random damage and a checksum that fits: loading and calling them ends well, or in an error of cigl's.

    python tests/runtime/mutated_files.py SEED COUNT [NETWORK ...]

A test runs it in a process of its own, because a crash or a hang would be the finding. It prints what went wrong, each
with its seed; ``python tests/runtime/mutated_files.py SEED 1 NETWORK`` repeats one.
"""

from __future__ import annotations

import copy
import resource
import sys
import tempfile
import warnings
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from saved_nets import sparsen
from torch import nn

import cigl
from cigl.common.errors import CiglError
from cigl.runtime.format import container
from cigl.runtime.format.allowed import FUNCTIONS, METHODS, MODULES

ROOM = 3 << 29  # bytes that a call may allocate: what a graph asks for is the caller's risk


class SqueezeExcite(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Mobile(nn.Module):
    """Depthwise convolutions, squeeze and excitation, hard-swish."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        self.block = nn.Sequential(
            nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.ReLU6(inplace=True),
            nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.BatchNorm2d(32), nn.SiLU(), SqueezeExcite(32),
            nn.Conv2d(32, 16, 1), nn.BatchNorm2d(16),
        )  # fmt: skip
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.block(x)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Dense(nn.Module):
    """Concatenations, as in a DenseNet, with changes in place."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 * n) for n in (1, 2, 3))
        self.convs = nn.ModuleList(nn.Conv2d(8 * n, 8, 3, padding=1) for n in (1, 2, 3))
        self.first, self.head = nn.Conv2d(3, 8, 3), nn.Linear(32, 5)

    def forward(self, x):
        found = [self.first(x)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            found.append(conv(F.relu(norm(torch.cat(found, 1)), inplace=True)))
        return self.head(torch.cat(found, 1).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 2, 3, padding=2, dilation=2)
        self.line = nn.Conv1d(2, 3, 3)

    def forward(self, x):
        a = F.gelu(self.down(x))
        b = F.leaky_relu(self.deep(a), 0.1)
        c = self.out(torch.cat([a, self.up(b) + F.interpolate(b[:, :8], scale_factor=2.0)], dim=1))
        return {"mask": c.softmax(1), "line": (self.line(c.flatten(2)).transpose(1, 2), c.shape[0])}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTM(8, 12, batch_first=True, bidirectional=True), nn.GRU(24, 12, 2)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        y = torch.tanh(self.first(x)[0].transpose(0, 1))
        return self.head(self.second(y)[0].mean(0))


def _bert():
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(**sizes, vocab_size=60, max_position_embeddings=40)
    inputs = {"input_ids": torch.randint(2, 60, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
    return transformers.BertForSequenceClassification(config), inputs, inputs


def _encoder():
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1, enable_nested_tensor=False
    )
    return model, (torch.randn(2, 6, 16),), (torch.randn(2, 6, 16),)


PICTURES = (torch.randn(2, 3, 16, 16),)
NETWORKS = {  # a model, example inputs to capture it with, and inputs to call it with
    "mobile": lambda: (Mobile(), None, PICTURES),
    "dense": lambda: (Dense(), None, PICTURES),
    "unet": lambda: (UNet(), None, PICTURES),
    "exported": lambda: (Mobile(), PICTURES, PICTURES),
    "recurrent": lambda: (Recurrent(), None, (torch.randn(2, 6, 8),)),
    "encoder": _encoder,
    "bert": _bert,
}

VALUES = [
    None, True, False, 0, 1, -1, 2, 3, 8, 16, 2**31 - 1, 1 - 2**31, 10**400, 0.0, -0.5, 1e30, 1e308, "shape", "same",
    "constant", "none", "x" * 10_000, [], [0], [1, 2], [[[[1]]]], {"tuple": []}, {"tuple": [1, 1]}, {"node": 0},
    {"node": 3}, {"node": -1}, {"slice": [None, None, None]}, {"slice": [0, 5, -1]}, {"dict": {}}, {"named": {"a": 1}},
    {"dtype": "F16"}, {"dtype": "I64"}, {"dtype": "F8_E5M2"}, {"float": "inf"}, {"float": "-inf"}, {},
]  # fmt: skip


def _places(data, found):
    """All (container, key) inside of nested lists and dicts."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        found.append((data, key))
        if isinstance(value, (dict, list)):
            _places(value, found)
    return found


def _any_leaf(description, stored, random):
    places = _places(description["graph"]["nodes"], [])
    data, key = random.choice([place for place in places if place[1] not in ("op", "name", "args", "node")])
    data[key] = copy.deepcopy(random.choice(VALUES))


def _other_name(description, stored, random):
    node = random.choice([each for each in description["graph"]["nodes"] if each["op"] in ("function", "method")])
    node["op"], node["name"] = random.choice(
        [("function", each) for each in FUNCTIONS] + [("method", e) for e in METHODS]
    )


def _other_node(description, stored, random):
    nodes = description["graph"]["nodes"]
    number = random.randrange(1, len(nodes))
    data, key = random.choice([place for place in _places(nodes[number]["args"], []) if place[1] == "node"])
    data[key] = random.randrange(number + (random.random() < 0.1))


def _other_arguments(description, stored, random):
    node = random.choice(description["graph"]["nodes"])
    args = node.setdefault("args", [])
    change = random.choice(["drop", "add", "swap", "keyword"])
    if change == "drop" and args:
        args.pop(random.randrange(len(args)))
    elif change == "add":
        args.insert(random.randrange(len(args) + 1), copy.deepcopy(random.choice(VALUES)))
    elif change == "swap":
        node["args"] = args[::-1]
    else:
        keywords = ["dim", "out", "inplace", "dtype", "keepdim", "input", "size", "training", "device", "x"]
        node.setdefault("kwargs", {})[random.choice(keywords)] = copy.deepcopy(random.choice(VALUES))


def _other_nodes(description, stored, random):
    nodes = description["graph"]["nodes"]
    number = random.randrange(len(nodes))
    change = random.choice(["drop", "repeat", "swap"])
    if change == "drop":
        nodes.pop(number)
    elif change == "repeat":
        nodes[number:number] = [copy.deepcopy(nodes[number]) for _ in range(random.choice([1, 2, 100]))]
    else:
        other = random.randrange(len(nodes))
        nodes[number], nodes[other] = nodes[other], nodes[number]


def _other_module(description, stored, random):
    modules = description["graph"]["modules"]
    if not modules:
        return
    fields = modules[random.choice(list(modules))]
    if random.random() < 0.3:
        fields["type"] = random.choice(list(MODULES))
    else:
        sizes = [0, 1, 2, 3, 5, 8, 16, 32, 2**15, [1, 1], [2, 3], [0, 0], [1, 2, 3]]
        free = {"stride", "padding", "dilation", "groups", "inplace", "ceil_mode", "output_padding"} & fields.keys()
        key = random.choice(sorted(free or fields) if random.random() < 0.7 else sorted(fields))
        fields[key] = copy.deepcopy(random.choice(random.choice([VALUES, sizes, [True, False]])))


def _other_signature(description, stored, random):
    signature = description["graph"]["signature"]
    conditions = [["==", ["size", 0, 0], 2], ["%", ["size", 0, 9], 0], ["*", ["size", 0, 1], 2**62], ["not", 0], []]
    values = {
        "order": [[], ["x", "x"], ["y"]],
        "conditions": [[each] for each in conditions],
        "dtypes": [[], ["F32"], ["I64", "F16"], [None]],
        "fixed": [[[["x", 0], 10**400]], [[["y"], None]]],
        "sized": [True, False],
        "defaults": [{}, {"x": 1}],
    }
    key = random.choice(list(values))
    signature[key] = random.choice(values[key] + VALUES)


def _other_index(description, stored, random):
    index = description["tensors"]
    name = random.choice(list(index))
    change = random.choice(["shape", "dtype", "same", "kind"])
    index[name][change] = random.choice(
        {
            "shape": [[], [1], [2**40], [0, 2**40], index[name].get("shape", [])[::-1]],
            "dtype": ["F16", "I64", "F64", "x"],
            "same": list(index),
            "kind": ["parameter", "buffer"],
        }[change]
    )


def _other_tensor(description, stored, random):
    name = random.choice(list(stored))
    tensor = stored[name]
    change = random.choice(["nan", "type", "longer", "shorter", "noise"])
    if change == "nan" and tensor.is_floating_point():
        tensor = torch.full_like(tensor, random.choice([float("nan"), float("inf"), 0.0, 1e38]))
    elif change == "type":
        tensor = tensor.to(random.choice([torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8]))
    elif change == "longer":
        tensor = torch.cat([tensor.reshape(-1)] * 2)
    elif change == "shorter":
        tensor = tensor.reshape(-1)[: tensor.numel() // 2].clone()
    elif tensor.dtype == torch.uint8 and tensor.numel():
        tensor = tensor.clone()
        tensor[random.randrange(len(tensor))] = random.randrange(256)
    stored[name] = tensor
    if name in description["tensors"] and random.random() < 0.7:
        entry = description["tensors"][name]
        entry["shape"], entry["dtype"] = list(tensor.shape), container.NAMES[tensor.dtype]


def _other_plan(description, stored, random):
    if description["plan"] is None or random.random() < 0.2:
        description["plan"] = copy.deepcopy(random.choice(VALUES))
        return
    data, key = random.choice(_places(description["plan"], []))
    data[key] = random.choice([*VALUES, "sparse", "dense"])


def _other_temperature(description, stored, random):
    description["temperature"] = random.choice([*VALUES, 2.0])


MUTATIONS = {
    _any_leaf: 5,
    _other_name: 6,
    _other_node: 6,
    _other_arguments: 5,
    _other_nodes: 3,
    _other_module: 6,
    _other_signature: 1,
    _other_index: 2,
    _other_tensor: 4,
    _other_plan: 1,
    _other_temperature: 1,
}  # fmt: skip  (each with its weight)


def _mutate(path, stored, description, random):
    stored, description = dict(stored), copy.deepcopy(description)
    if random.random() < 0.8:
        description["plan"] = None  # which would not fit most of what is changed
    for _ in range(random.choice([1, 1, 2, 3])):
        try:
            (mutation,) = random.choices(list(MUTATIONS), list(MUTATIONS.values()))
            mutation(description, stored, random)
        except (IndexError, KeyError, TypeError, AttributeError):  # of a description that is damaged already
            continue
    stored = {name: tensor.contiguous() for name, tensor in stored.items()}
    container.write(path, stored, description)
    if random.random() < 0.03:  # damage that the checksum must notice
        content = bytearray(path.read_bytes())
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        path.write_bytes(content)


def _try(path, inputs, engine):
    """What another error than cigl's says, if there is one."""
    for stage in ("loading", "calling", "calling again"):
        try:
            if stage == "loading":
                model = cigl.load(path, engine=engine)
            elif isinstance(inputs, dict):
                model(**{name: each.clone() for name, each in inputs.items()})
            else:
                model(*(each.clone() for each in inputs))
        except CiglError as error:
            if "\n" in str(error):
                return f"{stage}: several lines: {error}"
            return None
        except Exception as error:
            return f"{stage}: {type(error).__name__}: {error}"
    return None


def _original(name, folder):
    torch.manual_seed(0)
    model, examples, inputs = NETWORKS[name]()
    path = folder / f"{name}.cigl"
    sparsen(model, 0.8)
    cigl.save(model, path, example_inputs=examples)
    fast = cigl.load(path)
    fast(**inputs) if isinstance(inputs, dict) else fast(*inputs)
    cigl.save(model, path, example_inputs=examples, plan=fast.plan())
    return (*container.read(path), inputs)


def main(seed, count, names):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        originals = {name: _original(name, Path(folder)) for name in names}
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
        for number in range(seed, seed + count):
            for name, (stored, description, inputs) in originals.items():
                path = Path(folder) / "mutated.cigl"
                _mutate(path, stored, description, Random(f"{number} {name}"))
                print(f"{number} {name}", end="\r", file=sys.stderr, flush=True)  # what is running if it crashes
                for engine in ("sparse", "dense"):
                    finding = _try(path, inputs, engine)
                    if finding is not None:
                        wrong += 1
                        print(f"{number} {name} {engine}: {finding}", flush=True)
    print(f"{count * len(names)} files, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(NETWORKS)))
