"""When failures are taken to have one cause: what shows, where in the subject's code, and what it takes.

A small failing scenario is stripped of all that the fault can do without, so what is left of its
features is what it takes. A failure on a scenario that has all of that is explained by it; one that lacks
some of it must have another cause. So one fault is told once and two faults are told as two, unless what
it takes to show one is part of what it takes to show the other, in the same pooling type.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

import msgspec

from fuzz.features import departures, features
from fuzz.verdict import Judgement
from oracle.scenario import Scenario

WRONG_ROWS: Final = frozenset(("row-count", "values"))
"""Contracts that one slip in cutting the rows breaks by turns, as the schedule has it."""
PLAIN: Final = frozenset((
    "level method", "rows group", "float32", "index int32", "content exact", "task embed", "task token_embed",
    "ALL", "STEP", "CLS", "LAST", "MEAN",
))  # fmt: skip
"""Features that the plainest scenario has; the pooling type is compared by itself."""
SIZES: Final = (2, 3, 4, 8)
"""Numbers of requests and of tokens that a fault may take."""


@dataclass(frozen=True)
class Cause:
    """What is known of why a scenario fails on a subject."""

    subject: str
    symptom: str
    """The contract, or that rows are wrong."""
    pooling_type: str
    """Of the request whose rows are wrong, or of the call; empty where a whole pooler is at fault."""
    raised_at: str
    """File and line at which the subject raised, if it did."""
    needs: frozenset[str]
    """Features of the scenario that the plainest one lacks."""

    def explains(self, other: "Cause") -> bool:
        """Whether a failure with the other cause is no news."""
        if (self.subject, self.symptom) != (other.subject, other.symptom):
            return False
        if self.raised_at or other.raised_at:
            return self.raised_at == other.raised_at
        return self.pooling_type == other.pooling_type and self.needs <= other.needs


def cause(subject: str, scenario: Scenario, judgement: Judgement) -> Cause:
    """Why a scenario fails on a subject, as far as can be known."""
    blame = judgement.blame
    broken = judgement.beneath or judgement.contract
    pooling_type = judgement.pooling_type
    if blame is not None and scenario.traffic is None:
        # What is wrong in an engine lies around the pooler as a rule, whatever it pools.
        pooling_type = next(scenario.pooling_type(own) for own in scenario.requests if own.name == blame.request)
    return Cause(
        subject=subject,
        symptom="wrong rows" if broken in WRONG_ROWS else broken,
        pooling_type=pooling_type,
        raised_at=judgement.place if judgement.verdict.raises else "",
        needs=frozenset(features(scenario) | set(_details(scenario))) - PLAIN,
    )


def fingerprint(scenario: Scenario) -> str:
    """Eight hex digits that change with anything in the scenario."""
    return hashlib.sha256(msgspec.json.encode(scenario)).hexdigest()[:8]


def _details(scenario: Scenario) -> list[str]:
    """What else a fault may take, beyond the features that a campaign counts."""
    options, requests = scenario.options, scenario.requests
    # A subject may need a head dtype to be given at all; float32 is then the plainest.
    head = [(name, value) for name, value in departures(options.head) if (name, value) != ("head_dtype", "float32")]
    # What is subtracted or divided by is one number as good as another.
    found = [name if name.startswith("logit_") else f"{name} {value}" for name, value in head]
    found += ["a head dtype"] if options.head.head_dtype is not None else []
    found += [name for name, _ in departures(options.model)] if options.model else []
    found += [f"malformed {options.malformed}"] if options.malformed else []
    longest = max((request.prompt_len for request in requests), default=0)
    found += [f"{count} requests" for count in SIZES if len(requests) >= count]
    found += [f"a prompt of {count} tokens" for count in SIZES if longest >= count]
    for request in requests:
        found += [name for name, _ in departures(request) if name not in ("name", "task", "prompt_token_ids")]
    return found
