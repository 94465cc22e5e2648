"""Graphs there and back against torch itself, and graphs that nobody should run."""

import copy
import json
import pickle
import typing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_nets import Attention, Branching, Functional, InPlace, SumInPlace, Tied, TwoInputsTwoOutputs, layers, sparsen
from torch import fx, nn

import cigl
from cigl.common.errors import CiglError
from cigl.runtime.format.allowed import FUNCTIONS, MODULES, make_module
from cigl.runtime.format.container import Damaged
from cigl.runtime.format.decode import decode_graph
from cigl.runtime.format.encode import Unsupported, encode_graph
from cigl.runtime.format.tensors import named_tensors


def tensors_of(model):
    """By all of their names; tied ones are one."""
    once = {id(tensor): tensor.detach() for tensor in named_tensors(model).values()}
    tensors = {name: once[id(tensor)] for name, tensor in named_tensors(model).items()}
    return tensors, set(dict(model.named_parameters(remove_duplicate=False)))


def again(model):
    """Through JSON, as a file has it."""
    return decode_graph(json.loads(json.dumps(encode_graph(model))), *tensors_of(model))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (28, 28)),
        ("convnet", (3, 32, 32)),
        ("wrn-10-1", (3, 32, 32)),
        ("resnet18", (1, 32, 32)),
        ("resnet50", (3, 96, 96)),
    ],
)
def test_every_network_of_ours(name, shape):
    model = sparsen(cigl.models.build(name, 10, shape))
    x = torch.randn(2, *shape)
    back = again(model)
    assert torch.equal(back(x), model(x))
    assert back.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (layers(), [(2, 3, 20, 20)]),
        (Functional(), [(2, 3, 20, 20)]),
        (InPlace(), [(2, 4, 5, 5)]),
        (Tied(), [(2, 30)]),
        (nn.Linear(4, 3), [(2, 4)]),
        (nn.Conv2d(4, 3, 3, padding=1), [(2, 4, 5, 5)]),
        (nn.ReLU(), [(3,)]),
    ],
)
def test_most_of_torch(model, shapes):
    model = sparsen(model, 0.3)
    inputs = [torch.randn(shape) for shape in shapes]
    back = again(model)
    assert torch.equal(back(*inputs), model(*inputs))
    for other in (
        copy.deepcopy(back),
        pickle.loads(pickle.dumps(back)),
        fx.GraphModule(back, back.capture().graph),
        again(back),
    ):
        assert torch.equal(other(*inputs), model(*inputs))


def test_two_inputs_and_a_nested_output():
    model = TwoInputsTwoOutputs().eval()
    x, y = torch.randn(2, 6), torch.randn(2, 6)
    found, wanted = again(model)(x, y), model(x, y)
    assert torch.equal(found["sum"], wanted["sum"])
    assert torch.equal(found["parts"][0], wanted["parts"][0])
    assert isinstance(found["parts"], tuple)
    assert torch.equal(found["parts"][1][0], wanted["parts"][1][0])


def test_tied_tensors_are_one():
    back = again(Tied().eval())
    assert back.other.weight is back.first.weight
    assert len(list(back.parameters())) == 3


def test_no_gradients_and_no_random_numbers():
    model = nn.Sequential(nn.Linear(3, 3), nn.PReLU()).eval()
    state = torch.get_rng_state()
    back = again(model)
    assert torch.equal(state, torch.get_rng_state())
    assert not back(torch.randn(1, 3)).requires_grad
    assert not any(module.training for module in back.modules())


class Plain(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.linear(x))


