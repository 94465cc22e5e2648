"""``cigl``, ``python -m cigl`` and ``torchrun -m cigl train``: the command line, or how to install it."""

import sys


def main() -> None:
    try:
        from cigl.cli import app
        from cigl.train.started import is_first, wait_for_the_first
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == "cigl":
            raise
        sys.exit(f"error: the command line needs {library}, which is not installed: pip install 'cigl[cli]'.")
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
