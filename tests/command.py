"""The command `poolproof` of this checkout, for scripts that find it on the path."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def install(directory: Path) -> None:
    """Put `poolproof`, and the `python` that runs it, into a directory for the path."""
    directory.mkdir()
    for name, arguments in (("poolproof", " -m fuzz"), ("python", "")):
        command = directory / name
        command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}"{arguments} "$@"\n')
        command.chmod(0o755)