def _hooked():
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def _overridden():
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].forward = lambda x: x
    return model


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Any(nn.Module):
    def forward(self, *inputs):
        return inputs[0]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Attention(), "'attention' is a MultiheadAttention"),
        (Branching(), "can't be traced .*control flow"),
        (Plain(torch.sort), "the operation 'sort'"),
        (Plain(lambda x: x.kthvalue(1)), "the operation 'kthvalue'"),
        (Plain(lambda x: x + torch.ones(4)), "a tensor is made"),
        (Plain(lambda x: x.device), "the argument 'device'"),
        (Plain(lambda x: x.clamp(min=float("nan"))), "the argument 'nan'"),
        (Plain(lambda x: x.to(torch.device("cpu"))), "the argument 'cpu'"),
        (_hooked(), "'0' has a forward hook"),
        (_overridden(), "'0' is a Linear"),
        (nn.Sequential(nn.MaxPool2d(2, return_indices=True)), "return_indices can't be True"),
        (nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))), "'0.*' is a Parametri[sz]ed"),
        (Any(), "any number of inputs"),
        (Plain(lambda x: {0: x}), "the argument '{0: "),
        (Plain(lambda x: Pair(x, x)), "the operation 'Pair'"),
    ],
)
def test_what_is_outside_is_named(model, reason):
    with pytest.raises(Unsupported, match=reason):
        encode_graph(model.eval())


def test_hooks_and_forwards_of_the_root():
    model = nn.Linear(4, 4)
    model.register_forward_pre_hook(lambda module, inputs: None)
    with pytest.raises(Unsupported, match="the model has a forward hook"):
        encode_graph(model)
    model = nn.Linear(4, 4)
    model.forward = lambda x: x
    with pytest.raises(Unsupported, match="not that of its class"):
        encode_graph(model)


# Hostile graphs


def chain():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)).eval()
    return encode_graph(model), *tensors_of(model)


def _set(number, **changes):
    return lambda graph: graph["nodes"][number].update(changes)


def _field(path, **changes):
    return lambda graph: graph["modules"][path].update(changes)


def _insert(node):
    """Before the output, which then gives it out."""

    def change(graph):
        graph["nodes"].insert(-1, node)
        graph["nodes"][-1]["args"] = [{"node": len(graph["nodes"]) - 2}]

    return change


X = {"node": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(1, args=[{"node": 1}]), "does not come before"),
        (_set(1, args=[{"node": 3}]), "does not come before"),
        (_set(1, args=[{"node": -1}]), "does not come before"),
        (_set(1, args=[{"node": True}]), "does not come before"),
        (_set(1, args=[{"node": 0, "x": 1}]), "does not come before"),
        (_set(1, args=[{"slice": [1, 2]}]), "does not come before"),
        (_set(1, args=[]), "does not know"),
        (_set(1, args=5), "is malformed"),
        (_set(1, name=["0"]), "is malformed"),
        (_set(1, name="7"), "calls other modules"),
        (_set(1, name="0.weight"), "calls other modules"),
        (_set(1, op="call"), "does not know"),
        (_set(1, op="input", args=[]), "calls other modules"),
        (_set(1, op=["module"]), "does not know"),
        (_set(-1, op="input", args=[]), "does not lead"),
        (_insert({"op": "output", "args": [X]}), "does not lead"),
        (_insert({"op": "function", "name": "os.system", "args": ["ls"]}), "does not know"),
        (_insert({"op": "function", "name": "torch.load", "args": [X]}), "does not know"),
        (_insert({"op": "method", "name": "__class__", "args": [X]}), "does not know"),
        (_insert({"op": "method", "name": "numpy", "args": [X]}), "does not know"),
        (_insert({"op": "function", "name": "torch.add", "args": [X, 2**40]}), "has the argument"),
        (_insert({"op": "function", "name": "torch.add", "args": [X, "rm -rf"]}), "has the argument"),
        (_insert({"op": "tensor", "name": "9.weight"}), "9.weight is missing"),
        (_insert({"op": "tensor", "name": "forward"}), "forward is missing"),
        (lambda graph: graph["nodes"].clear(), "does not lead"),
        (lambda graph: graph["nodes"].append(5), "is malformed"),
        (lambda graph: graph.update(nodes=None), "graph is not a list of nodes"),
        (lambda graph: graph.update(nodes=graph["nodes"] * 5000), "nodes, more than 20000"),
        (lambda graph: graph.update(modules=None), "calls other modules"),
        (_field("0", type="Module"), "unknown type"),
        (_field("0", type=[]), "unhashable|unknown type"),
        (_field("0", padding=10**9), "padding can't be 1000000000"),
        (_field("0", padding=-1), "padding can't be -1"),
        (_field("0", padding="everything"), "padding can't be"),
        (_field("0", stride=[0, 1]), "stride can't be"),
        (_field("0", stride=[1] * 100), "stride can't be"),
        (_field("0", stride="zeros"), "stride can't be"),
        (_field("0", dilation=1.5), "dilation can't be"),
        (_field("0", bias=1), "bias can't be 1"),
        (_field("0", groups=3), "divisible"),
        (_field("0", device="cuda"), "other arguments"),
        (_field("0", out_channels=10**9), "but its module needs"),
        (_field("2", in_features=10**12), "in_features can't be"),
        (_field("2", in_features=9), r"2.weight has the shape \[3, 8\], but its module needs \[3, 9\]"),
        (_field("2", bias=None), "bias can't be None"),
        (lambda graph: graph["modules"].update({"0": {"type": "Linear"}}), "other arguments"),
    ],
)
def test_hostile_graphs_are_refused(change, message):
    graph, tensors, parameters = chain()
    change(graph)
    with pytest.raises(Damaged, match=message):
        decode_graph(graph, tensors, parameters)


