"""DeviceRounds: the server's requests, one after the other on the device round, told as `engine.round` tells its own.

There is one stage: the tensors that captured rounds read and write. A request is put on it for its round and stays there until
another one is, so a lone request moves nothing. After each round it is whole in the host's terms as well (position, pages,
features that wait), and may go on by the host's rounds: those take what the device round does not cover, all together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from weakref import ReferenceType, ref

import torch

from engine.budget import RoundCost
from engine.cache import PageTable
from engine.device.answer import Answer
from engine.device.costs import measure_round_cost
from engine.device.graphs import Graft, RoundGraphs, bucket, buckets, run_eagerly
from engine.device.model import device_state, model_of
from engine.device.round import Plan, plan_of
from engine.device.sizes import TreeSize, tree_sizes
from engine.draft import take_in_context
from engine.events import Degraded, Event
from engine.lookup import graft
from engine.round import Generation, Round, decode_round, reserve
from engine.runtime import Runtime, Sampling
from engine.sampling import NonFiniteLogitsError
from engine.tree import spine_length
from kernels.token_choice import SamplingTensors
from kernels.tree_build import MOST_DEPTHS, MOST_RANKS

Decode = Callable[[Sequence[Generation]], list[Round]]
"""One round for each request of a batch."""


def decodes_on(device: torch.device) -> bool:
    """Whether requests decode by the device round. On a processor it runs as well, eagerly, but the host's is faster."""
    return device.type == "cuda"


def captures_on(device: torch.device) -> bool:
    """Whether rounds can be captured there."""
    return device.type == "cuda"


def decoder_for(
    runtime: Runtime,
    tell: Callable[[Event], None],
    on_phase: Callable[[str], None] = lambda phase: None,
    *,
    ahead: bool = True,
) -> Decode | None:
    """What decodes a runtime's requests where its device has rounds of its own; else None: `engine.round` does.

    `ahead`: graphs are captured now, not each at its first use.
    """
    if not decodes_on(runtime.target.device):
        return None
    rounds = DeviceRounds(runtime, tell)
    rounds.prepare(on_phase, ahead=ahead)
    return rounds.decode


