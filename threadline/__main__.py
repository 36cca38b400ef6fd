"""`python -m threadline` is the `threadline` command."""

from threadline.cli import app

app()
