"""The settings of a project: `poolproof.toml`, or the table `[tool.poolproof]` of `pyproject.toml`.

A key is the long name of an option. An option that is given on the command line wins over the file. Like the
command line itself, this imports nothing heavy.
"""

import json
import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

NAMES: Final = ("poolproof.toml", "pyproject.toml")
COMMANDS: Final = {
    "fuzz": (
        "subject", "max-time", "max-scenarios", "workers", "engine", "address", "hang-after", "memory-limit",
        "device", "sync-budget", "save", "ledger", "known", "report",
    ),
    "check": ("subject", "device", "sync-budget", "save", "ledger", "regressions", "known", "report"),
    "replay": ("device", "sync-budget"),
    "export": ("device",),
    "audit": ("subject", "device"),
    "releases": ("ledger",),
}  # fmt: skip
"""Which keys a command takes. A replay is of the subject that the finding names, whatever the file says."""


class SettingsError(ValueError):
    """Settings that can't be used; the message names the file and the key."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What a project always says on the command line; paths are relative to the file."""

    subject: Annotated[list[str], Meta(description="What to judge; each as for --subject.")] | UnsetType = UNSET
    max_time: Annotated[str, Meta(description="How long `poolproof fuzz` runs, such as 30s or 5m.")] | UnsetType = UNSET
    max_scenarios: (
        Annotated[int, Meta(ge=1, description="After how many scenarios `poolproof fuzz` stops.")] | UnsetType
    ) = UNSET
    workers: (
        Annotated[int, Meta(ge=0, description="How many processes share the work of `poolproof fuzz`.")] | UnsetType
    ) = UNSET
    engine: Annotated[Literal["local", "ray"], Meta(description="Where `poolproof fuzz` runs.")] | UnsetType = UNSET
    address: Annotated[str, Meta(description="The Ray cluster, as HOST:PORT.")] | UnsetType = UNSET
    hang_after: (
        Annotated[
            str, Meta(description="How long a scenario may take before it counts as one that hangs, such as 10s.")
        ]
        | UnsetType
    ) = UNSET
    memory_limit: (
        Annotated[str, Meta(description="How much memory a worker process may take, such as 4GB.")] | UnsetType
    ) = UNSET
    device: (
        Annotated[Literal["auto", "cpu", "cuda", "sim"], Meta(description="Where the hidden states lie.")] | UnsetType
    ) = UNSET
    sync_budget: Annotated[int, Meta(ge=0, description="How often a call may wait for the device.")] | UnsetType = UNSET
    save: Annotated[str, Meta(description="The directory where findings are kept.")] | UnsetType = UNSET
    ledger: (
        Annotated[str, Meta(description="The directory of the project's own ledger of known failures.")] | UnsetType
    ) = UNSET
    regressions: (
        Annotated[str, Meta(description="The directory of fixed scenarios that `poolproof check` runs.")] | UnsetType
    ) = UNSET
    known: Annotated[Literal["report", "allow"], Meta(description="Whether a known failure counts.")] | UnsetType = (
        UNSET
    )
    report: Annotated[list[str], Meta(description="Reports to write; each as for --report.")] | UnsetType = UNSET


class Found(msgspec.Struct, frozen=True):
    """Settings, and the file they are from."""

    path: Path
    settings: Settings

    def values(self) -> dict[str, Any]:
        """Value by key, as an option takes it, for each key that the file has; paths as seen from here."""
        values: dict[str, Any] = msgspec.to_builtins(self.settings)
        for key in {"save", "ledger", "regressions"} & set(values):
            values[key] = self._here(values[key])
        if "subject" in values:
            values["subject"] = [self._subject(spec) for spec in values["subject"]]
        if "report" in values:
            values["report"] = [self._report(report) for report in values["report"]]
        return values

    def _here(self, path: str) -> str:
        return os.path.relpath(self.path.parent / path)

    def _subject(self, spec: str) -> str:
        path, colon, name = spec.rpartition(":")
        if path.endswith(".py"):
            return f"{self._here(path)}{colon}{name}"
        product, at, path = spec.partition("@")
        return f"{product}@{self._here(path)}" if at else spec

    def _report(self, report: str) -> str:
        form, equals, path = report.partition("=")
        return f"{form}={self._here(path)}" if equals else report


def find(directory: Path) -> Found | None:
    """The settings of the nearest directory, from this one upwards, that has any.

    Raises:
        SettingsError: they can't be used; the message names the file and the key.
    """
    for place in (directory, *directory.parents):
        for name in NAMES:
            path = place / name
            if path.is_file() and (table := _table(path)) is not None:
                return Found(path, _settings(table, path))
    return None


def _table(path: Path) -> Any:
    """What a file says to us; None if it says nothing."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from None
    except OSError as error:
        raise SettingsError(f"{path} can't be read: {error}") from None
    if path.name == "pyproject.toml":
        tool = data.get("tool")
        return tool.get("poolproof") if isinstance(tool, dict) else None
    return data


def _settings(table: Any, path: Path) -> Settings:
    for key in table if isinstance(table, dict) else ():
        if key not in keys():
            nearest = get_close_matches(key, keys(), 1)
            told = f"did you mean {nearest[0]!r}?" if nearest else f"those there are: {', '.join(keys())}"
            raise SettingsError(f"{path}: there is no key {key!r}; {told}")
    try:
        return msgspec.convert(table, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: {error}") from None


def keys() -> dict[str, str]:
    """Each key, and what it means."""
    properties = msgspec.json.schema(Settings)["$defs"]["Settings"]["properties"]
    return {key: told["description"] for key, told in properties.items()}


def schema() -> str:
    """The JSON schema of `poolproof.toml`."""
    return json.dumps(msgspec.json.schema(Settings), indent=1) + "\n"
