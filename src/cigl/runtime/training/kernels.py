"""A model's training forward on sparse kernels, wherever a fixed rule says that they are faster.

The model's call is taken over: while it runs, a network of stretches stands in for ``forward``, with all hooks around
it as usual. Parts that can't be traced run in torch; there, single layers are taken over in the same way. Parameters
stay dense tensors, where they are.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook
from torch.optim import Optimizer

from cigl.errors import CiglWarning
from cigl.runtime.program import library
from cigl.runtime.training.network import StretchedModel, is_plain
from cigl.runtime.training.single import SelfAttention, SingleLayer
from cigl.runtime.training.tracing import TracedModel, Untraceable, arguments_of
from cigl.runtime.training.updates import ActiveUpdates
from cigl.runtime.training.weights import Patterns, Positions

Forward = Callable[..., Any]
_SHAPES = 6  # of inputs, whose programs are kept; the one not used for longest goes first
_MODES = 20  # of a model that are traced, one after the other
_PLAIN = (bool, int, float, str)  # what a forward may depend on beside tensors


class TrainingKernels:
    """Runs a model's training steps on sparse kernels.

    ``active`` gives the active positions of each sparse parameter. ``needs_dense`` says of the step under way whether
    torch must compute it, for its dense gradient. ``needs_z`` is called before torch reads a weight whose Z is held
    here. ``insist`` takes sparse kernels also where they are slower.
    """

    def __init__(
        self,
        model: nn.Module,
        active: Mapping[nn.Parameter, Callable[[], Positions]],
        needs_dense: Callable[[], bool],
        needs_z: Callable[[Collection[nn.Parameter]], None],
        insist: bool,
    ):
        self._model, self._needs_dense, self._needs_z, self._insist = model, needs_dense, needs_z, insist
        self._patterns, self._updates = Patterns(active), ActiveUpdates()
        self._traced: dict[Any, TracedModel | str] = {}  # or why not; by the modes of the modules
        self._networks: OrderedDict[Any, StretchedModel | None] = OrderedDict()
        self._layers: list[SingleLayer] = []
        self._taken: dict[nn.Module, Forward] = {}
        self._parts = _parts(model)
        self._alone: frozenset[nn.Parameter] = frozenset()  # what torch did not read in the last forward of the model
        self._used_elsewhere: set[nn.Parameter] = set()  # by the loss: a penalty on the weights themselves, say
        self._held: set[nn.Parameter] = set()  # whose Z is held here
        self.sparse: set[nn.Parameter] = set()  # that ran on sparse kernels so far
        self.reasons: dict[str, None] = {}  # why something ran masked
        try:
            self._take_over_modules()
        except BaseException:  # all of them, or none
            self.remove()
            raise

    def _take_over_modules(self) -> None:
        for module in self._model.modules():
            if module._compiled_call_impl is not None:  # torch.compile has it
                continue
            if isinstance(module, (nn.Linear, nn.Conv2d)) and type(module) in (nn.Linear, nn.Conv2d):
                self._take_over(module, self._single(module))
            elif type(module) is nn.MultiheadAttention:
                self._take_over(module, self._attention(module))
            elif module is self._model:
                self._take_over(module, self._whole)

    def remove(self) -> None:
        """Give every module its own call back."""
        for module in self._taken:
            if self._is_taken(module):
                vars(module).pop("_compiled_call_impl")

    def _is_taken(self, module: nn.Module) -> bool:
        """Whether its call is still ours: the user may have compiled it since."""
        return module._compiled_call_impl is self._taken.get(module)

    def topology_changed(self) -> None:
        """Read the patterns anew before the next forward."""
        self._patterns.changed()
        self._release()

    def on_gradient(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """A gradient is complete: nothing but the kernels had a part in it, or the weight is used elsewhere, too."""
        if self._patterns.has_lent(parameter) and not self._patterns.made(parameter, gradient):
            self._used_elsewhere.add(parameter)

    def made(self, parameter: nn.Parameter, gradient: Tensor) -> bool:
        """Whether this is the gradient that a stretch has returned, with nothing added to it."""
        return self._patterns.made(parameter, gradient)

    def masked(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """The gradient is zero outside M, whatever was written to it."""
        self._patterns.masked(parameter, gradient)

    def hold_z(self, parameter: nn.Parameter, key: int, threshold: int) -> Callable[[], Tensor] | None:
        """Switch entries off in the kernels alone, if only they are to read this weight; the positions, when asked.

        It saves the way through the dense tensors: weight, gradient and optimizer state stay as they are.
        """
        expected = parameter in self._alone and parameter not in self._used_elsewhere
        if not expected or not self._is_taken(self._model) or self._needs_dense():
            return None
        pattern = self._patterns.switch_off(parameter, key, threshold)
        self._held.add(parameter)
        return lambda: torch.from_numpy(pattern.switched_off())

    def end_step(self) -> None:
        self._patterns.end_step()
        self._held.clear()

    def _torch_reads(self, others_than: frozenset[nn.Parameter] = frozenset()) -> None:
        """All weights but these are about to be read by torch, which must see Z in them."""
        if wanted := self._held - others_than:
            self._needs_z(wanted)
            self._held -= wanted

    def begin_update(self, optimizer: Optimizer) -> None:
        """All gradients are masked, and the optimizer is about to step."""
        self._updates.begin(optimizer, self._patterns.computed())
        self._torch_reads(frozenset(parameter for parameter in self._held if self._updates.has(parameter)))

    def end_update(self, optimizer: Optimizer) -> None:
        self._updates.end(optimizer)

    def abandon_update(self) -> None:
        self._updates.restore()

    def _release(self) -> None:
        """Give up the memory of programs before a step in torch: activations are held once, not twice."""
        stretches = [stretch for network in self._networks.values() if network for stretch in network.stretches]
        for stretch in stretches:
            stretch.release()
        self._networks.clear()
        for layer in self._layers:
            layer.release()

    def _note(self, reason: str) -> None:
        """Why something runs masked: in the summary, and said once to somebody who insists."""
        if reason not in self.reasons:
            self.reasons[reason] = None
            if self._insist:
                warnings.warn(f"not everything runs on sparse kernels: {reason}.", CiglWarning, stacklevel=4)

    # Taking over

    def _take_over(self, module: nn.Module, choose: Callable[..., Forward | None]) -> None:
        """Let ``choose`` say what stands in for the module's forward; torch's own hooks and checks go on as ever.

        The attribute is the one that ``module.compile()`` uses: copies and pickles of the module leave it out.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._may_run(module):
                if module is self._model and module.training:
                    self._torch_reads()
                return module._call_impl(*args, **kwargs)
            own = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:  # with what the module's hooks have made of the arguments
                vars(module).pop("forward", None)
                return (choose(args, kwargs) or own)(*args, **kwargs)

            vars(module)["forward"] = forward
            try:
                return module._call_impl(*args, **kwargs)
            finally:
                vars(module).pop("forward", None)

        if module is self._model:  # torch.compile is for its forward; parts are traced with it
            call = torch.compiler.disable(call, recursive=False)
        module._compiled_call_impl = call
        self._taken[module] = call

    def _may_run(self, module: nn.Module) -> bool:
        if not module.training or torch.compiler.is_compiling() or torch._C._get_tracing_state():
            return False
        if self._needs_dense():
            self._release()
            return False
        if torch.is_autocast_enabled("cpu"):
            self._note("autocast: sparse kernels compute in float32")
            return False
        if torch._C._functorch.peek_interpreter_stack() is not None:
            self._note("torch.func transforms run in torch")
            return False
        if forward_ad._current_level >= 0:
            self._note("forward-mode derivatives are torch's")
            return False
        return "forward" not in vars(module)

    def _whole(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Forward | None:
        network, inputs = self._network(args, kwargs)
        self._alone = frozenset() if network is None else network.alone
        self._torch_reads(self._alone)
        if network is None:
            return None
        for stretch in network.stretches:
            self.sparse.update(stretch.parameters)
        return lambda *_, **__: network(inputs)  # as they were given

    def _network(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[StretchedModel | None, Sequence[Any]]:
        nothing: tuple[None, list[Any]] = (None, [])
        if any(now is not own for now, own in zip_longest(_parts(self._model), self._parts)):
            self._note("the model has other modules or parameters than at attach")
            return nothing
        if _has_any_global_hook():
            self._note("torch has global hooks on modules")
            return nothing
        traced = self._trace()
        if isinstance(traced, str):
            self._note(f"the forward can't be traced, only single layers run sparse ({traced})")
            return nothing
        inputs = arguments_of(traced.network, args, kwargs)
        if inputs is None or not all(_is_plain(each) for each in inputs):
            return nothing
        threads = torch.get_num_threads()
        key = (id(traced), tuple(each.shape for each in inputs), threads)
        if key not in self._networks:
            try:
                network = StretchedModel(traced, self._model, inputs, self._patterns, threads, self._insist)
            except Untraceable as error:
                self._note(f"the forward can't be traced, only single layers run sparse ({error})")
                network = None
            self._networks[key] = network if network and network.stretches else None
            if len(self._networks) > _SHAPES:
                self._networks.popitem(last=False)
        self._networks.move_to_end(key)
        return self._networks[key], inputs

    def _trace(self) -> TracedModel | str:
        """The model in its present mode, as it is traced."""
        modules = list(self._model.modules())
        settings = tuple(value for module in modules for value in vars(module).values() if type(value) in _PLAIN)
        hooks = tuple(
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) + len(m._backward_pre_hooks)
            for m in modules[1:]
        )
        patched = tuple("forward" in vars(module) for module in modules)
        kinds = tuple((p.requires_grad, p.stride(), p.dtype) for p in self._model.parameters())
        mode = (settings, hooks, patched, kinds)
        if mode not in self._traced:
            if len(self._traced) == _MODES:
                return "its settings change again and again"
            try:
                self._traced[mode] = TracedModel(self._model)
            except Untraceable as error:
                self._traced[mode] = str(error)
        return self._traced[mode]

    def _single(self, module: nn.Module) -> Callable[..., Forward | None]:
        layer = SingleLayer(module, self._patterns, self._insist)
        self._layers.append(layer)

        def choose(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Forward | None:
            if len(args) != 1 or kwargs or not _is_plain(args[0]):
                return None
            stretch = layer.stretch(args[0])
            if stretch is None:
                return None
            self.sparse.update(stretch.parameters)
            return lambda x: stretch(x)[0]

        return choose

    def _attention(self, module: nn.MultiheadAttention) -> Callable[..., Forward | None]:
        attention = SelfAttention(module, self._patterns, self._insist)
        self._layers += [attention.project, attention.out]

        def choose(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Forward | None:
            if not args or not _is_plain(args[0]) or not attention.fits(*args, **kwargs):
                return None
            if attention.project.stretch(args[0]) is None:
                return None
            self.sparse.update(module.parameters())
            return attention.forward

        return choose


def _parts(model: nn.Module) -> list[Any]:
    return [*model.modules(), *model.parameters()]


def _is_plain(x: Any) -> bool:
    return isinstance(x, Tensor) and type(x) in (Tensor, nn.Parameter) and x.dtype == torch.float32 and x.is_cpu


def _is_simple(conv: nn.Conv2d) -> bool:
    return conv.groups == 1 and tuple(conv.dilation) == (1, 1) and conv.padding_mode == "zeros"


def impossible(model: nn.Module, parameters: Sequence[nn.Parameter]) -> str:
    """Why none of these parameters can run on sparse kernels here, or nothing."""
    if not library.available():
        return library.reason().rstrip(".")
    weights = {id(parameter) for parameter in parameters}
    found = [module for module in model.modules() if type(module) in (nn.Linear, nn.Conv2d, nn.MultiheadAttention)]
    own = [m for m in found if any(id(parameter) in weights for parameter in m.parameters())]
    if not own:
        return "the model has no nn.Linear, nn.Conv2d or nn.MultiheadAttention among its sparse layers"
    if all(isinstance(m, nn.Conv2d) and not _is_simple(m) for m in own):
        return "all convolutions of the model have groups, dilation or another padding than zeros"
    elsewhere = next((p for m in own for p in m.parameters() if not (p.is_cpu and p.dtype == torch.float32)), None)
    if elsewhere is not None and not any(is_plain(module) for module in own):
        return f"sparse kernels compute in float32 on the CPU, and the model is {elsewhere.dtype} on {elsewhere.device}"
    return ""