class DeviceRounds:
    """Device rounds over a runtime's models and pool. `tell` hears once of each cause for decoding otherwise."""

    def __init__(self, runtime: Runtime, tell: Callable[[Event], None]) -> None:
        self._runtime = runtime
        self._tell = tell
        self._model = model_of(runtime)
        page_size, ahead = runtime.pool.page_size, MOST_RANKS + runtime.block_size
        pages = min(runtime.pool.total, -(-(runtime.max_context + ahead) // page_size))
        self._capacity = pages * page_size
        self._state = device_state(self._model, pages=pages, sampling=SamplingTensors.of(0, 0.0))
        self._graphs: RoundGraphs | None = None
        self._cost: RoundCost | None = runtime.cost
        self._named: set[str] = set()
        self._staged: ReferenceType[Generation] | None = None
        self._position = 0  # of the staged request, as the stage has it
        self._pages = 0  # of its table that the stage has

    # ── start-up ──

    def prepare(self, on_phase: Callable[[str], None], *, ahead: bool = True) -> None:
        """Capture the rounds that the service's own settings ask for, if `ahead`, and where its budget adapts, time them.

        Where a capture fails rounds run eagerly, which is told; on a processor they do anyway.
        """
        settings = self._runtime.config.speculation
        adapts = settings.adaptive_budget and settings.mode == "ddtree" and self._runtime.drafting is not None
        table = PageTable(self._runtime.pool)
        table.grow(self._capacity)
        try:
            self._write_pages(table.pages, 0)
            if captures_on(self._model.device):
                on_phase("capturing decode rounds")
                graphs = RoundGraphs(self._model, self._state)
                plans = self.plans(adapts=adapts) if ahead else []
                looked_up = [plan for plan in plans if plan.budget and settings.lookup != "off"]
                whole = [plan for plan in plans if plan not in looked_up]
                captured = self._capture(graphs, whole) and self._capture(graphs, looked_up, grafted=True)
                self._graphs = graphs if captured else None
            if adapts:
                on_phase("measuring what rounds cost")
                self._cost = self._measured()
        finally:
            table.release()

    def plans(self, *, adapts: bool) -> list[Plan]:
        """Every bucket's rounds: autoregressive, and with a drafter the same keeping it up, the chain, and the trees."""
        budget = self._runtime.config.speculation.tree_budget
        found = []
        for longest in buckets(self._capacity):
            found.append(plan_of("off", 0, self._model, longest, keeps_up=False))
            if self._runtime.drafting is None or self._runtime.block_size > MOST_DEPTHS + 1:
                continue
            found += [plan_of("off", 0, self._model, longest), plan_of("dflash", 0, self._model, longest)]
            if budget <= MOST_RANKS:
                sizes = tree_sizes(budget)[1:] if adapts else (budget,)
                found += [plan_of("ddtree", size, self._model, longest) for size in sizes]
        return found

    def _measured(self) -> RoundCost:
        budget = self._runtime.config.speculation.tree_budget
        rows = max(budget + 1, self._model.block_size)
        contexts = sorted({0, *(longest - rows for longest in buckets(self._capacity) if longest > rows)})
        self._runtime.target_kv.zero()
        if self._runtime.drafting is not None:
            self._runtime.drafting.kv.zero()
        return measure_round_cost(self._model, self._state, self._run, tree_sizes(budget), contexts)

    def _capture(self, graphs: RoundGraphs, plans: Sequence[Plan], *, grafted: bool = False) -> bool:
        try:
            graphs.prepare(plans, grafted=grafted)
        except RuntimeError as failure:
            self._name("no_graphs", f"{type(failure).__name__}: {failure}".splitlines()[0])
            return False
        return True

    # ── rounds ──

    def decode(self, batch: Sequence[Generation]) -> list[Round]:
        """One round for each of `batch`, as `engine.round.decode_round` gives them."""
        reasons = [not_covered(self._runtime, generation) for generation in batch]
        for reason in reasons:
            if reason is not None:
                self._name("host_rounds", reason)
        others = [generation for generation, reason in zip(batch, reasons, strict=True) if reason is not None]
        told: Iterator[Round] = iter(decode_round(self._runtime, others) if others else ())
        return [
            self._round(generation) if reason is None else next(told)
            for generation, reason in zip(batch, reasons, strict=True)
        ]

    def _round(self, generation: Generation) -> Round:
        plan = self._plan(generation, reserve(self._runtime, generation))
        self._put_on_stage(generation)
        answer = self._run(plan, _graft_of(generation, plan))
        if not answer.sound:
            self._staged = None
            failure = NonFiniteLogitsError()
            return Round([], len(answer.tree), answer.stages_ms, answer.tree, (), 0, failure=failure)
        self._take_over(generation, answer)
        tree, path = answer.tree, answer.path
        spine = spine_length(tree, path)
        return Round(answer.tokens, len(tree), answer.stages_ms, tree, path, spine, captured=answer.captured)

    def _plan(self, generation: Generation, allowed: int) -> Plan:
        """`allowed` nodes have slots. Near the end of a full pool a tree gives way to the chain, and that to nothing."""
        draft, model, wanted = generation.draft, self._model, generation.speculation.tree_budget
        rows = max(wanted + 1, model.block_size)
        longest = bucket(generation.position + rows, self._capacity)
        if draft is None:
            return plan_of("off", 0, model, longest, keeps_up=False)
        if allowed == 0:
            return plan_of("off", 0, model, longest)
        if generation.speculation.mode == "dflash" or allowed < wanted:
            return plan_of("dflash", 0, model, longest)
        if self._cost is not None:
            draft.size = draft.size or TreeSize(tree_sizes(wanted))
            return plan_of("ddtree" if draft.size.size else "off", draft.size.size, model, longest)
        return plan_of("ddtree", wanted, model, longest)

    def _run(self, plan: Plan, graft: Graft | None = None) -> Answer:
        if self._graphs is not None and not self._capture(self._graphs, [plan], grafted=graft is not None):
            self._graphs = None
        if self._graphs is not None:
            return self._graphs.run(plan, graft)
        return run_eagerly(self._model, self._state, plan, graft)

    def _put_on_stage(self, generation: Generation) -> None:
        before = self._staged() if self._staged is not None else None
        if before is not generation or generation.position != self._position:
            if before is not None and before.draft is not None:
                before.draft.features = before.draft.features.clone()  # they lay on the stage
            self._load(generation)
        self._write_pages(generation.table.pages, self._pages)
        self._pages = len(generation.table.pages)

    def _load(self, generation: Generation) -> None:
        """Everything of a request but its pages."""
        state, draft, drafting = self._state, generation.draft, self._runtime.drafting
        waiting = 0
        if draft is not None and drafting is not None:
            if len(draft.features) > self._model.most_accepted:
                take_in_context(drafting, generation.table, draft)
            waiting = len(draft.features)
            if waiting:
                state.features[:waiting].copy_(draft.features)
        state.waiting.fill_(waiting)
        state.seed.fill_(generation.token_ids[-1])
        state.length.fill_(generation.position)
        state.sampling.fill(sampling_tensors(generation.sampling))
        self._staged, self._position, self._pages = ref(generation), generation.position, 0

    def _write_pages(self, pages: Sequence[int], first: int) -> None:
        fresh = torch.tensor(pages[first:], dtype=torch.int32)
        if len(fresh):
            self._state.page_table[first : first + len(fresh)].copy_(fresh)

    def _take_over(self, generation: Generation, answer: Answer) -> None:
        """The request as it is now, in the host's terms."""
        draft, before = generation.draft, generation.position
        generation.token_ids += answer.tokens
        generation.position = self._position = before + len(answer.tokens)
        if generation.lookup is not None:
            generation.lookup.learn(answer.tokens)
        if draft is None:
            return
        draft.rows, draft.features = before, self._state.features[: len(answer.tokens)]
        if draft.size is not None and self._cost is not None:
            cost, context = self._cost, before
            draft.size.learn(
                answer.tree.log_weights[1:],
                lambda size: (cost.draft_ms if size else 0.0) + cost.verify_ms(1 + size, context),
            )

    def _name(self, what: str, why: str) -> None:
        if why not in self._named:
            self._named.add(why)
            self._tell(Degraded(what, why))


def not_covered(runtime: Runtime, generation: Generation) -> str | None:
    """Why a request decodes by the host's rounds, in words; None where the device round covers it."""
    sampling, speculation = generation.sampling, generation.speculation
    if sampling.counts_tokens:
        return "requests with penalties"
    if sampling.logit_bias:
        return "requests with logit_bias"
    if generation.logprobs is not None:
        return "requests with logprobs"
    if generation.lookup is not None and runtime.config.speculation.lookup == "off":
        return "requests that look up where the service does not"
    if generation.constraint is not None:
        return "requests whose answer has a form"
    if generation.draft is None:
        return None
    if runtime.block_size > MOST_DEPTHS + 1:
        return f"blocks of more than {MOST_DEPTHS + 1} tokens"
    if speculation.mode == "ddtree" and speculation.tree_budget > MOST_RANKS:
        return f"trees of more than {MOST_RANKS} nodes"
    return None


def _graft_of(generation: Generation, plan: Plan) -> Graft | None:
    """How the host adds what the text's own repetition suggests, within the plan's budget."""
    lookup = generation.lookup
    if lookup is None or plan.budget == 0:
        return None
    return lambda tree: graft(tree, lookup.branches(tree, plan.budget), plan.budget)


def sampling_tensors(sampling: Sampling) -> SamplingTensors:
    """A request's sampling as the device reads it. Its seed, of any size, is taken modulo 2^64 as the host takes it."""
    seed = ((sampling.seed or 0) + 2**63) % 2**64 - 2**63
    return SamplingTensors.of(seed, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
