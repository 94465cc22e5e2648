"""The instructions of chosen frames, one by one as the interpreter comes to them, on every version of Python.

Up to Python 3.11, sys.settrace reports them as opcode events. From 3.12 on these begin at the second call of a function
or never, so sys.monitoring reports them: it can be turned on for a function that has just been entered.
"""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType, FrameType

PREFIX = "EXTENDED_ARG"


class Watched:
    """What a frame's f_trace is to be, so that the frame's instructions are reported to it."""

    def step(self, frame: FrameType, offset: int) -> None:
        """Before the instruction at an offset of the frame's code."""
        raise NotImplementedError


class Stepping:
    """Reports the instructions of the frames that were begun, while it is entered."""

    def __init__(self) -> None:
        self._tool: int | None = None
        self._codes: dict[int, CodeType] = {}  # by identity, as equal codes are watched apart

    def __enter__(self) -> Stepping:
        if sys.version_info >= (3, 12):
            free = [tool for tool in range(6) if sys.monitoring.get_tool(tool) is None]
            if free:
                self._tool = free[-1]  # debuggers and profilers have the first ones by convention
                sys.monitoring.use_tool_id(self._tool, "cigl")
                sys.monitoring.register_callback(self._tool, sys.monitoring.events.INSTRUCTION, _report)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.version_info >= (3, 12) and self._tool is not None:
            for code in self._codes.values():  # freeing a tool leaves its events on
                sys.monitoring.set_local_events(self._tool, code, 0)
            sys.monitoring.register_callback(self._tool, sys.monitoring.events.INSTRUCTION, None)
            sys.monitoring.free_tool_id(self._tool)
            self._tool = None
        self._codes.clear()

    def begin(self, frame: FrameType) -> None:
        """At a frame's call event. Without a free tool, nothing is reported."""
        frame.f_trace_lines = False
        if sys.version_info < (3, 12):
            frame.f_trace_opcodes = True
        elif self._tool is not None and id(frame.f_code) not in self._codes:
            self._codes[id(frame.f_code)] = frame.f_code
            sys.monitoring.set_local_events(self._tool, frame.f_code, sys.monitoring.events.INSTRUCTION)


def _report(code: CodeType, offset: int) -> None:
    """Python calls this in all threads: only frames that sys.settrace has given to us are watched."""
    frame = sys._getframe(1)
    if isinstance(frame.f_trace, Watched):
        frame.f_trace.step(frame, offset)


@functools.lru_cache(maxsize=256)
def instructions(code: CodeType) -> dict[int, dis.Instruction]:
    """By offset; at the offset of a prefix, the instruction that it belongs to.

    For Python up to 3.11 a prefix and its instruction are one step, at the prefix's offset. Later they are two.
    """
    found: dict[int, dis.Instruction] = {}
    prefixes: list[int] = []
    for each in dis.get_instructions(code):
        if each.opname == PREFIX:
            prefixes.append(each.offset)
        else:
            found.update(dict.fromkeys([*prefixes, each.offset], each))
            prefixes.clear()
    return found
