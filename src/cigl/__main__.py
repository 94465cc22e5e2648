"""``cigl``, ``python -m cigl`` and ``torchrun -m cigl train``: the command line, or how to install it."""

import os
import sys
from typing import Any


def main() -> None:
    from cigl.common.interrupts import ends_at_once

    # Threads that wait for work must not take the cores from those that have some. Read when torch is imported.
    for name, value in (("OMP_WAIT_POLICY", "PASSIVE"), ("KMP_BLOCKTIME", "0")):
        os.environ.setdefault(name, value)
    try:
        with ends_at_once():
            from cigl.cli import app
            from cigl.train.ranks.started import exits_without_teardown
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == "cigl":
            raise
        sys.exit(f"error: the command line needs {library}, which is not installed: pip install 'cigl[cli]'.")
    with exits_without_teardown():
        _run(app)


def _run(app: Any) -> None:
    from cigl.train.ranks.started import is_first, wait_for_the_first

    if is_first("node"):
        app(prog_name="cigl")
        return
    code = 2  # the first one of the node says what is wrong with the options
    try:
        code = app(prog_name="cigl", standalone_mode=False) or 0
    except Exception as error:
        if not hasattr(error, "format_message"):  # not one of click's
            raise
        wait_for_the_first()
    sys.exit(code)


if __name__ == "__main__":
    main()
