"""How the ranks of a run meet, and how they end: together, with one sentence from one of them.

A rank that fails leaves the reason in the store that the ranks met through, and ends; the collectives of the others
then fail too, and the reason is found there. Where no reason was left, whoever left nothing at all has gone.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from torch import distributed

from cigl.errors import CiglError
from cigl.train.ranks import ONE, Ranks
from cigl.train.signals import Stopped, listening
from cigl.train.started import RanksEnded, started

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

PATIENCE = 3.0  # seconds for the others to leave their reasons, and for rank 0 to be the one that reports
MINUTES = 10.0  # that ranks wait for each other


@contextmanager
def joined(device: str = "cpu", minutes: float = MINUTES) -> Iterator[Ranks]:
    """The ranks that were started together, for the length of the block. Any error in it ends all of them."""
    mine = started()
    if mine.size == 1:
        yield ONE
        return
    ranks = Ranks(mine.rank, mine.size, mine.on_node)
    with listening():  # when one ends, torchrun sends SIGTERM to the others, who have a reason to look for
        store = _meet(ranks, device, timedelta(minutes=minutes))
        try:
            yield ranks
        except Stopped:
            raise
        except Exception as error:
            message, code = _reason(error)
            raise RanksEnded(_last_words(ranks, store, message), code) from error
        finally:
            with suppress(RuntimeError):  # the others may have gone
                distributed.destroy_process_group()


def _meet(ranks: Ranks, device: str, patience: timedelta) -> Store:
    from torch.distributed.distributed_c10d import PrefixStore  # not in every build of torch
    from torch.distributed.rendezvous import rendezvous

    where = ":".join(os.environ.get(name, f"({name} is not set)") for name in ("MASTER_ADDR", "MASTER_PORT"))
    try:
        store, _, _ = next(rendezvous("env://", timeout=patience))
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo",
            store=PrefixStore("group", store),
            rank=ranks.rank,
            world_size=ranks.size,
            timeout=patience,
        )
    except (ValueError, RuntimeError) as error:  # the latter are torch's network errors
        raise CiglError(
            f"rank {ranks.rank} of {ranks.size} could not meet the others at {where} "
            f"({' '.join(str(error).split())[:200]}): start all of them with torchrun."
        ) from error
    return PrefixStore("ends", store)


def _reason(error: Exception) -> tuple[str, int]:
    """What to say of it and the exit code; nothing where another rank must know."""
    if isinstance(error, CiglError):
        return str(error), 2
    if is_lost_connection(error):
        return "", 1
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or ''}", 1
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}", 1


def is_lost_connection(error: Exception) -> bool:
    """Whether a collective failed because of another rank, or waited for it in vain."""
    is_network_error = isinstance(error, getattr(distributed, "DistError", ()))
    return is_network_error or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _last_words(ranks: Ranks, store: Store, reason: str) -> str:
    """What this rank has to say; only one of them says something: rank 0, if it is still there."""
    try:
        store.set(str(ranks.rank), reason)
        end = time.monotonic() + (0 if ranks.is_main and reason else PATIENCE if ranks.is_main else 2 * PATIENCE)
        names = [str(rank) for rank in range(ranks.size)]
        while time.monotonic() < end and not store.check(["reported"]) and not (ranks.is_main and store.check(names)):
            time.sleep(0.05)
        if store.add("reported", 1) > 1:
            return ""
        left = {rank: store.get(name).decode() for rank, name in enumerate(names) if store.check([name])}
    except RuntimeError:  # the store was kept by rank 0, which has gone
        left = dict.fromkeys(range(1, ranks.size), "")
        if ranks.rank != 1:
            return ""
    if reason and ranks.is_main:
        return reason
    for rank, theirs in left.items():
        if theirs:
            return f"rank {rank}: {theirs}"
    gone = [str(rank) for rank in range(ranks.size) if rank not in left]
    who = f"rank {', '.join(gone)}" if gone else "a rank"
    return (
        f"{who} of {ranks.size} no longer answers: it was killed, ran out of memory, or its machine can't be reached. "
        "Resume the run from its last checkpoint with --resume."
    )
