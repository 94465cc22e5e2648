"""The memory allocator of the C library, told to keep what a training step will ask for again."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # malloc.h


def keep_freed_memory() -> bool:
    """Let freed memory stay with this process, and say whether the C library can be told so.

    glibc gives every large tensor back to the system when it is freed. The next step gets it back page by page, each
    one cleared by the system first, which takes up to a fifth of a step. Other C libraries don't, or can't be told.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library than glibc
        return False
    return bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_MMAP_MAX, 0))
