"""`python -m cigl`: the command line."""

from cigl.cli import app

app(prog_name="cigl")
