"""The named invariants between an engine and its poolers.

A contract is checked `before` a call (the caller's duty), `after` it (the pooler's duty) or
`between` runs (both must agree). Its first docstring line is the rule, the paragraph "Why" says why
it matters and "Without it" what breaks; `poolproof contracts` prints these from here. A check
returns what is wrong, in one message, or None.
"""

from oracle.contracts.caller import cursor_is_a_snapshot, refuses_impossible_params
from oracle.contracts.contract import (
    AFTER,
    BEFORE,
    OTHER,
    Contract,
    ContractError,
    Phase,
    Violation,
    all_contracts,
    first_broken,
    named,
)
from oracle.contracts.engine import (
    batch_belongs_together,
    every_request_finishes,
    finishes_once,
    nothing_left_behind,
    step_output_is_a_snapshot,
)
from oracle.contracts.pooler import (
    BEYOND_OWNERSHIP,
    accepts_valid_input,
    broken_after,
    comes_back,
    process_survives,
    query_is_let_go,
    reject_or_be_right,
)
from oracle.contracts.runs import LADDER, same_answer_again, state_determines_behaviour, waits_do_not_grow
from oracle.contracts.seen import ANYTHING, Anything, Call, Outcome, tensors_in
from oracle.contracts.telling import wrong_result

__all__ = [
    "AFTER", "ANYTHING", "BEFORE", "BEYOND_OWNERSHIP", "LADDER", "OTHER", "Anything", "Call", "Contract",
    "ContractError", "Outcome", "Phase", "Violation", "accepts_valid_input", "all_contracts",
    "batch_belongs_together", "broken_after", "comes_back", "cursor_is_a_snapshot", "every_request_finishes",
    "finishes_once", "first_broken", "named", "nothing_left_behind", "process_survives", "query_is_let_go",
    "refuses_impossible_params", "reject_or_be_right", "same_answer_again", "state_determines_behaviour",
    "step_output_is_a_snapshot", "tensors_in", "waits_do_not_grow", "wrong_result",
]  # fmt: skip
