"""Traffic: who reaches an engine when, and how the engine is set up. Drawn for engines, or played on a model.

`played` is a small scheduler of our own: continuous batching under a budget, chunked prefill, preemption by
recompute, prefix hits, priority. It turns traffic into the steps of a pooler-level scenario, so that
schedules come in the shapes that an engine gives them. `broken_invariant` holds for its steps and for
those of a real scheduler alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from fuzz.draws import Draw
from fuzz.mix import Mix
from impl.engine import Span
from oracle.scenario import MAX_MODEL_LEN, Arrival, Options, Request, Step, Traffic


def draw_traffic(draw: Draw, mix: Mix, options: Options, requests: Sequence[Request]) -> Traffic:
    """Traffic in which every request can finish, on an engine that is often short of something."""
    longest = max((request.prompt_len for request in requests), default=1)
    block_size = draw.choice((4, 1, 2, 8))
    needed = -(-longest // block_size)
    # A request is preempted for want of blocks only while it still grows, so prompts should take several steps.
    if options.enable_chunked_prefill:
        token_budget = draw.integer(1, longest if draw.chance(mix.p_scarce) else 2 * longest)
    else:
        token_budget = draw.integer(longest, 2 * longest)
    return Traffic(
        arrivals=tuple(_arrival(draw, mix) for _ in requests),
        token_budget=token_budget,
        max_num_seqs=draw.choice((4, 3, 2, 1)),
        # Where lengths run out, bounds that are off by one show.
        max_model_len=longest if draw.chance(mix.p_full_length) else MAX_MODEL_LEN,
        num_blocks=1 + needed + (draw.integer(0, needed // 2) if draw.chance(mix.p_scarce) else 64),
        block_size=block_size,
        long_prefill_token_threshold=(
            draw.integer(1, max(1, longest // 2))
            if options.enable_chunked_prefill and draw.chance(mix.p_threshold)
            else 0
        ),
        prefix_caching=options.seq_pooling_type == "LAST" and draw.chance(mix.p_prefix_hit),
        priority_policy=draw.chance(mix.p_priority),
        cache_resets=(draw.integer(1, 6),) if draw.chance(mix.p_reset) else (),
    )


def _arrival(draw: Draw, mix: Mix) -> Arrival:
    at = draw.integer(0, 4)
    priority = draw.integer(0, 2) if draw.chance(mix.p_priority) else 0
    return Arrival(at, priority, at + draw.integer(1, 5) if draw.chance(mix.p_abort) else None)


def hurried(draw: Draw, mix: Mix, requests: Sequence[Request], traffic: Traffic) -> Traffic:
    """The traffic with some documents that don't wait for their query."""
    arrivals = tuple(
        msgspec.structs.replace(arrival, waits=request.query is None or not draw.chance(mix.p_partial))
        for request, arrival in zip(requests, traffic.arrivals, strict=True)
    )
    return msgspec.structs.replace(traffic, arrivals=arrivals)


@dataclass
class Queued:
    """A request in the model: where it stands."""

    request: Request
    arrival: Arrival
    cached: int
    computed: int = 0
    started: bool = False
    preempted: bool = field(default=False)

    @property
    def left(self) -> int:
        """Prompt tokens still to be computed."""
        return self.request.prompt_len - self.computed


def played(requests: Sequence[Request], traffic: Traffic, options: Options) -> tuple[tuple[Request, ...], list[Step]]:
    """The steps that the model makes of the traffic, and the requests with their prefix hits filled in."""
    model = SchedulerModel(traffic, options)
    arrivals = list(zip(requests, traffic.arrivals, strict=True))
    hits = {request.name: 0 for request in requests}
    steps: list[Step] = []
    number = 0
    while number <= traffic.last_event or model.busy:
        aborted = model.abort(number)
        preempted = model.reset() if number in traffic.cache_resets else []
        model.add(
            Queued(request, arrival, _prefix_hit(model.seen, request, traffic))
            for request, arrival in arrivals
            if arrival.at == number
        )
        hits.update({entry.request.name: entry.cached for entry in model.waiting if not entry.started})
        scheduled, pushed_out = model.schedule()
        if scheduled or preempted or pushed_out or aborted:
            steps.append(Step(tuple(scheduled), tuple(dict.fromkeys([*preempted, *pushed_out])), tuple(aborted)))
        number += 1
    filled = tuple(msgspec.structs.replace(request, num_cached_tokens=hits[request.name]) for request in requests)
    return filled, steps


def _prefix_hit(seen: Iterable[tuple[int, ...]], request: Request, traffic: Traffic) -> int:
    """Tokens of the prompt, in whole blocks and at least one short of all, that were computed for another."""
    if not traffic.prefix_caching or request.is_token_task:
        return 0
    longest = 0
    for prompt in seen:
        shared = 0
        for left, right in zip(prompt, request.prompt_token_ids, strict=False):
            if left != right:
                break
            shared += 1
        longest = max(longest, shared)
    return min(longest, request.prompt_len - 1) // traffic.block_size * traffic.block_size


