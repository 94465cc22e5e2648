"""How the ranks of a run meet, and how they end: together, with one sentence from one of them.

A rank that fails leaves the reason in the store that the ranks met through, and ends; the collectives of the others
then fail too, and find the reason there. Where there is none, the ranks are asked who is still there.
"""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import torch
from torch import distributed

from cigl.common.errors import CiglError
from cigl.common.text import one_line
from cigl.train.ranks.group import ONE, Ranks
from cigl.train.ranks.started import RanksEnded, started
from cigl.train.signals import Stopped, listening

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

PATIENCE = 3.0  # seconds in which a rank that is there answers
MINUTES = 10.0  # that ranks wait for each other
TICK = 0.05

Reason = tuple[str, tuple[str, ...]]  # a message and the arguments that it is about
_NONE: Reason = ("", ())


@contextmanager
def joined(minutes: float = MINUTES) -> Iterator[Ranks]:
    """The ranks that were started together, for the length of the block. Any error in it ends all of them."""
    mine = started()
    if mine.size == 1:
        yield ONE
        return
    ranks = Ranks(mine.rank, mine.size, mine.on_node)
    with listening():  # when one ends, torchrun sends SIGTERM to the others, who have a reason to look for
        store = _meet(ranks, timedelta(minutes=minutes))
        try:
            with _answering(ranks, store):
                yield ranks
        except Stopped:
            raise
        except Exception as error:
            reason, code = _reason(error)
            message, arguments = _last_words(ranks, store, reason)
            raise RanksEnded(message, code, arguments) from error
        finally:
            with suppress(RuntimeError):  # the others may have gone
                distributed.destroy_process_group()


def _meet(ranks: Ranks, patience: timedelta) -> Store:
    from torch.distributed.distributed_c10d import PrefixStore  # not in every build of torch
    from torch.distributed.rendezvous import rendezvous

    where = ":".join(os.environ.get(name, f"({name} is not set)") for name in ("MASTER_ADDR", "MASTER_PORT"))
    try:
        store, _, _ = next(rendezvous("env://", timeout=patience))
        store = PrefixStore(_attempt(ranks, store, patience), store)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore("group", store),
            rank=ranks.rank,
            world_size=ranks.size,
            timeout=patience,
        )
    except CiglError:
        raise
    except (ValueError, RuntimeError) as error:  # the latter are torch's network errors
        raise CiglError(
            f"rank {ranks.rank} of {ranks.size} could not meet the others at {where} "
            f"({one_line(error, 200)}): start all of them with torchrun."
        ) from error
    return store


def _attempt(ranks: Ranks, store: Store, patience: timedelta) -> str:
    """A name that these processes have in common, and no others that torchrun started before them.

    Its store outlives a restart, with the addresses of the processes before it (to which torch 2.13 would connect).
    """
    me = uuid4().hex
    if not ranks.is_main:
        store.set(f"hello/{ranks.rank}", me)
        found = store.get(f"answer/{me}").decode()
        store.set(f"met/{found}/{ranks.rank}", "")
        return found
    missing = list(range(1, ranks.size))
    end = time.monotonic() + patience.total_seconds()
    while missing := [rank for rank in missing if not store.check([f"met/{me}/{rank}"])]:
        for rank in missing:
            if store.check([f"hello/{rank}"]):  # perhaps of an earlier attempt, which nobody waits for an answer to
                store.set(f"answer/{store.get(f'hello/{rank}').decode()}", me)
        if time.monotonic() > end:
            minutes = patience.total_seconds() / 60
            raise CiglError(f"rank {_list(missing)} of {ranks.size} did not start within {minutes:g} minutes.")
        time.sleep(TICK)
    return me


@contextmanager
def _answering(ranks: Ranks, store: Store) -> Iterator[None]:
    """A rank that waits in a collective can't notice that another one has failed; a thread answers for it."""
    over = threading.Event()

    def answer() -> None:
        with suppress(RuntimeError):  # whoever kept the store has gone
            while not store.check(["asked"]):
                if over.wait(PATIENCE / 10):
                    return
            store.set(f"there/{ranks.rank}", "")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE)


def _reason(error: Exception) -> tuple[Reason, int]:
    """What to say of it and the exit code; nothing where another rank must know."""
    if isinstance(error, CiglError):
        return (str(error), error.arguments), 2
    if is_lost_connection(error):
        return _NONE, 1
    if isinstance(error, OSError):
        return (f"{error.strerror or error}: {error.filename or ''}", ()), 1
    return (f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}", ()), 1


def is_lost_connection(error: Exception) -> bool:
    """Whether a collective failed because of another rank, or waited for it in vain."""
    is_network_error = isinstance(error, getattr(distributed, "DistError", ()))
    return is_network_error or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _last_words(ranks: Ranks, store: Store, reason: Reason) -> Reason:
    """What this rank has to say. Only one says something: rank 0, if it is still there."""
    others = [rank for rank in range(ranks.size) if rank != ranks.rank]
    try:
        store.set(f"reason/{ranks.rank}", json.dumps(reason))
        store.set(f"there/{ranks.rank}", "")
        store.set("asked", "")
        if not (ranks.is_main and reason[0]):
            end = time.monotonic() + PATIENCE * (1 if ranks.is_main else 2)
            while time.monotonic() < end and not store.check(["reported"]):
                if ranks.is_main and any(_left(store, rank)[0] for rank in others):
                    break
                time.sleep(TICK)
        if store.add("reported", 1) > 1:
            return _NONE
        reasons = {rank: _left(store, rank) for rank in others}
        gone = [rank for rank in others if not store.check([f"there/{rank}"])]
    except RuntimeError:  # the store was kept by rank 0, which has gone
        if ranks.rank != 1:
            return _NONE
        reasons, gone = {}, [0]
    for rank, (message, arguments) in {ranks.rank: reason, **reasons}.items():
        if message:
            return message if rank == ranks.rank == 0 else f"rank {rank}: {message}", arguments
    who = f"rank {_list(gone)}" if gone else "a rank"
    return (
        f"{who} of {ranks.size} no longer answers: it was killed, ran out of memory, or its machine can't be reached. "
        "Resume the run from its last checkpoint with --resume.",
        (),
    )


def _left(store: Store, rank: int) -> Reason:
    return json.loads(store.get(f"reason/{rank}").decode()) if store.check([f"reason/{rank}"]) else _NONE


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
