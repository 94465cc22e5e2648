"""Which of a run's processes this is: what torchrun says in the environment. Knows nothing of torch."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

from cigl.common.errors import CiglError

PATIENCE = 15.0  # seconds


class Started(NamedTuple):
    """A process as it was started: the only one, unless torchrun says otherwise."""

    rank: int = 0
    size: int = 1
    on_node: int = 0  # its number among the processes of this machine
    is_restarted: bool = False  # by torchrun, when it fails (--max-restarts)


class RanksEnded(CiglError):
    """All ranks end. The message is empty on all but one."""

    def __init__(self, message: str, exit_code: int = 1, arguments: Iterable[str] = ()):
        super().__init__(message, arguments=arguments)
        self.exit_code = exit_code


def started() -> Started:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_MAX_RESTARTS")
    given = [os.environ.get(name, default) for name, default in zip(names, "0100", strict=True)]
    if not all(text.isdecimal() for text in given) or not 0 <= int(given[0]) < int(given[1]):
        shown = ", ".join(f"{name}={os.environ.get(name, '(not set)')}" for name in names[:3])
        raise CiglError(f"the environment says {shown}: start the processes with torchrun, or unset these variables.")
    rank, size, on_node, restarts = map(int, given)
    if size > 1 and "RANK" not in os.environ:
        raise CiglError(f"the environment says WORLD_SIZE={size}, but no RANK: start the processes with torchrun.")
    return Started(rank, size, on_node, restarts > 0)


def is_first(of: Literal["node", "all"]) -> bool:
    """Whether this is the first process of its machine, or of all: those that report, each to its own terminal."""
    return os.environ.get({"node": "LOCAL_RANK", "all": "RANK"}[of], "0") == "0"


def wait_for_the_first() -> None:
    """Leave it the time to report: torchrun ends the others as soon as one has ended."""
    if not is_first("node"):
        time.sleep(PATIENCE)


@contextmanager
def exits_without_teardown() -> Iterator[None]:
    """One of several processes ends without taking the interpreter down, after all that others do at its exit.

    torch's communication threads may still need the interpreter then, and abort the process when they don't get it:
    torchrun would report a run that succeeded as failed.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield
        return
    code = 1

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)

    atexit.register(leave)  # before all others, so that it is called after them
    try:
        yield
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
