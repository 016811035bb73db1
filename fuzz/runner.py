"""Drives one scenario through one subject, step by step, as an engine would, and judges it.

The hidden-state buffer is one, reused and overwritten after each step; preemption clears the state;
the caller's duties are checked before each call and the pooler's after it. A pooler that keeps views of the
buffer is noted, and from then on given a new one each step, so that what lies deeper shows too.
"""

import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from fuzz.blame import blame
from fuzz.fallen import Fallen, place_of_code, raised
from fuzz.handed_out import HandedOut
from fuzz.late import Scoring
from fuzz.pooler_call import PoolerCall, malform
from fuzz.verdict import Judgement, Verdict
from fuzz.waits import Waits
from fuzz.world import World, params_of
from impl.config import PoolFn, Subject, SubjectError
from oracle import contracts
from oracle.contracts import BEFORE, Call, Outcome, Violation, broken_after, first_broken
from oracle.device.audit import audit
from oracle.device.bindings import bindings
from oracle.device.memory import data
from oracle.device.ops import is_our_limit
from oracle.device.stream import late_copies
from oracle.metadata import task_groups
from oracle.rows import STALE
from oracle.scenario import Step, refusal


class Run:
    """A subject in the middle of a scenario."""

    def __init__(self, world: World, subject: Subject, max_rows: int = 0) -> None:
        """Begin; `max_rows` makes room for steps that are not the scenario's own."""
        self.world = world
        self.subject = subject
        self.options = world.scenario.options
        self.comparisons = 0
        self.computed = {name: request.num_cached_tokens for name, request in world.requests.items()}
        self.states = {name: subject.api.PoolingStates() for name in world.requests}
        self.params, self._pristine_params = (
            {name: params_of(own, subject, world.documents.get(name, ())) for name, own in world.requests.items()}
            for _ in range(2)
        )
        self._poolers: dict[str, PoolFn] = {}
        self._scoring = (
            Scoring(world, subject.late_interaction(), self.params)
            if world.documents and subject.late_interaction is not None
            else None
        )
        widest = max((_num_rows(step) for step in world.scenario.steps), default=0)
        self._buffer = world.universe.rows.new_full((max(widest, max_rows), self.options.hidden_size), STALE)
        self.profiles = False
        """Whether an audit on CUDA sees copies and kernels too."""
        self.waits = Waits(world, subject)
        self._handed_out = HandedOut(self.options, world.universe)
        self._vacated: list[Any] = []
        self.borrowed: Fallen | None = None
        """The first breach of ownership, if the pooler keeps or hands out views of the step's buffer."""

    def all_steps(self) -> Judgement:
        """Take every step of the scenario."""
        index: int | None = None
        borrowed_at = 0
        try:
            with late_copies(self.options.late_copies):
                self._verify()
                index = 0
                for step in self.world.scenario.steps:
                    self.step(step)
                    if self.borrowed is None:
                        borrowed_at += 1
                    index += 1
                self._handed_out.end()
                self._begin_scoring(Step(()))
            grown = self.waits.growth()
            if grown:
                raise Fallen(Verdict.VIOLATES, "waits-do-not-grow", grown)
        except Fallen as fallen:
            return fallen.judgement(self.comparisons, index)
        except SubjectError:
            raise
        except Exception:
            # A checker that fails has not checked: never a pass.
            return Judgement(Verdict.UNKNOWN, self.comparisons, "", traceback.format_exc(), index)
        if self.borrowed is not None:
            return self.borrowed.judgement(self.comparisons, borrowed_at)
        return Judgement(Verdict.HOLDS, self.comparisons)

    def _verify(self) -> None:
        """Have each request's params verified, as an engine does before it schedules any."""
        model_config = self.world.model_config()
        if model_config is None or self.subject.verify is None:
            return
        for name, request in self.world.requests.items():
            refused = ""
            try:
                self.subject.verify(self.params[name], model_config)
                self.subject.verify(self._pristine_params[name], model_config)
            except SubjectError:
                raise
            except ValueError as error:
                refused = str(error)
            except Exception as error:
                raise raised(error, may_reject=False) from error
            broken = contracts.refuses_impossible_params(name, refusal(request, self.options), refused)
            if broken:
                place = place_of_code(getattr(self.params[name], "verify", self.subject.verify))
                raise Fallen(Verdict.VIOLATES, "refuses-impossible-params", broken, place)
            self.comparisons += 1

    def step(self, step: Step) -> None:
        """Take one step.

        Raises:
            Fallen: a contract is broken, or the subject raised.
        """
        self._handed_out.begin_step()
        for name in (*step.preempted, *step.aborted):
            self.computed[name] = self.world.requests[name].num_cached_tokens
            self.states[name].clean()
        names = [name for name, _ in step.scheduled]
        counts = [count for _, count in step.scheduled]
        computed_before = {name: self.computed[name] for name in names}
        if self.options.reuses_states:
            self._reuse_states(step)
        for name, count in step.scheduled:
            self.computed[name] += count
        self._begin_scoring(step)
        rows = self._rows(names, list(computed_before.values()), counts)
        hidden_states = self._fill_buffer(rows, step.padding)
        metadata = self._metadata(names, counts)
        for call in self._calls(step, hidden_states, metadata):
            try:
                self._judge(call, computed_before)
            except Fallen as fallen:
                fallen.pooling_type = call.pooling_type
                raise
        self._handed_out.end_step(partial(self._overwrite, hidden_states))
        if self._scoring is not None:
            self._scoring.end([name for name in names if self._is_finished(name)])
        if self.options.reuses_states:
            self._vacated += [self.states[name] for name in names if self._is_finished(name)]

    def _begin_scoring(self, step: Step) -> None:
        """Have late interaction hear who comes and goes, and see that it lets go of what is done."""
        if self._scoring is None:
            return
        try:
            broken = self._scoring.begin(step)
        except Exception as error:
            raise raised(error, may_reject=False) from error
        if broken:
            raise Fallen(Verdict.VIOLATES, "query-is-let-go", broken, place_of_code(self._scoring.late.gone))

    def _reuse_states(self, step: Step) -> None:
        """Hand on the states of who has left to who starts; another holds an empty one of its own."""
        self._vacated += [self.states[name] for name in step.aborted]
        for name, _ in step.scheduled:
            if self._vacated and self.computed[name] == self.world.requests[name].num_cached_tokens:
                self.states[name] = self._vacated.pop(0)

    def _is_finished(self, name: str) -> bool:
        return self.computed[name] >= self.world.requests[name].prompt_len

    def _rows(self, names: Sequence[str], starts: Sequence[int], counts: Sequence[int]) -> torch.Tensor:
        universe = self.world.universe
        parts = [universe.of(*span) for span in zip(names, starts, counts, strict=True)]
        return torch.cat(parts) if parts else universe.rows[:0]

    def _fill_buffer(self, rows: torch.Tensor, padding: int) -> torch.Tensor:
        num_rows = rows.shape[0] + padding
        hidden_states = self._buffer[:num_rows] if self.borrowed is None else rows.new_empty(num_rows, rows.shape[1])
        hidden_states[: rows.shape[0]] = rows
        hidden_states[rows.shape[0] :] = torch.nan
        return hidden_states

    def _metadata(self, names: Sequence[str], counts: Sequence[int]) -> Any:
        world = self.world
        token_ids, token_ids_cpu = world.token_ids(names)
        metadata = self.subject.api.PoolingMetadata(
            prompt_lens=self._host_ints([world.universe.lengths[name] for name in names]),
            prompt_token_ids=token_ids,
            prompt_token_ids_cpu=token_ids_cpu,
            pooling_params=[self.params[name] for name in names],
            pooling_states=[self.states[name] for name in names],
        )
        counts_np = np.array(counts, dtype=self.options.index_dtype)
        query_start_loc = None
        if self.options.query_start_loc:
            query_start_loc = self._host_ints([0, *accumulate(counts)]).to(world.device, non_blocking=True)
        seq_lens = self._host_ints([self.computed[name] for name in names])
        metadata.build_pooling_cursor(counts_np, seq_lens, world.device, query_start_loc)
        if self.options.rewrites_counts:
            cursor = metadata.pooling_cursor
            built = {name: getattr(cursor, name).tolist() for name in ("num_scheduled_tokens_cpu", "seq_lens_cpu")}
            counts_np.fill(-1)
            seq_lens.fill_(-1)
            for name, values in built.items():
                broken = contracts.cursor_is_a_snapshot(name, values, getattr(cursor, name).tolist())
                if broken:
                    place = place_of_code(metadata.build_pooling_cursor)
                    raise Fallen(Verdict.VIOLATES, "cursor-is-a-snapshot", broken, place)
        return metadata

    def _host_ints(self, values: Sequence[int]) -> torch.Tensor:
        return torch.from_numpy(np.array(values, dtype=self.options.index_dtype))

    def _calls(self, step: Step, hidden_states: torch.Tensor, metadata: Any) -> Iterator[PoolerCall]:
        names = [name for name, _ in step.scheduled]
        if self.options.level == "pooler":
            padded = bool(step.padding)
            refusable = padded or self._must_be_whole(step.scheduled)
            pool = self._pooler("ALL")
            if self._scoring is not None:
                refusable |= self._scoring.too_early(names, self._is_finished)
                pool = self._scoring.around(pool, names, [self._is_finished(name) for name in names])
            yield PoolerCall(
                pool,
                hidden_states,
                metadata,
                names,
                spare_rows=padded,
                may_reject=refusable,
            )
            return
        start = first_row = 0
        for _, group_rows, group in task_groups(hidden_states, metadata, self.options.rows):
            stop = start + len(group.pooling_params)
            scheduled = step.scheduled[start:stop]
            if step.empty_group_at in range(start, stop):
                yield self._empty_call(hidden_states, metadata, start, first_row, names[start])
            pooling_type = self.world.pooling_types[names[start]]
            num_rows = sum(count for _, count in scheduled)
            padded = self.options.rows == "group" and group_rows.shape[0] > num_rows
            call = PoolerCall(
                self._pooler(pooling_type),
                group_rows,
                group,
                names[start:stop],
                pooling_type,
                spare_rows=padded or self.options.rows == "step",
                may_reject=padded or self._must_be_whole(scheduled),
            )
            yield malform(call, self.options.malformed) if self.options.malformed else call
            first_row += num_rows
            start = stop
        if self.world.requests and (not names or step.empty_group_at == len(names)):
            like = names[-1] if names else next(iter(self.world.requests))
            yield self._empty_call(hidden_states, metadata, len(names), first_row, like)

    def _must_be_whole(self, scheduled: Sequence[tuple[str, int]]) -> bool:
        """Whether part of a prompt is handed to CLS or MEAN, which need all of it."""
        return any(
            self.world.pooling_types[name] in ("CLS", "MEAN") and count < self.world.universe.lengths[name]
            for name, count in scheduled
        )

    def _empty_call(
        self, hidden_states: torch.Tensor, metadata: Any, place: int, first_row: int, like: str
    ) -> PoolerCall:
        """A subgroup without requests, for the pooler that serves request `like`."""
        if self.options.rows == "group":
            hidden_states = hidden_states[first_row:first_row]
        pooling_type = self.world.pooling_types[like]
        return PoolerCall(
            self._pooler(pooling_type),
            hidden_states,
            metadata[place:place],
            [],
            pooling_type,
            spare_rows=True,
        )

    def _pooler(self, pooling_type: str) -> PoolFn:
        if pooling_type not in self._poolers:
            config = self.world.config(pooling_type)
            try:
                with bindings(self.world.device):
                    self._poolers[pooling_type] = self.subject.build(config, self.options.level)
            except Exception as error:
                raise SubjectError(
                    f"{self.subject.name} could not make a pooler for {pooling_type} at level "
                    f"{self.options.level}: {type(error).__name__}: {error}"
                ) from error
        return self._poolers[pooling_type]

    def _judge(self, call: PoolerCall, computed_before: dict[str, int]) -> None:
        seen = Call(
            call.hidden_states,
            call.metadata,
            call.names,
            [computed_before[name] for name in call.names],
            call.spare_rows,
        )
        broken = first_broken(BEFORE, seen) if call.well_formed else None
        if broken:
            raise Fallen(Verdict.VIOLATES, broken.contract, broken.message)
        given = data(call.hidden_states).clone()
        cursor_before = seen.cursor if call.well_formed else None
        try:
            with bindings(self.world.device), audit(self.world.device, self.profiles) as record:
                outputs = call.pool(call.hidden_states, call.metadata)
        except SubjectError:
            raise
        except Exception as error:
            if is_our_limit(error):
                raise
            raise raised(error, call.may_reject) from error
        self.waits.keep(record, call.names, self.computed, computed_before)
        finished = [self._is_finished(name) for name in call.names]
        outcome = Outcome(
            call=seen,
            outputs=outputs,
            expected=[self.world.due(name, done) for name, done in zip(call.names, finished, strict=True)],
            hidden_states_before=given,
            cursor_before=cursor_before,
            params_before=[self._pristine_params[name] for name in call.names],
            kept_rows=[self.world.universe.lengths[name] for name in call.names],
            must_own_outputs=self.options.async_scheduling,
            origin=self.world.universe.origin,
            finished=finished,
            record=record,
            allowed_waits=self.waits.allowed(call.names, call.pooling_type),
        )
        borrows, broken = broken_after(outcome, self.borrowed is not None)
        if borrows:
            self.borrowed = self._fallen(borrows, call, outcome)
        if broken:
            raise self._fallen(broken, call, outcome)
        self.comparisons += max(1, len(call.names))
        self._handed_out.add(outcome.pairs())

    def _fallen(self, broken: Violation, call: PoolerCall, outcome: Outcome) -> Fallen:
        told = broken
        # A pooler that is right in spite of the caller's mistake must not pay for it with waits.
        excused = call.may_reject and broken.contract != "sync-budget"
        if excused:
            message = contracts.reject_or_be_right(f"{broken.contract}: {broken.message}")
            told = Violation("reject-or-be-right", str(message))
        place = place_of_code(call.pool)
        fallen = Fallen(Verdict.VIOLATES, told.contract, told.message, place, blame(outcome, self.world.universe))
        fallen.beneath = broken.contract if excused else ""
        fallen.pooling_type = call.pooling_type
        return fallen

    def _overwrite(self, hidden_states: torch.Tensor) -> None:
        """The engine reuses the step's buffer, if it uses the same one again."""
        if self.borrowed is None:
            hidden_states.fill_(STALE)


def _num_rows(step: Step) -> int:
    return sum(count for _, count in step.scheduled) + step.padding
