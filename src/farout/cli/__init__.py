"""The command line: one file a topic, a few lines a command.

What is heavy is imported where it is used, so that help is quick. A new file registers its commands by being named
in the import below.
"""

import shlex
import sys
from typing import Annotated

import typer

from farout.cli import bench, data_tools, look, main_job, see, serving, ship, tuning, worst_case
from farout.cli.app import app

__all__ = [
    "app",
    "bench",
    "data_tools",
    "look",
    "main",
    "main_job",
    "see",
    "serving",
    "ship",
    "tuning",
    "worst_case",
]


def _version(wanted: bool) -> None:
    if wanted:
        from farout import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    plugin: Annotated[
        list[str] | None,
        typer.Option(help="A Python file, or a module, with METHODS or SCORES of your own; also $FAROUT_PLUGINS."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command; `--debug` is read again in `main`, where errors arrive."""
    from farout.plugins import load_plugins

    load_plugins(plugin or ())


def main() -> None:
    """Run the command line: exit code 0, 1 (failed), 2 (wrong usage) or 130 (interrupted)."""
    from farout.errors import FaroutError

    try:
        app()
    except KeyboardInterrupt:
        _stop("interrupted", 130)
    except (FaroutError, ValueError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        if type(error).__name__ == "Interrupted":
            _stop(f"{error}. Continue with:\n  {_resume_command()}", 130)
        _stop(f"error: {error}", 1)


def _stop(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)


def _resume_command() -> str:
    arguments = sys.argv[1:]
    goes_on = "--resume" in arguments or _command(arguments) in ("demo", "compare", "reproduce", "tune")
    return shlex.join(["farout", *arguments, *([] if goes_on else ["--resume"])])


def _command(arguments: list[str]) -> str:
    """The first word that is neither an option nor the file of --plugin."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return next((word for before, word in pairs if before != "--plugin" and not word.startswith("-")), "")