class SchedulerModel:
    """The scheduler model: who waits, who runs, and the blocks they hold."""

    def __init__(self, traffic: Traffic, options: Options) -> None:
        self.traffic = traffic
        self.chunked = options.enable_chunked_prefill
        self.waiting: list[Queued] = []
        self.running: list[Queued] = []
        self.seen: list[tuple[int, ...]] = []

    @property
    def busy(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, arriving: Iterable[Queued]) -> None:
        """Queue requests, by priority if that is the policy."""
        self.waiting.extend(arriving)
        if self.traffic.priority_policy:
            self.waiting.sort(key=lambda entry: entry.arrival.priority)

    def abort(self, number: int) -> list[str]:
        """Drop those whose client is gone; the names of those that had been scheduled."""
        going = [entry for entry in (*self.running, *self.waiting) if entry.arrival.abort_at == number]
        self.running = [entry for entry in self.running if entry not in going]
        self.waiting = [entry for entry in self.waiting if entry not in going]
        return [entry.request.name for entry in going if entry.started]

    def reset(self) -> list[str]:
        """Push everyone out, the last first, so that they come back in order."""
        names = [entry.request.name for entry in self.running]
        while self.running:
            self._push_out(self.running[-1])
        return names

    def schedule(self) -> tuple[list[tuple[str, int]], list[str]]:
        """Who is scheduled with how many tokens, and who is pushed out for want of blocks."""
        budget = self.traffic.token_budget
        scheduled: list[tuple[Queued, int]] = []
        pushed_out: list[str] = []
        place = 0
        while place < len(self.running) and budget:
            entry = self.running[place]
            count = min(self._wanted(entry), budget)
            while not self._fits(entry, count, scheduled):
                victim = self._victim()
                pushed_out.append(victim.request.name)
                scheduled = [part for part in scheduled if part[0] is not victim]
                self._push_out(victim)
                if victim is entry:
                    break
            else:
                scheduled.append((entry, count))
                budget = self.traffic.token_budget - sum(part for _, part in scheduled)
                place += 1
        if not pushed_out:
            self._admit(budget, scheduled)
        for entry, count in scheduled:
            entry.computed += count
            entry.started = True
        self.seen.extend(entry.request.prompt_token_ids for entry, _ in scheduled if not entry.left)
        self.running = [entry for entry in self.running if entry.left]
        return [(entry.request.name, count) for entry, count in scheduled], pushed_out

    def _admit(self, budget: int, scheduled: list[tuple[Queued, int]]) -> None:
        while self.waiting and budget and len(self.running) < self.traffic.max_num_seqs:
            entry = self.waiting[0]
            entry.computed = entry.cached
            count = self._wanted(entry)
            if count > budget and not self.chunked:
                return
            count = min(count, budget)
            if not self._fits(entry, count, scheduled):
                return
            self.running.append(self.waiting.pop(0))
            scheduled.append((entry, count))
            budget -= count

    def _wanted(self, entry: Queued) -> int:
        # The threshold keeps a long prompt from starving others; alone a request may use the whole budget.
        threshold = self.traffic.long_prefill_token_threshold
        binds = threshold and self.chunked and len(self.running) + len(self.waiting) > 1
        return min(entry.left, threshold) if binds else entry.left

    def _blocks(self, entry: Queued, more: int) -> int:
        return -(-(entry.computed + more) // self.traffic.block_size)

    def _fits(self, entry: Queued, count: int, scheduled: Sequence[tuple[Queued, int]]) -> bool:
        more = dict[int, int]({id(other): part for other, part in scheduled})
        held = sum(self._blocks(other, more.get(id(other), 0)) for other in self.running if other is not entry)
        return held + self._blocks(entry, count) <= self.traffic.num_blocks - 1

    def _victim(self) -> Queued:
        if self.traffic.priority_policy:
            return max(self.running, key=lambda entry: (entry.arrival.priority, self.running.index(entry)))
        return self.running[-1]

    def _push_out(self, entry: Queued) -> None:
        self.running.remove(entry)
        entry.computed = 0
        self.waiting.insert(0, entry)


def broken_invariant(
    requests: Sequence[Request], traffic: Traffic, options: Options, steps: Sequence[Sequence[Span]]
) -> str | None:
    """What a scheduler's steps violate that holds for every scheduler of this kind, or None."""
    lengths = {request.name: request.prompt_len for request in requests}
    reached: dict[str, int] = {}
    for number, spans in enumerate(steps):
        if sum(span.count for span in spans) > traffic.token_budget:
            return f"step {number} schedules more than the budget of {traffic.token_budget} tokens"
        if len(spans) > traffic.max_num_seqs:
            return f"step {number} schedules more than {traffic.max_num_seqs} requests"
        for span in spans:
            if span.count < 1 or span.start + span.count > lengths[span.name]:
                return f"step {number} schedules tokens {span.start} to {span.start + span.count} of {span.name}"
            if span.start not in (0, reached.get(span.name, 0)) and not traffic.prefix_caching:
                return f"step {number} goes on with {span.name} at {span.start}, not at {reached.get(span.name, 0)}"
            if not options.enable_chunked_prefill and span.start + span.count != lengths[span.name]:
                return f"step {number} splits {span.name}, but chunked prefill is off"
            threshold = traffic.long_prefill_token_threshold
            if threshold and options.enable_chunked_prefill and len(spans) > 1 and span.count > threshold:
                return f"step {number} schedules {span.count} tokens of {span.name}, over the threshold of {threshold}"
            reached[span.name] = span.start + span.count
        blocks = sum(-(-(span.start + span.count) // traffic.block_size) for span in spans)
        if blocks > traffic.num_blocks - 1 and not traffic.prefix_caching:
            return f"step {number} needs {blocks} blocks of {traffic.num_blocks - 1}"
    return None
