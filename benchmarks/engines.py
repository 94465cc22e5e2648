"""Engines in turns, each in a process of its own: waiting threads of one must not take the cores from another.

Each keeps the memory that it frees, so that no time is that of the system handing out pages, and is warmed up until its
times settle.

A script calls ``serve`` when it is started with ``--serve ENGINE SPEC``, and ``in_turns`` otherwise.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from cigl.common.allocation import keep_freed_memory
from cigl.runtime.bench import Call, warm_up

TURN = 0.03  # seconds: what is faster is called several times in its turn
REST = 0.01  # seconds between turns, in which the threads of the one before fall asleep


def serve(call: Call, facts: dict[str, Any]) -> None:
    """In an engine's process: print the facts, then the seconds per call whenever a line asks for it."""
    keep_freed_memory()
    warm_up(call)
    start = time.perf_counter()
    call()
    repeats = max(1, int(TURN / (time.perf_counter() - start)))
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:
        call()  # finds its weights in memory, where the others left them; not counted
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        print((time.perf_counter() - start) / repeats, flush=True)


def in_turns(script: str, engines: Sequence[str], spec: dict[str, Any], seconds: float) -> dict[str, dict[str, Any]]:
    """Per engine its facts, and the median ``seconds`` of a call. One that can't run here is left out."""
    processes: dict[str, subprocess.Popen[str]] = {}
    found: dict[str, dict[str, Any]] = {}
    times: dict[str, list[float]] = {}
    try:
        for engine in engines:  # one after the other: ours times its layers when it starts
            process = processes[engine] = subprocess.Popen(
                [sys.executable, "-W", "ignore", script, "--serve", engine, json.dumps(spec)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert process.stdout is not None
            if line := process.stdout.readline():
                found[engine], times[engine] = json.loads(line), []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or min(map(len, times.values()), default=5) < 5:
            for engine, each in times.items():
                process = processes[engine]
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                each.append(float(process.stdout.readline()))
                time.sleep(REST)
    finally:
        for process in processes.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
    for engine, each in times.items():
        found[engine]["seconds"] = statistics.median(each)
    return found
