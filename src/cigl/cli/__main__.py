from cigl.cli import app

app()