def test_too_deep():
    graph, tensors, parameters = chain()
    deep = X
    for _ in range(50):
        deep = {"tuple": [deep]}
    graph["nodes"][1]["args"] = [deep]
    with pytest.raises(Damaged, match="nested too deeply"):
        decode_graph(graph, tensors, parameters)


@pytest.mark.parametrize("path", ["forward", "training", "_modules", "0.weight", "0.inner", "", ".", "__class__", "0"])
def test_a_module_takes_no_odd_place(path):
    graph, tensors, parameters = chain()
    graph["modules"][path] = {"type": "ReLU", "inplace": False}
    _insert({"op": "module", "name": path, "args": [X]})(graph)
    if path == "0":
        del graph["nodes"][1]
        graph["modules"].pop("0")
    with pytest.raises(Damaged):
        decode_graph(graph, tensors, parameters)


@pytest.mark.parametrize(
    "nodes",
    [
        [{"op": "function", "name": "getattr", "args": [X, "tanh"]}],
        [
            {"op": "function", "name": "getattr", "args": [X, "shape"]},
            {"op": "function", "name": "operator.mul", "args": [{"node": 1}, 2**30]},
        ],
        [{"op": "function", "name": "operator.mul", "args": ["tanh", 2**30]}],
        [{"op": "function", "name": "operator.mul", "args": [[X], 2**30]}],
        [{"op": "method", "name": "size", "args": [5]}],
        [{"op": "method", "name": "size", "args": [X, 0]}]
        + [{"op": "function", "name": "operator.mul", "args": [{"node": n}, 2**30]} for n in range(1, 5)],
    ],
)
def test_what_only_shows_when_it_runs_is_refused_then(nodes):
    model = decode_graph(
        {"modules": {}, "nodes": [{"op": "input"}, *nodes, {"op": "output", "args": [{"node": len(nodes)}]}]}, {}, set()
    )
    with pytest.raises(CiglError, match="the model's graph"):
        model(torch.ones(2, 3))


def test_other_names_of_a_sum_in_place_see_it():
    model, x = SumInPlace(), torch.randn(2, 4)
    for other in (again(model), again(again(model)), cigl.sparse_inference(again(model))):
        torch.testing.assert_close(other(x), model(x), msg="torch.fx alone would lose the change")


