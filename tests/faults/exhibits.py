"""What is shown: the entries of the ledger, reports that were false alarms, and what can't be shown here.

A fault's own file is its entry in the ledger, `fuzz/known`: it holds the words, the URL, the releases, the
scenarios and the contract, and ships, so that a user's run can name it. `beyond.json` lists the published
faults without an entry, each with the reason and, where there is one, the bad pooler of the zoo of its kind.
"""

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from packaging.specifiers import SpecifierSet

from fuzz.ledger import Known, shipped
from fuzz.releases import RELEASES
from tests.releases import FETCHED

HERE: Final = Path(__file__).parent
WHOLE: Final = "POOLPROOF_MUSEUM" in os.environ
"""Whether the museum is open as a whole: every release is on show, fetched if need be."""
ON_SHOW: Final = RELEASES if WHOLE else FETCHED


class Beyond(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A published fault that has no entry in the ledger."""

    id: str
    url: str
    title: str
    reason: Literal["older", "elsewhere", "unreleased", "no wrong result"]
    """older: no release that loads has it. elsewhere: it does not live in a pooler, its metadata or the worker's batch.
    unreleased: no release of vLLM has it. no wrong result: what it changed shows in no result."""
    why: Annotated[str, msgspec.Meta(min_length=1)]
    kin: str = ""
    """The bad pooler of the zoo that is of its kind, if one is."""


class FalseAlarm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A report of a fault where there was none."""

    id: str
    url: str
    title: str
    story: str
    releases: tuple[str, ...]
    scenario: msgspec.Raw


def faults() -> list[Known]:
    """The ledger's entries about pooling layers, whatever their kind."""
    return [entry for entry in shipped() if "vllm" in entry.products]


def beyond() -> list[Beyond]:
    """The published faults without an entry."""
    return msgspec.json.decode((HERE / "beyond.json").read_bytes(), type=list[Beyond])


def false_alarms() -> list[FalseAlarm]:
    """The reports that were false alarms."""
    return [
        msgspec.json.decode(path.read_bytes(), type=FalseAlarm) for path in sorted(HERE.glob("false-alarms/*.json"))
    ]


def with_and_without(entry: Known) -> tuple[list[str], list[str]]:
    """The releases on show that have the fault, and those that haven't."""
    having = [version for version in ON_SHOW if version in SpecifierSet(entry.releases)]
    return having, [version for version in ON_SHOW if version not in having]
