"""`python -m cigl`, and `torchrun -m cigl train`: the command line."""

import sys

from cigl.cli import app
from cigl.train.started import is_first, wait_for_the_first

if is_first("node"):
    app(prog_name="cigl")
else:  # the first one says what is wrong with the options
    code = 2
    try:
        code = app(prog_name="cigl", standalone_mode=False) or 0
    except Exception as error:
        if not hasattr(error, "format_message"):  # not one of click's
            raise
        wait_for_the_first()
    sys.exit(code)
