"""What a forward asks while torch.fx traces it that torch.fx answers wrongly, or once and for all.

torch.fx runs a forward once, with stand-ins in the place of tensors. What depends on the type of a value, on torch's
modes, on a variable outside of the model, on a state or on random numbers is then fixed in the graph, without an error.
So every such question is written down, and a forward with one has no graph.

Questions about a stand-in come to the stand-in (tracing.py). Others are seen as the interpreter runs the forward: the
instructions that load a name, and the functions in C that are called. What is the model's own is no question: the
engine has a copy, and nobody changes that.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import gc
import inspect
import linecache
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from cigl.runtime.compile.stepping import PREFIX, Stepping, Watched, instructions

_HERE = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_NUMPY = str(Path(np.__file__).parent)
_PYTHON = sysconfig.get_paths()["stdlib"]
# where torch.fx asks for itself, and a module does when an attribute is set
_FX = tuple(str(Path(_TORCH, file)) for file in ("fx", "overrides.py", "utils/_pytree.py", "nn/modules/module.py"))

_MODES = {
    getattr(torch, name)
    for name in ("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "is_autocast_cpu_enabled",
                 "get_autocast_dtype", "get_autocast_cpu_dtype", "get_autocast_gpu_dtype")
    if hasattr(torch, name)
}  # fmt: skip
_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum, property, type(...))
_OF_GRADIENTS = {"grad", "grad_fn", "_base"}  # which are None or not
_OBJECTS = {"dtype", "device", "layout"}
_NOWHERE = object()
_SKIPPED = {"PUSH_NULL", "PRECALL", "CACHE", "RESUME", "NOP", PREFIX, "MAKE_CELL", "COPY_FREE_VARS",
            "COPY", "DUP_TOP", "NOT_TAKEN"}  # fmt: skip
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_CELLS = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_FOLLOWED = {*_GLOBALS, *_CELLS, "LOAD_ATTR", "LOAD_METHOD"}


class Questions:
    """Those of one tracing, each as the end of a sentence that begins with "its forward"."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._loaded: set[str] = set()  # attributes of modules
        self._stepping = Stepping()

    def ask(self, what: str, frame: FrameType | None) -> None:
        self.asked.append(f"{what}{place(frame)}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While a forward is traced in this thread."""
        before, state, others = (sys.gettrace(), sys.getprofile()), torch.get_rng_state(), _random_states()
        collects = gc.isenabled()
        gc.disable()  # what it calls is no part of the forward
        with self._stepping:
            sys.setprofile(self._called)
            sys.settrace(self._entered)
            try:
                yield
            finally:
                watched = sys.gettrace() == self._entered and sys.getprofile() == self._called
                sys.settrace(before[0])
                sys.setprofile(before[1])
                if collects:
                    gc.enable()
        if not watched:
            self.ask("sets Python's trace or profile function", None)
        if not torch.equal(state, torch.get_rng_state()):
            torch.set_rng_state(state)
            self.ask("draws random numbers that don't come from its inputs", None)
        if others != _random_states():
            self.ask("draws random numbers that are not torch's", None)

    def _entered(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        """Python calls this for each function that is entered, and what it returns for each of its instructions."""
        if frame.f_code in _autocasts():
            self.ask("opens an autocast block", frame)
        if not is_own(frame.f_code) or _makes_a_namedtuple(frame):
            return None
        self._stepping.begin(frame)
        return _Loads(self)

    def _called(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "c_call":
            return
        whose = getattr(arg, "__self__", None)
        if _is_generator(whose):
            self.ask("draws random numbers that are not torch's", frame)
        elif is_own(frame.f_code) and isinstance(arg, type(len)) and arg in _MODES:
            self.ask(f"asks torch.{arg.__name__}()", frame)
        elif arg is globals and is_own(frame.f_code):
            self.ask("reads globals(), which may change", frame)

    def variable(self, name: str, value: Any, frame: FrameType) -> None:
        """A name outside of the model: what is defined once is no question."""
        constant = isinstance(value, _CONSTANTS) or (name.startswith("__") and name.endswith("__"))
        defined = isinstance(value, (ModuleType, fx.Proxy)) or callable(value) or name == "TYPE_CHECKING"
        if not constant and not defined:
            self.ask(f"reads {name}, which is outside of the model and may change", frame)

    def loaded(self, name: str, value: Any, frame: FrameType) -> None:
        """An attribute of a module."""
        self._loaded.add(name)
        if hasattr(type(value), "__next__") and not isinstance(value, fx.Proxy):
            self.ask(f"draws from {name}, a {type(value).__name__}", frame)

    def stored(self, name: str, frame: FrameType) -> None:
        if name in self._loaded:
            self.ask(f"changes {name}, which it has read before", frame)


class _Loads(Watched):
    """One call of a function: what its instructions load, followed from attribute to attribute."""

    def __init__(self, questions: Questions):
        self._questions = questions
        self._now: Any = _NOWHERE  # what the last instruction has loaded
        self._name = ""
        self._asker = ""  # type or callable, of which the argument is to come
        self._arguments: list[Any] = []  # what was loaded since; _NOWHERE is what we can't follow
        self._stored = ""  # a variable that the last instruction has set, and loaded
        self._imported = ""  # and one that it has set to a name of a module
        self._before = ""  # the last instruction
        self._prefixed: dis.Instruction | None = None
        self._stepped = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> _Loads:
        """Python calls this for what happens in the frame."""
        if event == "opcode":
            self.step(frame, frame.f_lasti)
        elif event == "return" and not self._stepped:  # a debugger may keep us from seeing anything
            self._questions.ask("can't be watched by Python's trace functions", frame)
        return self

    def step(self, frame: FrameType, offset: int) -> None:
        self._stepped = True
        instruction = instructions(frame.f_code).get(offset)
        seen, self._prefixed = self._prefixed, None
        if instruction is None or instruction is seen:  # with its prefix, just now
            return
        if instruction.offset != offset:
            self._prefixed = instruction
        if instruction.opname not in _SKIPPED:
            self._step(instruction.opname, instruction.argval, frame)

    def _step(self, kind: str, name: Any, frame: FrameType) -> None:
        self._settle(frame)
        before, self._now = self._now, _NOWHERE
        last, self._before = self._before, kind
        if self._asker and not (kind in _FOLLOWED or kind.startswith("LOAD_FAST")):
            self._about_type(kind, name, frame)
        if kind in _GLOBALS:
            self._global(kind, name, frame)
        elif kind in _CELLS:
            found = frame.f_locals.get(name, _NOWHERE)
            if found is not _NOWHERE and _is_from_outside(name, frame):
                self._questions.variable(name, found, frame)
            self._is_at(found, name, frame)
        elif kind == "STORE_FAST_LOAD_FAST":  # which has not happened yet, and may load what it stores
            self._stored = name[1]
        elif kind.startswith("LOAD_FAST"):
            for each in name if isinstance(name, tuple) else (name,):  # two in one instruction, from Python 3.13 on
                self._is_at(frame.f_locals.get(each, _NOWHERE), each, frame)
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            if before is not _NOWHERE:
                del self._arguments[-1:]
                self._is_at(self._attribute(before, name, frame), f"{self._name}.{name}", frame)
        elif kind in ("STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR"):
            self._questions.stored(name, frame)
        elif last == "IMPORT_FROM" and kind in ("STORE_FAST", "STORE_DEREF"):
            self._imported = name

    def _settle(self, frame: FrameType) -> None:
        """What is known of the last instruction only after it."""
        if self._stored:
            self._is_at(frame.f_locals.get(self._stored, _NOWHERE), self._stored, frame)
        if self._imported:
            self._questions.variable(self._imported, frame.f_locals.get(self._imported, _NOWHERE), frame)
        self._stored = self._imported = ""

    def _about_type(self, kind: str, count: Any, frame: FrameType) -> None:
        """Between the load of type or callable and its call: an argument that is computed may be a stand-in."""
        if kind.startswith("CALL"):
            known = len(self._arguments) == count == 1 and self._arguments[0] is not _NOWHERE
            if self._arguments and not known:
                self._questions.ask(f"asks for the type of a value, with {self._asker}", frame)
            self._asker = ""
        elif kind.startswith("STORE_") or kind in ("POP_TOP", "RETURN_VALUE", "IS_OP", "COMPARE_OP"):
            self._asker = ""
        elif kind.startswith("BUILD_") and isinstance(count, int) and count > len(self._arguments):
            self._asker = ""  # it is an item, as in isinstance(x, (type, str))
        else:
            self._arguments.append(_NOWHERE)

    def _global(self, kind: str, name: str, frame: FrameType) -> None:
        """In the body of a class, a name may be the body's own."""
        own = {} if kind == "LOAD_GLOBAL" or frame.f_locals is frame.f_globals else frame.f_locals
        found = own.get(name, _NOWHERE)
        if found is _NOWHERE:
            found = frame.f_globals.get(name, _NOWHERE)
            if found is not _NOWHERE:
                self._questions.variable(name, found, frame)
        if found is _NOWHERE:
            found = vars(builtins).get(name, _NOWHERE)
        self._is_at(found, name, frame)

    def _is_at(self, found: Any, name: str, frame: FrameType) -> None:
        if self._asker and isinstance(found, fx.Proxy):
            self._questions.ask(f"asks for the type of a value, {self._asker}({name})", frame)
            self._asker = ""
        whose = found.__self__ if isinstance(found, MethodType) else found
        if _is_generator(whose):
            self._questions.ask("draws random numbers that are not torch's", frame)
        if found is type or found is callable:
            self._asker, self._arguments = name, []
        elif self._asker:
            self._arguments.append(found)
        self._now, self._name = found, name

    def _attribute(self, owner: Any, name: str, frame: FrameType) -> Any:
        if isinstance(owner, fx.Proxy):
            return _NOWHERE
        if isinstance(owner, ModuleType):
            found = vars(owner).get(name, _NOWHERE)
            if found is not _NOWHERE and not _is_library(owner.__name__):
                self._questions.variable(f"{self._name}.{name}", found, frame)
            return found
        if isinstance(owner, type):
            return self._of_class(owner, name, frame)
        for own in (_vars(owner), *(_vars(owner).get(kind) or {} for kind in ("_parameters", "_buffers", "_modules"))):
            if name in own:
                self._questions.loaded(name, own[name], frame)
                return own[name]
        if isinstance(owner, nn.Module):
            self._questions._loaded.add(name)
            return self._of_class(type(owner), name, frame, plain=True)
        return _NOWHERE

    def _of_class(self, owner: type, name: str, frame: FrameType, plain: bool = False) -> Any:
        """A class is the same for all copies. Its plain values, read of a model, are taken for constants."""
        found = inspect.getattr_static(owner, name, _NOWHERE)
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        described = hasattr(type(found), "__get__") or found is _NOWHERE or isinstance(found, Tensor)
        if not described and not _is_library(owner.__module__) and not (plain and _is_plain(found)):
            self._questions.variable(f"{self._name}.{name}", found, frame)
        return _NOWHERE if described and not callable(found) else found


def is_own(code: CodeType) -> bool:
    """Whether code is neither Python's nor torch's nor numpy's nor that of the tracing."""
    return _is_own_file(code.co_filename)


@functools.cache
def _is_own_file(file: str) -> bool:
    if file.startswith((_TORCH, _NUMPY, _HERE, "<frozen", "<__array_function__")):
        return False
    return not file.startswith(_PYTHON) or "site-packages" in file or "dist-packages" in file


def _makes_a_namedtuple(frame: FrameType) -> bool:
    """Python writes a function for it, which has no file and reads nothing. torch.fx itself calls it."""
    name = str(frame.f_globals.get("__name__"))
    return frame.f_code.co_filename.startswith("<string") and name.startswith("namedtuple_")


def asker(frame: FrameType | None) -> FrameType | None:
    """The function that asks a stand-in, unless it is torch.fx itself."""
    while frame is not None and frame.f_code.co_name == "__instancecheck__":
        frame = frame.f_back
    return None if frame is None or frame.f_code.co_filename.startswith((*_FX, _HERE)) else frame


def about_attribute(name: str, frame: FrameType) -> str | None:
    """What a function asks that reads an attribute of a stand-in just now; None if it reads it to compute with it."""
    instruction = instructions(frame.f_code).get(frame.f_lasti)
    if instruction is None or instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
        return f"asks whether a value has {name!r}"  # with hasattr or getattr
    if name in _OF_GRADIENTS or (name in _OBJECTS and _compares_identity(frame.f_code)):
        return f"asks for {name!r} of a value"
    return None


def place(frame: FrameType | None) -> str:
    """The user's line, for a message."""
    while frame is not None and not is_own(frame.f_code):
        frame = frame.f_back
    if frame is None:
        return ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    return f" in {file}, line {line}: {linecache.getline(file, line).strip()}".rstrip(": ")


@functools.cache
def _autocasts() -> set[CodeType]:
    kinds = (torch.autocast, *torch.autocast.__subclasses__())
    return {vars(kind)["__enter__"].__code__ for kind in kinds if "__enter__" in vars(kind)}


@functools.lru_cache(maxsize=256)
def _compares_identity(code: CodeType) -> bool:
    """Whether it has an ``is`` with anything but a constant, as None."""
    found = [each for each in dis.get_instructions(code) if each.opname not in _SKIPPED]
    return any(b.opname == "IS_OP" and a.opname != "LOAD_CONST" for a, b in pairwise(found))


def _is_generator(whose: Any) -> bool:
    return isinstance(whose, (random.Random, np.random.Generator, np.random.RandomState, torch.Generator))


def _random_states() -> tuple[Any, ...]:
    """Of Python's and numpy's own generators, also where a function in C draws from them."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), name, np.asarray(keys).tobytes(), rest


def drawing() -> Callable[[], bool]:
    """Begin to look whether any of Python's and numpy's generators is drawn from, the model's own among them; then ask
    what this returns.
    """
    kinds = (random.Random, np.random.Generator, np.random.RandomState)
    found = [each for each in gc.get_objects() if issubclass(type(each), kinds)]  # no isinstance: proxies would answer
    states = [(each, _state(each)) for each in found if not isinstance(each, random.SystemRandom)]
    return lambda: any(_state(each) != state for each, state in states)


def _state(generator: Any) -> str:
    if isinstance(generator, random.Random):
        return str(generator.getstate())
    state = generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()
    with np.printoptions(threshold=sys.maxsize):
        return str(state)


def _is_from_outside(name: str, frame: FrameType) -> bool:
    """Whether a variable of an enclosing function is not one of a function that runs now."""
    if name == "__class__" or name in frame.f_code.co_cellvars:
        return False
    outer = frame.f_back
    while outer is not None and name not in outer.f_code.co_cellvars:
        outer = outer.f_back
    return outer is None or outer.f_locals.get(name, _NOWHERE) is not frame.f_locals.get(name)


def _is_library(module: str | None) -> bool:
    top = (module or "").partition(".")[0]
    return top in ("torch", "numpy", "builtins") or top in sys.stdlib_module_names


def _is_plain(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, complex, str, bytes, torch.Size)


def _vars(owner: Any) -> dict[str, Any]:
    return getattr(owner, "__dict__", {}) if not isinstance(owner, fx.Proxy) else {}
