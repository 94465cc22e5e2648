"""A model's training forward on sparse kernels, wherever a fixed rule says that they are faster.

The model's call is taken over: while it runs, what TorchDynamo has captured stands in for ``forward``, with all hooks
around it as usual. What can't be captured runs in torch, with single layers taken over in the same way. Parameters stay
dense tensors, where they are.
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor, fx, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from cigl.common.errors import CiglError, CiglWarning
from cigl.runtime.compile.tracing import hooked
from cigl.runtime.program import library
from cigl.runtime.training.capture.calls import Forward, TakenCalls, forward_of
from cigl.runtime.training.capture.dynamo import Capture, Mode, NotCaptured
from cigl.runtime.training.network import is_plain
from cigl.runtime.training.plans import Plans
from cigl.runtime.training.rule import may_be_worth
from cigl.runtime.training.single import SelfAttention, SingleLayer
from cigl.runtime.training.subgraph import Subgraph
from cigl.runtime.training.updates import ActiveUpdates
from cigl.runtime.training.verify import Budget, NotDifferentiable, Replay
from cigl.runtime.training.weights import Patterns, Positions

_log = logging.getLogger("cigl")


class TrainingKernels:
    """Runs a model's training steps on sparse kernels.

    ``active`` gives the active positions of each sparse parameter. ``needs_dense`` says of the step under way whether
    torch must compute it, for its dense gradient. ``needs_z`` is called before torch reads a weight whose Z is held
    here. ``insist`` takes sparse kernels also where they are slower. ``uncounted`` takes hooks away that are there for
    the first step alone.
    """

    def __init__(
        self,
        model: nn.Module,
        active: Mapping[nn.Parameter, Callable[[], Positions]],
        needs_dense: Callable[[], bool],
        needs_z: Callable[[Collection[nn.Parameter]], None],
        insist: bool,
        uncounted: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        self._uncounted = uncounted
        self._model, self._needs_dense, self._needs_z, self._insist = model, needs_dense, needs_z, insist
        self._weights = sum(parameter.numel() for parameter in active)
        self._patterns, self._updates, self._calls = Patterns(active), ActiveUpdates(), TakenCalls()
        self._budget = Budget()
        self._plans = Plans(model, self._patterns, insist, self._refused, self._unreadable, self._budget)
        self._capture: Capture | None = None  # made when it is first needed: it imports torch's compiler
        self._graphs: list[fx.GraphModule] = []  # kept, because plans know them by their id
        self._layers: dict[nn.Module, Sequence[SingleLayer]] = {}
        self._compared_layers: set[nn.Parameter] = set()  # of those that have run by themselves
        self._is_computing = False  # a forward of the whole model is under way that may run on kernels
        self._is_observing = False  # a graph is wanted, and not what it computes
        self._is_whole = False  # a forward is under way that is one graph, unless Dynamo finds otherwise
        self._replay: Replay | None = None
        self._alone: frozenset[nn.Parameter] = frozenset()  # what torch did not read in the last forward of the model
        self._used_elsewhere: set[nn.Parameter] = set()  # by the loss: a penalty on the weights themselves, say
        self._held: set[nn.Parameter] = set()  # whose Z is held here
        self.is_comparing = False  # gradients that arrive now are not the user's
        self.sparse: set[nn.Parameter] = set()  # that ran on sparse kernels so far
        self.reasons: dict[str, None] = {}  # why something ran masked
        self.instructions = library.isa()
        try:
            self._take_over_modules()
        except BaseException:  # all of them, or none
            self.remove()
            raise

    def _take_over_modules(self) -> None:
        if self._model._compiled_call_impl is not None:
            self._say_compiled()
            return
        for module in self._model.modules():
            if module._compiled_call_impl is not None:
                self._note("a part of the model was compiled with module.compile(), and runs as dense layers")
            elif type(module) in (nn.Linear, nn.Conv2d):
                self._take_over(module, self._single(module))
            elif type(module) is nn.MultiheadAttention:
                self._take_over(module, self._attention(module))
            elif module is self._model:
                self._calls.take(module, self._root_call, is_root=True)

    def on_forward(self) -> None:
        """A training forward of the model begins, perhaps past our call of it."""
        if not self._calls.has(self._model):
            self._say_compiled()

    def _say_compiled(self) -> None:
        what = "model.compile() runs the model as dense layers, so nothing runs on sparse kernels"
        if self._insist:
            raise CiglError(
                f"kernels='sparse' is not possible: {what}; leave it out, or use kernels='auto'.",
                arguments=("kernels",),
            )
        self._refused(what)

    def remove(self) -> None:
        """Give every module its own call back."""
        self._calls.remove()

    def topology_changed(self) -> None:
        """Read the patterns again before the next forward."""
        self._patterns.changed()
        self._release()

    # Gradients and Z

    def on_gradient(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """A gradient is complete: nothing but the kernels had a part in it, or the weight is used elsewhere, too."""
        if self._patterns.has_lent(parameter) and not self._patterns.made(parameter, gradient):
            self._used_elsewhere.add(parameter)

    def made(self, parameter: nn.Parameter, gradient: Tensor) -> bool:
        """Whether this is the gradient that a subgraph has returned, with nothing added to it."""
        return self._patterns.made(parameter, gradient)

    def masked(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """The gradient is zero outside M, whatever was written to it."""
        self._patterns.masked(parameter, gradient)

    def hold_z(self, parameter: nn.Parameter, key: int, threshold: int) -> bool:
        """Switch entries off in the kernels alone, if only they are to read this weight.

        It saves the way through the dense tensors: weight, gradient and optimizer state stay as they are. Who may read
        it besides is known of a forward that is one graph, and where no hook of the user's runs around it.
        """
        expected = parameter in self._alone and parameter not in self._used_elsewhere
        if not expected or not self._is_computing or hooked(self._model):
            return False
        self._patterns.switch_off(parameter, key, threshold)
        self._held.add(parameter)
        return True

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
        self._compare_replay()
        self._updates.begin(optimizer, self._patterns.computed())
        self._torch_reads(frozenset(parameter for parameter in self._held if self._updates.has(parameter)))

    def end_update(self, optimizer: Optimizer) -> None:
        self._updates.end(optimizer)

    def abandon_update(self) -> None:
        self._updates.restore()

    # The whole model

    def _root_call(self, *args: Any, **kwargs: Any) -> Any:
        """Decides who computes this forward, before Z is drawn for it: torch, also as the user compiled it, or we."""
        ours = self._decides(args, kwargs)
        return (self._computes if ours else self._model._call_impl)(*args, **kwargs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _decides(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        if self._model.training and self._may_run(self._model) and self._is_worth(args, kwargs):
            return True
        if self._model.training:
            self._torch_reads()
        return False

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _computes(self, *args: Any, **kwargs: Any) -> Any:
        model, dense = self._model, self._needs_dense()
        if dense:
            self._torch_reads()
            self._release()
        self._is_computing = not dense
        try:
            with forward_of(model, self._in_torch if dense else self._on_kernels):
                return model._call_impl(*args, **kwargs)
        finally:
            self._is_computing = False

    def _on_kernels(self, own: Forward, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The forward, by what was captured of it."""
        capture = self._captured()
        if capture.mode is Mode.WHOLE:
            try:
                self._is_whole = True
                with self._calls.given_back(self._layers):
                    return capture.whole(*args, **kwargs)
            except NotCaptured as reason:
                self._is_whole = False
                self._uncaptured()
                result = self._in_parts(capture, own, args, kwargs)
                # not earlier: the user's own errors come from there, and say nothing about the next call
                capture.mode = Mode.PARTS if capture.mode is Mode.WHOLE else capture.mode
                self._note_mode(capture, reason)
                return result
            finally:
                self._is_whole = False
        self._uncaptured()
        return self._in_parts(capture, own, args, kwargs)

    def _unreadable(self, reason: str) -> None:
        """Rather single layers on kernels than a graph that torch runs as it is."""
        self._captured().mode = Mode.LAYERS
        self._note_mode(self._captured(), reason)

    def _note_mode(self, capture: Capture, reason: Exception | str) -> None:
        how = "in parts" if capture.mode is Mode.PARTS else "layer by layer"
        self._note(f"the forward can't be captured as a whole, and runs {how} ({reason})")

    def _in_parts(self, capture: Capture, own: Forward, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return (own if capture.mode is Mode.LAYERS else capture.parts)(*args, **kwargs)

    def _captured(self) -> Capture:
        if self._capture is None:
            self._capture = Capture(self._model, self._runner, self._uncaptured)
        return self._capture

    def _runner(self, graph: fx.GraphModule) -> Callable[..., Any]:
        """What Dynamo keeps for as long as it likes: it must not keep the model."""
        run = WeakMethod(self._run_graph)
        self._graphs.append(graph)
        self._budget.is_owed = True  # compare the capture, too, in the next step that torch computes

        def call(*args: Any) -> Any:
            found = run()
            return graph.forward(*args) if found is None else found(graph, args)

        undisturbed: Callable[..., Any] = torch.compiler.disable(call)
        return undisturbed

    def _run_graph(self, graph: fx.GraphModule, args: Sequence[Any]) -> Any:
        if self._is_observing:
            raise _Observed(graph, args)
        is_whole = self._is_whole
        # checkpoints compute a part again in the backward, outside of Dynamo, and compare what is saved
        plan = self._plans.of(graph, args) if is_whole or not _saves_by_hooks() else None
        if plan is None:
            self._uncaptured()
            return graph.forward(*args)
        is_compared = not self._plans.is_due(plan, everything=self._budget.allows())
        self._alone = plan.alone if is_whole and is_compared else frozenset()
        self._torch_reads(self._alone)
        for subgraph in plan.subgraphs:
            subgraph.check = None if is_compared else self._plans.check
            self.sparse.update(subgraph.parameters)
        return plan(args)

    def _uncaptured(self) -> None:
        """Torch is about to compute a forward, or a part of it."""
        if self._is_observing:
            raise _LeftToPython
        self._alone = frozenset()
        self._torch_reads()

    # Comparing with torch

    def _in_torch(self, own: Forward, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A step that torch computes anyway; from time to time on kernels, too, before the weights move."""
        with self._budget.spending():
            self._replay, replay = None, self._new_replay(args, kwargs)
        result = own(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                leaf.register_hook(self._notice_second_derivatives)
        if replay is not None:
            self.is_comparing = True
            try:
                with self._budget.spending():
                    replay.torch_computed(result)
                self._replay = replay
            except NotDifferentiable as error:
                _log.info("a step could not be compared: %s", error)
            finally:
                self.is_comparing = False
        return result

    def _notice_second_derivatives(self, _: Tensor) -> None:
        if torch.is_grad_enabled():  # create_graph=True
            self._patterns.second_derivatives = True

    def _new_replay(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Replay | None:
        if not self._budget.allows() or not torch.is_grad_enabled() or _saves_by_hooks():
            return None
        self._budget.is_owed = False
        if self._captured().mode is not Mode.WHOLE:
            self._plans.compare_again()
            return None
        observed = self._observed(args, kwargs)
        plan = None if observed is None else self._plans.of(observed.graph, observed.inputs)
        if observed is None or plan is None:
            return None
        return Replay(plan, observed.graph, observed.inputs, self._patterns, self._model)

    def _observed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Observed | None:
        """The graph of a call and its inputs, without running it."""
        drawn = random.getstate()
        self._is_observing = True
        try:
            with self._uncounted(), self._calls.given_back(self._layers):
                self._captured().whole(*args, **kwargs)
        except _Observed as found:
            return found
        except _LeftToPython:
            pass
        except NotCaptured as reason:
            if self._captured().mode is Mode.LAYERS:  # else the next call finds out, and says it
                self._note_mode(self._captured(), reason)
        finally:
            self._is_observing = False
            random.setstate(drawn)
        return None

    def _compare_replay(self) -> None:
        replay, self._replay = self._replay, None
        if replay is None or not replay.is_possible:
            return
        try:
            with self._patterns.apart(), self._budget.spending():
                found = replay.difference()
        except Exception as error:  # what can't be compared is not used
            found = f"the model on sparse kernels can't be compared with torch ({error!r})"
        if found is None:
            self._plans.was_compared(replay.plan)
        else:
            self._captured().mode = Mode.LAYERS
            self._refused(f"{found}, so its layers run one by one")

    # Single layers

    def _take_over(self, module: nn.Module, choose: Callable[..., Forward | None]) -> None:
        """Let ``choose`` say what stands in for the module's forward; torch's own hooks and checks go on as ever."""

        def forward(own: Forward, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            return (choose(args, kwargs) or own)(*args, **kwargs)

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def run(*args: Any, **kwargs: Any) -> Any:
            if not module.training or not self._may_run(module) or self._needs_dense():
                return module._call_impl(*args, **kwargs)
            with forward_of(module, forward):
                return module._call_impl(*args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            return (module._call_impl if torch.compiler.is_compiling() else run)(*args, **kwargs)

        self._calls.take(module, call, is_root=module is self._model)

    def _single(self, module: nn.Module) -> Callable[..., Forward | None]:
        layer = SingleLayer(module, self._patterns, self._insist)
        self._layers[module] = [layer]

        def choose(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Forward | None:
            if len(args) != 1 or kwargs or not _is_plain(args[0]):
                return None
            subgraph = self._allowed(layer.subgraph(args[0]))
            if subgraph is None:
                return None
            own = module.forward
            return lambda x: own(x) if (found := subgraph.run([x])) is None else found[0]

        return choose

    def _attention(self, module: nn.MultiheadAttention) -> Callable[..., Forward | None]:
        attention = SelfAttention(module, self._patterns, self._insist, self._allowed)
        self._layers[module] = [attention.project, attention.out]

        def choose(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Forward | None:
            if not args or not _is_plain(args[0]) or not attention.fits(*args, **kwargs):
                return None
            return attention.forward if self._allowed(attention.project.subgraph(args[0])) is not None else None

        return choose

    def _allowed(self, subgraph: Subgraph | None) -> Subgraph | None:
        """A layer's subgraph, unless it has computed something else than torch; compared in its first step."""
        if subgraph is None or not all(map(self._plans.may_run, subgraph.parameters)):
            return None
        weight = subgraph.parameters[0]
        subgraph.check = None if weight in self._compared_layers else self._plans.check
        if torch.is_grad_enabled():
            self._compared_layers.add(weight)
        self.sparse.update(subgraph.parameters)
        return subgraph

    # Conditions

    def _may_run(self, module: nn.Module) -> bool:
        if torch.compiler.is_compiling() or torch._C._get_tracing_state():
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
        if _has_any_global_hook():
            self._note("torch has global hooks on modules")
            return False
        return "forward" not in vars(module)

    def _is_worth(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call may have enough work for kernels; else there is no need to capture it."""
        if self._insist:
            return True
        plain = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        leaves = args if plain else pytree.tree_leaves((args, kwargs))
        return may_be_worth(self._weights, [leaf for leaf in leaves if isinstance(leaf, Tensor)])

    def _release(self) -> None:
        """Give up the memory of programs before a step in torch: activations are held once, not twice."""
        self._plans.release()
        for layers in self._layers.values():
            for layer in layers:
                layer.release()

    def _note(self, reason: str) -> None:
        """Why something runs masked: in the summary, and said once to somebody who insists."""
        if reason not in self.reasons:
            self.reasons[reason] = None
            if self._insist:
                warnings.warn(f"not everything runs on sparse kernels: {reason}.", CiglWarning, stacklevel=4)

    def _refused(self, reason: str) -> None:
        """Something is not as it should be: said to everybody, once."""
        if reason not in self.reasons:
            self.reasons[reason] = None
            warnings.warn(f"{reason}.", CiglWarning, stacklevel=4)


class _Observed(Exception):
    """A graph that was about to run, and its inputs."""

    def __init__(self, graph: fx.GraphModule, inputs: Sequence[Any]):
        super().__init__()
        self.graph, self.inputs = graph, inputs


class _LeftToPython(Exception):
    """Dynamo runs no graph for this call."""


def _saves_by_hooks() -> bool:
    """Whether what torch saves for the backward goes through somebody's hooks: checkpointing, offloading."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _is_plain(x: Any) -> bool:
    return isinstance(x, Tensor) and type(x) in (Tensor, nn.Parameter) and x.dtype == torch.float32 and x.is_cpu


def _is_simple(conv: nn.Conv2d) -> bool:
    return conv.groups == 1 and tuple(conv.dilation) == (1, 1) and conv.padding_mode == "zeros"


def unsupported_reason(model: nn.Module, parameters: Sequence[nn.Parameter]) -> str:
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
