"""Makes docs/reference.md and the JSON schemas beside it from the code: `python -m docs.reference`."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from fuzz import settings
from fuzz.campaign import EXIT_CODES
from fuzz.cli import main as poolproof
from fuzz.reports import as_json
from oracle.contracts import all_contracts

DOCS: Final = Path(__file__).parent
ENDINGS: Final = {
    "holds": "every contract held, or what is broken is known and `--known allow` says so",
    "skipped": "nothing that bears on the subject has changed since the commit of `--since`",
    "violates": "a contract is broken",
    "error": "it could not run, or not all of it: bad usage, no such subject or device, a ledger out of date",
    "inconclusive": "nothing was compared, a feature of the mix never came up, or a checker failed",
}


def files() -> dict[Path, str]:
    """What is made, by path."""
    return {
        DOCS / "reference.md": "\n".join(_reference()) + "\n",
        DOCS / "report.schema.json": as_json.schema(),
        DOCS / "settings.schema.json": settings.schema(),
    }


def _reference() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "Made by `python -m docs.reference`; don't edit it."
    yield ""
    yield "## Commands"
    context = click.Context(poolproof, info_name="poolproof")
    for name, command in _commands(poolproof, "poolproof"):
        yield ""
        yield f"### {name}"
        yield ""
        yield from _wrapped(command.help or "")
        shown = [param for param in command.params if isinstance(param, click.Option)]
        usage = " ".join(command.collect_usage_pieces(context))
        yield ""
        yield f"`{name} {usage}`"
        if shown:
            yield ""
        for option in shown:
            yield from _option(option)
    yield ""
    yield "## Settings"
    yield ""
    yield from _wrapped(
        "`poolproof.toml`, or the table `[tool.poolproof]` of `pyproject.toml`, of the working directory or the "
        "nearest one above that has either; of two in one directory, the former. Paths are relative to the file. The "
        "command line wins. [Schema](settings.schema.json)."
    )
    yield ""
    yield "| key | meaning | taken by |"
    yield "|---|---|---|"
    for key, meaning in settings.keys().items():
        takers = ", ".join(f"`{command}`" for command, keys in settings.COMMANDS.items() if key in keys)
        yield f"| `{key}` | {meaning} | {takers} |"
    yield ""
    yield "## Verdicts and exit statuses"
    yield ""
    yield "| verdict | status | meaning |"
    yield "|---|---|---|"
    for verdict, code in EXIT_CODES.items():
        yield f"| {verdict} | {code} | {ENDINGS[verdict]} |"
    yield ""
    yield "## Environment"
    yield ""
    yield "| variable | meaning |"
    yield "|---|---|"
    yield "| `POOLPROOF_CACHE` | where sources of vLLM releases are kept, instead of the user's cache directory |"
    yield "| `POOLPROOF_GUARD` | in a vLLM process: `raise` or `report`, what becomes of a broken contract |"
    yield "| `NO_COLOR` | no colour in the terminal |"
    yield ""
    yield "## Contracts"
    yield ""
    yield from _wrapped(
        "Those marked *before* are the caller's duty (scheduler, batch, metadata), those marked *after* the pooler's; "
        "*between* compares runs."
    )
    for contract in all_contracts():
        yield ""
        yield f"### {contract.name}"
        yield ""
        yield from _wrapped(f"*{contract.phase}.* {contract.rule}")
        yield ""
        yield from _wrapped(f"Why: {contract.why}")
        yield ""
        yield from _wrapped(f"Without it: {contract.without}")


def _commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Every command by its whole name, groups after their own commands' place in the alphabet."""
    for own, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from _commands(command, f"{name} {own}")
        else:
            yield f"{name} {own}", command


def _option(option: click.Option) -> Iterator[str]:
    if isinstance(option.type, click.Choice):
        value = f" {'|'.join(option.type.choices)}"
    else:
        value = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    default = option.default if option.show_default else None
    told = f"- `{option.opts[-1]}{value}`: {option.help}" + (f" Default: `{default}`." if default is not None else "")
    yield from _wrapped(told, "  ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 118, subsequent_indent=indent, break_on_hyphens=False)


def main() -> None:
    """Write it all."""
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