@pytest.mark.parametrize("parameters", [set(), {"t"}])
def test_nothing_is_computed_while_an_engine_is_made(parameters):
    doubled = [{"op": "function", "name": "torch.cat", "args": [[{"node": n}, {"node": n}]]} for n in range(1, 60)]
    nodes = [{"op": "input"}, {"op": "tensor", "name": "t"}, *doubled, {"op": "output", "args": [X]}]
    fast = cigl.sparse_inference(decode_graph({"modules": {}, "nodes": nodes}, {"t": torch.ones(8)}, parameters))
    assert torch.equal(fast(torch.ones(3)), torch.ones(3))  # and what leads to no output is left out


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.sampled_from(["shape", "same", "x"])
    | st.builds(lambda n: {"node": n}, st.integers(-1, 6)),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["node", "tuple", "slice", "dict", "x"]), inner | st.lists(inner, max_size=3), max_size=2
    ),
    max_leaves=6,
)  # fmt: skip
nodes = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["input", "module", "function", "method", "tensor", "output"]),
        "name": st.sampled_from([*FUNCTIONS, "view", "size", "0", "2", "0.weight", "x"]),
        "args": st.lists(plain, max_size=3) | plain,
    }
)


@settings(deadline=None, max_examples=100)
@given(st.lists(nodes, max_size=4))
def test_any_graph_is_refused_or_a_model(inserted):
    graph, tensors, parameters = chain()
    graph["nodes"][3:3] = inserted
    try:
        model = decode_graph(graph, tensors, parameters)
    except Damaged:
        return
    assert isinstance(model, nn.Module)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(sorted(MODULES)), st.data())
def test_any_arguments_of_a_module_are_refused_or_make_one(kind, data):
    fields = {name: data.draw(plain | st.integers(0, 8)) for name in MODULES[kind].split()}
    try:
        module = make_module({"type": kind, **fields})
    except (ValueError, TypeError):
        return
    assert all(tensor.is_meta for tensor in named_tensors(module).values())


SURPLUS = [
    *({"op": "function", "name": name, "args": [X, True]} for name in ("torch.relu", "torch.sigmoid", "torch.tanh")),
    *({"op": "method", "name": name, "args": [X, True]} for name in ("relu", "sigmoid", "tanh")),
    {"op": "function", "name": "torch.clamp", "args": [X, 0, 6, True]},
    {"op": "function", "name": "torch.softmax", "args": [X, 1, 3, None]},
    {"op": "function", "name": "torch.nn.functional.relu", "args": [X, X]},
    {"op": "method", "name": "softmax", "args": [X], "kwargs": {"dim": 1, "_stacklevel": 3}},
]


@pytest.mark.parametrize("node", SURPLUS, ids=lambda node: node["name"])
def test_both_engines_refuse_arguments_that_torch_does_not_take(node):
    graph = {"modules": {}, "nodes": [{"op": "input"}, node, {"op": "output", "args": [{"node": 1}]}]}
    for make in (lambda model: model, cigl.sparse_inference):
        with pytest.raises(CiglError, match="can't"):
            make(decode_graph(graph, {}, set()))(torch.ones(2, 3))


@pytest.mark.parametrize("more", [{"args": [X, True]}, {"kwargs": {"surplus": 1}}], ids=["position", "name"])
@pytest.mark.parametrize("module", [nn.Linear(3, 3), nn.ReLU(), nn.Dropout()], ids=lambda module: type(module).__name__)
def test_a_module_with_surplus_arguments_is_no_graph(module, more):
    """Also where nobody reads what it returns, which an engine leaves out."""
    model = nn.Sequential(module).eval()
    graph = encode_graph(model)
    graph["nodes"][1] |= more
    graph["nodes"][-1]["args"] = [X]
    with pytest.raises(Damaged, match="node 1 of its graph, module 0, is called with wrong arguments"):
        decode_graph(graph, dict(model.state_dict()), set())
