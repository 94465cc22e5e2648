"""A process that takes one run after another: `python -m cigl.study.worker THREADS`.

Orders come as lines of JSON on standard input, answers go out on standard output. The end of the input, whether the
engine closed it or was killed, is the request to stop: the current run is saved and the process ends.

Where the environment says so, it is one of the ranks that do each run together; rank 0 answers. A run that fails ends
them all, because one of them may be waiting for another.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cigl.train.trainer import Trainer


def main(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the engine is the one to act on it
    orders, answers = _take_over(0, os.O_RDONLY, "r"), _take_over(1, os.O_WRONLY, "w")
    waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders, waiting), daemon=True).start()

    import torch

    from cigl.common.errors import CiglError
    from cigl.study.work import do_order
    from cigl.train.ranks.rendezvous import joined
    from cigl.train.ranks.started import RanksEnded
    from cigl.train.signals import Stopped

    torch.set_num_threads(threads)

    def answer(content: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the engine is gone: the end of the orders says so too
            answers.write(json.dumps(content) + "\n")
            answers.flush()

    def progress(trainer: Trainer, row: dict[str, Any] | None) -> None:
        if row is not None:
            answer({"share": _share(trainer, order["config"])})

    code = 0
    try:
        with joined() as ranks:
            while (line := waiting.get()) is not None:
                order = json.loads(line)
                outcome = do_order(order, progress if ranks.is_main else None, ranks)
                if ranks.is_main:
                    answer(outcome)
                if ranks.size > 1 and outcome["state"] == "failed":
                    raise CiglError(outcome["message"])
    except Stopped:
        pass
    except RanksEnded as ended:
        code = ended.exit_code
        if str(ended):
            print(f"error: {ended}", file=sys.stderr)
    os._exit(code)  # all is saved; the listening thread may be in the middle of a read


def _take_over(number: int, mode: int, text: str) -> IO[str]:
    """Keep a standard stream for ourselves: what the run prints or its loaders close must not touch it."""
    stream = os.fdopen(os.dup(number), text)
    if mode == os.O_WRONLY:
        os.dup2(2, number)
    else:
        nothing = os.open(os.devnull, mode)
        os.dup2(nothing, number)
        os.close(nothing)
    return stream


def _listen(orders: IO[str], waiting: queue.SimpleQueue[str | None]) -> None:
    for line in orders:
        waiting.put(line)
    waiting.put(None)
    os.kill(os.getpid(), signal.SIGTERM)  # noted by a run, which saves itself; between runs it ends the process


def _share(trainer: Trainer, config: dict[str, Any]) -> float:
    """How much of the run is done; a pilot is its first half."""
    share = float(trainer.epoch / trainer.config.epochs)
    if config["temperature"] != "pilot":
        return share
    return share / 2 if trainer.config.temperature == "holdout" else (1 + share) / 2


if __name__ == "__main__":
    main(int(sys.argv[1]))
