"""The ledger of known failures: what is broken, in which releases, by which scenario, and where it is published.

An entry is a file. Those under `fuzz/known` ship with the package and say what is known of vLLM; a project's own
lie where `poolproof corpus accept` puts them. A run first sees to it that each entry of its subject still
reproduces, then tells which of its findings an entry explains. Only a cause that needs no more than the
finding has explains it, so a wider fault of the same kind is told as new.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import torch
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from fuzz.cause import Cause, cause
from fuzz.start import run, runs_on
from fuzz.verdict import Judgement
from fuzz.world import as_called, supports
from impl.config import Subject
from oracle.device.ops import NAME as SIMULATED
from oracle.scenario import Scenario, ScenarioError, check_version, convert, from_builtins, parse_json

VERSION: Final = 1
Kind = Literal["fault", "limit", "demand"]
"""fault: it is wrong. limit: it serves nobody who hands it this. demand: we ask for more than its maker promises."""
Text = Annotated[str, msgspec.Meta(min_length=1)]
_NEWER_THAN_ALL: Final = "99999"


class _WitnessFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    contract: Text
    scenario: dict[str, Any]
    says: str = ""


class _KnownFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    title: Text
    kind: Kind
    product: Text | Annotated[list[Text], msgspec.Meta(min_length=1)]
    story: Text
    witnesses: Annotated[list[_WitnessFile], msgspec.Meta(min_length=1)]
    releases: str = ""
    url: str = ""
    device: Literal["cpu", "sim"] = "cpu"


@dataclass(frozen=True)
class Witness:
    """A scenario on which a known failure shows, and the contract that it breaks.

    `says` is part of the message, where the scenario may break the contract in other ways too.
    """

    contract: str
    scenario: Scenario
    says: str = ""


@dataclass(frozen=True)
class Known:
    """A failure that is known.

    `products` have it: `vllm`, `vllm-v1`, `vllm-v2`, or the SPEC of any other subject. `releases` is a
    version specifier, such as `>=0.20,<0.21`; empty: all. `device` is where it shows. `story` says what is
    wrong, in our own words; `url` where it is published, if it is.
    """

    name: str
    title: str
    kind: Kind
    products: tuple[str, ...]
    story: str
    witnesses: tuple[Witness, ...]
    releases: str = ""
    url: str = ""
    device: str = "cpu"

    def covers(self, subject: Subject) -> bool:
        """Whether the subject should have it; a checkout, whose version nobody knows, has what the newest has."""
        version = subject.version or _NEWER_THAN_ALL
        return subject.product in self.products and SpecifierSet(self.releases).contains(version, prereleases=True)


@dataclass(frozen=True)
class Recalled:
    """A known failure that a subject has indeed."""

    known: Known
    cause: Cause
    says: str

    def explains(self, seen: Cause, message: str) -> bool:
        """Whether a failure with that cause and message is this one."""
        return self.says in message and self.cause.explains(seen)


@dataclass(frozen=True)
class Missing:
    """A known failure that a subject should have but has not, with a sentence."""

    known: Known
    told: str


def shipped() -> list[Known]:
    """What the package knows."""
    return list(entries(Path(str(files("fuzz").joinpath("known")))))


def entries(directory: Path) -> Iterator[Known]:
    """The entries of a directory, by name; none where there is no directory.

    Raises:
        ScenarioError: a file is damaged; the message names it.
        OSError: a file can't be read.
    """
    for path in sorted(directory.glob("*.json")):
        try:
            yield read(path)
        except ScenarioError as error:
            raise ScenarioError(f"{path}: {error}") from None


def read(path: Path) -> Known:
    """One entry.

    Raises:
        ScenarioError: it is damaged, of another version, or holds an impossible value.
        OSError: it can't be read.
    """
    data = parse_json(path.read_bytes())
    check_version(data, VERSION, "the entry")
    kept = convert(data, _KnownFile)
    try:
        SpecifierSet(kept.releases)
    except InvalidSpecifier:
        told = f"{kept.releases!r} is no version specifier such as '>=0.20,<0.21'"
        raise ScenarioError(f"{told} - at `$.releases`") from None
    fields = msgspec.structs.asdict(kept)
    del fields["version"]
    product = fields.pop("product")
    witnesses = tuple(Witness(each.contract, from_builtins(each.scenario), each.says) for each in kept.witnesses)
    products = (product,) if isinstance(product, str) else tuple(product)
    return Known(name=path.stem, **(fields | {"products": products, "witnesses": witnesses}))


def recall(ledger: Sequence[Known], subject: Subject, device: torch.device) -> tuple[list[Recalled], list[Missing]]:
    """What of the ledger the subject has, and what it should have but has not."""
    there, missing = [], []
    simulated = device.type == SIMULATED
    for known in ledger:
        if not known.covers(subject) or (known.device == "sim" and not simulated):
            continue
        # On the simulated device a wait may come first, and end the scenario.
        owed = (known.device == "sim") == simulated
        for witness in known.witnesses:
            judgement = shown(witness, subject, device)
            if judgement is not None and shows(witness, judgement):
                own = as_called(subject, witness.scenario)
                there.append(Recalled(known, cause(subject.name, own, judgement), witness.says))
            elif judgement is None and owed:
                missing.append(Missing(known, f"{known.name}: {subject.name} doesn't serve its scenario"))
            elif judgement is not None and owed:
                seen = f"{judgement.contract or judgement.verdict.value}, not {witness.contract}"
                missing.append(Missing(known, f"{known.name} ({known.title}): {subject.name} shows {seen}"))
    return there, missing


def shown(witness: Witness, subject: Subject, device: torch.device) -> Judgement | None:
    """What a witness shows of a subject; None if the subject doesn't serve it."""
    scenario = as_called(subject, witness.scenario)
    if not (supports(subject, scenario) and runs_on(scenario, device)):
        return None
    return run(scenario, subject, device)


def shows(witness: Witness, judgement: Judgement) -> bool:
    """Whether the judgement is that the witness's contract is broken, and in the witness's way."""
    broken = judgement.verdict.is_finding and judgement.contract == witness.contract
    return broken and witness.says in judgement.message
