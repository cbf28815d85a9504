"""The command line: convert, read, check and repair conversations, and look after a ledger. Needs the extra `cli`."""

try:
    from antiphon.cli._app import app
except ModuleNotFoundError as exc:
    if str(exc.name).partition(".")[0] not in ("rich", "typer"):
        raise
    _MESSAGE = 'the command line needs Typer and Rich: pip install "antiphon[all]", or "antiphon[cli]" for work on files only'
    raise ModuleNotFoundError(_MESSAGE, name=exc.name) from exc

__all__ = ["app"]
