"""The server's scheduler on the device round, forced eagerly on the CPU, against the same requests on the host's rounds.

Equal has to be everything that is told: tokens, trees, accepted paths, events, metrics, what the prefix cache knew, the pool.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import write_models

from engine.budget import RoundCost
from engine.config import EngineConfig, config_from_toml
from engine.device import graphs as graphs_room
from engine.device import serving as serving_room
from engine.device.serving import DeviceRounds, decoder_for
from engine.device.sizes import TreeSize, tree_sizes
from engine.draft_head import write_draft_vocabulary
from engine.events import Degraded, Event, Finished, Prefilled, StepTaken
from engine.generate import decode_by_device, generate
from engine.prefill import prefill, release
from engine.requests import Delta, GenerationRequest, Output
from engine.round import Generation, Round, decode_round
from engine.runtime import Runtime, Sampling, Speculation, load_runtime
from engine.scheduler import Scheduler
from engine.server.metrics import Metrics
from engine.telemetry import LineLog, Telemetry

TINY = Path(__file__).parents[1] / "data" / "tiny-ddtree"
LONG = tuple((7 * i + 3) % 64 for i in range(37))
GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.8, seed=11, top_p=0.9)


class Served:
    """Requests that were all there from the start, served to their ends in this thread, and everything told of them."""

    def __init__(self, runtime: Runtime, requests: Sequence[GenerationRequest], *, device: bool) -> None:
        self.device = device
        self.events: list[Event] = []
        self.outputs: dict[str, list[Output]] = {request.request_id: [] for request in requests}
        self.metrics, self.log = Metrics(), io.StringIO()
        telemetry = Telemetry(LineLog(self.log), 1e9)
        observers = (self.events.append, self.metrics.observe, telemetry.observe)

        def tell(event: Event) -> None:
            for observer in observers:
                observer(event)

        def end_when_done() -> None:
            if all(told and not isinstance(told[-1], Delta) for told in self.outputs.values()):
                self.scheduler.drain(0.0)

        decode = DeviceRounds(runtime, tell).decode if device else None
        self.scheduler = Scheduler(
            runtime, None, observers, queue_limit=99, on_turn=end_when_done, idle_s=0.001, decode=decode
        )
        for request in requests:
            self.scheduler.submit(request, self.outputs[request.request_id].append)
        self.scheduler.run()

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] if isinstance(output, Delta) for token in output.token_ids]

    def told(self) -> list[Any]:
        """Events without what a clock changes. A device's weights are approximate: it keeps them as float32 sums."""
        return [_comparable(event, approximate=self.device) for event in self.events]

    def counted(self) -> list[str]:
        """The metrics' lines that no clock touches."""
        lines = self.metrics.text(self.scheduler.load, 0).decode().splitlines()
        return [line for line in lines if "_seconds" not in line and "_created" not in line]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def _comparable(event: Event, *, approximate: bool) -> Any:
    match event:
        case StepTaken():
            tree = event.round.tree
            weights = pytest.approx(tree.log_weights, abs=1e-4) if approximate else tree.log_weights
            looked_up = (tree.grafted, event.lookup_tokens)
            done = (event.round.tokens, event.round.nodes, event.round.path, event.round.spine_length, looked_up)
            shape = (tree.token_ids, tree.parents, tree.depths, weights)
            return (event.request_id, event.kept, event.context, event.budget, event.load, done, shape)
        case Prefilled():
            return (event.request_id, event.prompt_tokens, event.cached_tokens, event.load)
        case Finished():
            sums = (event.sums.steps, event.sums.tokens, event.sums.nodes, event.sums.hist)
            return (
                event.request_id,
                event.finish,
                event.output_tokens,
                event.cached_tokens,
                event.mode,
                sums,
                event.load,
            )
        case other:
            return other


def request(
    name: str,
    prompt: Sequence[int],
    speculation: Speculation,
    sampling: Sampling = GREEDY,
    max_tokens: int = 24,
    **more: Any,
) -> GenerationRequest:
    return GenerationRequest(name, tuple(prompt), sampling, speculation, max_tokens, **more)


def mix() -> list[GenerationRequest]:
    """Every mode, greedy and sampled; beginnings that are known by the time they come again."""
    tree, wide, chain, off = (
        Speculation("ddtree", 8),
        Speculation("ddtree", 40),
        Speculation("dflash"),
        Speculation("off"),
    )
    return [
        request("a", LONG, tree),
        request("b", (9, 9, 4), off),
        request("c", (*LONG[:20], 1, 2), chain, SAMPLED),
        request("d", LONG, wide, replace(SAMPLED, seed=2**63 + 5, top_k=9, min_p=0.02)),
        request("e", (9, 9, 4), off, SAMPLED, 7),
        request("f", (*LONG, 5), tree, max_tokens=1),
        request("g", (*LONG, 5, 8), wide, max_tokens=60),
    ]


@pytest.mark.parametrize("running", [1, 3])
@pytest.mark.parametrize("page_size", [1, 7, 16, 64])
def test_everything_told_is_what_the_host_rounds_tell(
    tiny_config: Callable[..., EngineConfig], page_size: int, running: int
) -> None:
    config = tiny_config(page_size=page_size, context_length=128, prefixes=True, running=running)
    host_runtime, device_runtime = load_runtime(config), load_runtime(config)
    host = Served(host_runtime, mix(), device=False)
    device = Served(device_runtime, mix(), device=True)
    assert [device.tokens(name) for name in "abcdefg"] == [host.tokens(name) for name in "abcdefg"]
    assert device.told() == host.told()
    assert device.counted() == host.counted()
    assert not device.of(Degraded)
    assert max(event.kept for event in device.of(StepTaken)) > 2, "drafts are accepted at all"
    assert page_size == 64 or max(event.cached_tokens for event in device.of(Prefilled)) > 16, "beginnings are known"
    for runtime in (host_runtime, device_runtime):
        assert (runtime.pool.used, runtime.pool.free) == (0, runtime.pool.total)
    assert device_runtime.pool.kept == host_runtime.pool.kept > 0


@pytest.mark.parametrize("kind", ["llama", "qwen3-moe", "deepseek"])
def test_every_kind_of_target_is_served_alike(tmp_path: Path, kind: str) -> None:
    target, drafter = write_models(kind, tmp_path)
    config = config_from_toml(
        f'[model]\npath = "{target}"\ndrafter = "{drafter}"\ndtype = "float32"\n[context]\ncontext_length = 96\n'
        "[kv]\npage_size = 4\n[server]\nmax_running_requests = 2\n"
    )
    asked = [
        request("a", range(1, 30), Speculation("ddtree", 12)),
        request("b", range(1, 28), Speculation("dflash"), SAMPLED),
        request("c", (4, 4, 9), Speculation("off")),
        request("d", range(1, 31), Speculation("ddtree", 5), SAMPLED, 40),
    ]
    host, device = (Served(load_runtime(config), asked, device=device) for device in (False, True))
    assert device.told() == host.told()
    assert device.counted() == host.counted()


@pytest.mark.parametrize(("window", "words"), [(0, 40), (9, 0), (8, 25)])
def test_draft_windows_and_draft_vocabularies_are_the_hosts(tmp_path: Path, window: int, words: int) -> None:
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    for file in (TINY / "drafter").iterdir():
        (drafter / file.name).symlink_to(file)
    if words:
        write_draft_vocabulary(drafter, torch.randperm(64, generator=torch.Generator().manual_seed(1))[:words])
    config = config_from_toml(
        f'[model]\npath = "{TINY / "target"}"\ndrafter = "{drafter}"\n[context]\ncontext_length = 128\n'
        f"[speculation]\ndraft_window = {window}\n"
    )
    asked = [request("a", LONG, Speculation("ddtree", 60)), request("b", LONG[:9], Speculation("dflash"), SAMPLED)]
    host, device = (Served(load_runtime(config), asked, device=device) for device in (False, True))
    assert device.told() == host.told()
    drafted = {token for event in device.of(StepTaken) for token in event.round.tree.token_ids[1:]}
    assert not words or len(drafted) <= words


def test_what_the_device_round_does_not_cover_goes_by_the_host_and_is_named_once(
    tiny_config: Callable[..., EngineConfig],
) -> None:
    config = tiny_config(context_length=128, running=8)
    tree = Speculation("ddtree", 8)
    asked = [
        request("penalty", LONG, tree, Sampling(repetition_penalty=1.3)),
        request("plain", LONG, tree),
        request("bias", LONG, tree, Sampling(logit_bias=((5, 2.0),))),
        request("told", LONG, tree, logprobs=2),
        request("told too", LONG[:9], tree, logprobs=0),
        request("looks up", LONG + LONG, replace(tree, lookup="on")),
        request("huge", LONG, Speculation("ddtree", 300)),
        request("sampled", LONG, tree, SAMPLED),
    ]
    host, device = (Served(load_runtime(config), asked, device=device) for device in (False, True))
    assert device.counted() == host.counted()
    for one in asked:
        assert device.tokens(one.request_id) == host.tokens(one.request_id), one.request_id
    told = [output.logprobs for output in device.outputs["told"] if isinstance(output, Delta)]
    assert all(len(each) == len(output.token_ids) for each, output in zip(told, device.outputs["told"], strict=False))
    assert device.of(Degraded) == [
        Degraded("host_rounds", why)
        for why in (
            "requests with penalties",
            "requests with logit_bias",
            "requests with logprobs",
            "requests that look up where the service does not",
            "trees of more than 256 nodes",
        )
    ]
    assert device.log.getvalue().count("warn ") == 5
    assert 'what=host_rounds why="requests with logit_bias"' in device.log.getvalue()


def test_a_request_may_change_between_device_and_host_rounds(
    tiny: Callable[..., Runtime], expected: dict[str, Any]
) -> None:
    case = expected["cases"][5]
    run = next(run for run in case["ddtree"] if run["tree_budget"] == 16)
    runtime = tiny(page_size=7)
    first, second = (prefill(runtime, case["prompt"], Sampling(), Speculation("ddtree", 16)) for _ in range(2))
    device = DeviceRounds(runtime, pytest.fail)
    ways = [device.decode, lambda batch: decode_round(runtime, batch)]
    commits: list[int] = []
    for turn in range(14):
        batch = [first, second][: 1 + turn % 2]
        for generation, done in zip(batch, ways[turn // 2 % 2](batch), strict=True):
            if generation is first:
                commits.append(len(done.tokens))
    assert first.token_ids == run["tokens"][: len(first.token_ids)]
    assert second.token_ids == run["tokens"][: len(second.token_ids)]
    assert commits == run["commit_lengths"][:14]
    for generation in (first, second):
        release(runtime, generation)


def test_logits_that_are_not_finite_end_their_request_alone(tiny: Callable[..., Runtime]) -> None:
    config = tiny(page_size=4).config
    runtime = load_runtime(config)
    sound = prefill(runtime, LONG, Sampling(), Speculation("ddtree", 8))
    broken = prefill(runtime, LONG[:11], Sampling(), Speculation("ddtree", 8))
    alone = generate(load_runtime(config), LONG, Sampling(), Speculation("off"), max_tokens=30).token_ids
    device = DeviceRounds(runtime, pytest.fail)
    device.decode([sound, broken])
    runtime.target_kv.keys[:, broken.table.pages[0] * 4] = torch.nan
    before = list(broken.token_ids), broken.position
    done, failed = device.decode([sound, broken])
    assert failed.failure is not None and failed.failure.what == "the target's logits are not finite"
    assert not failed.tokens and (broken.token_ids, broken.position) == before
    assert done.failure is None and done.tokens
    while len(sound.token_ids) < 30:
        device.decode([sound])
    assert sound.token_ids[:30] == alone
    release(runtime, broken, sound=False)
    release(runtime, sound)
    assert runtime.pool.used == 0


def test_near_the_end_of_a_full_pool_a_tree_gives_way_to_the_chain_and_that_to_nothing(
    tiny_config: Callable[..., EngineConfig],
) -> None:
    config = tiny_config(page_size=1, context_length=60, pages=60)
    runtime = load_runtime(config)
    hot = Sampling(temperature=1.5, seed=3)  # few drafts are accepted
    plain = generate(runtime, LONG, hot, Speculation("off"), max_tokens=23, ignore_eos=True).token_ids
    generation = prefill(runtime, LONG, hot, Speculation("ddtree", 16))
    device, nodes = DeviceRounds(runtime, pytest.fail), []
    while len(generation.token_ids) < 23:
        (done,) = device.decode([generation])
        nodes.append((done.nodes, max(done.tree.depths)))
        assert runtime.pool.used <= 60
    assert generation.token_ids[:23] == plain
    assert nodes[0][0] == 17
    assert (8, 7) in nodes, "the chain"
    assert nodes[-1] == (1, 0), "the last token alone"
    release(runtime, generation)


@pytest.mark.parametrize("lookup", ["on", "auto"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_service_that_looks_up_grafts_between_draft_and_verify(
    tiny_config: Callable[..., EngineConfig], page_size: int, lookup: Any
) -> None:
    config = tiny_config(page_size=page_size, context_length=200, prefixes=True, running=2)
    config = replace(config, speculation=replace(config.speculation, lookup=lookup))
    repeated, tree = (*LONG, *LONG, *LONG[:20]), Speculation("ddtree", 16, lookup)
    asked = [
        request("a", repeated, tree, max_tokens=40),
        request("b", repeated, Speculation("dflash", lookup=lookup), SAMPLED, 30),
        request("c", repeated, replace(tree, tree_budget=40), Sampling(temperature=0.4, seed=5), 50),
        request("d", LONG, Speculation("ddtree", 8), max_tokens=20),
        request("e", LONG, Speculation("off"), SAMPLED, 20),
    ]
    host, device = (Served(load_runtime(config), asked, device=device) for device in (False, True))
    assert device.told() == host.told()
    assert device.counted() == host.counted()
    assert not device.of(Degraded)
    steps = device.of(StepTaken)
    assert sum(event.lookup_tokens for event in steps) > 3, "what was looked up is accepted at times"
    assert max(max(event.round.tree.depths) for event in steps) > 8, "and reaches beyond the block"


# ── the size of the next tree ──


def test_sizes_double_up_to_the_budget() -> None:
    assert tree_sizes(16) == (0, 4, 8, 16)
    assert tree_sizes(20) == (0, 4, 8, 16, 20)
    assert tree_sizes(3) == (0, 3)


def test_a_size_follows_what_trees_promise_and_what_rounds_cost() -> None:
    size = TreeSize(tree_sizes(16))
    assert size.size == 16
    sure = [math.log(0.9)] * 4 + [math.log(0.01)] * 12
    size.learn(sure, lambda n: 10.0 + n)  # 4.6 tokens for 14, 4.72 for 26: the small one
    assert size.size == 4
    size.learn(sure[:4], lambda n: 10.0 + n)
    assert size.size == 4
    size.learn(
        sure[:4], lambda n: 10.0
    )  # more nodes cost nothing, and promised a little more when they were last drafted
    assert size.size == 16
    hopeless = [math.log(0.001)] * 16
    drafted = []
    while size.size:
        drafted.append(size.size)
        size.learn(hopeless[: size.size], lambda n: 10.0 + 5 * n)
    assert 1 < len(drafted) < 8, "not at the first miss, and soon"
    for _ in range(15):
        size.learn([], lambda n: 10.0 + 5 * n)
        assert size.size == 0
    size.learn([], lambda n: 10.0 + 5 * n)
    assert size.size == 4, "after a rest a larger tree is tried"


def test_an_adaptive_budget_changes_sizes_and_no_token(tiny_config: Callable[..., EngineConfig]) -> None:
    config = tiny_config(context_length=128)
    runtime = load_runtime(config)
    plain = generate(runtime, LONG, Sampling(), Speculation("off"), max_tokens=60).token_ids
    dear = replace(runtime, cost=RoundCost(1.0, ((0, ((1.0, 2.0), (17.0, 40.0))),)))
    served = Served(dear, [request("a", LONG, Speculation("ddtree", 16), max_tokens=60)], device=True)
    assert served.tokens("a") == plain
    nodes = [event.round.nodes for event in served.of(StepTaken)]
    assert nodes[0] == 17 and set(nodes) <= {1, 5, 9, 17}
    assert sum(nodes[1:]) / len(nodes[1:]) < 12, "nodes are dear: later trees are smaller"


# ── start-up ──


def test_on_a_processor_the_host_decodes_unless_forced(
    tiny_config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(context_length=96, running=2)
    adaptive = replace(config, speculation=replace(config.speculation, adaptive_budget=True, tree_budget=8))
    runtime, phases = load_runtime(adaptive), list[str]()
    assert decoder_for(runtime, pytest.fail) is None
    monkeypatch.setattr(serving_room, "decodes_on", lambda device: True)
    decode = decoder_for(runtime, pytest.fail, phases.append)
    assert decode is not None
    assert phases == ["measuring what rounds cost"]
    assert runtime.pool.used == 0, "what the measurement held is free again"
    plain = generate(runtime, LONG, Sampling(), Speculation("off"), max_tokens=30).token_ids
    generation = prefill(runtime, LONG, Sampling(), Speculation("ddtree", 8))
    while len(generation.token_ids) < 30:
        decode([generation])
    assert generation.token_ids[:30] == plain
    release(runtime, generation)


def test_every_bucket_has_its_autoregressive_and_chain_plans_beside_the_trees(
    tiny_config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs_room, "SHORTEST_BUCKET", 64)
    rounds = DeviceRounds(load_runtime(tiny_config(context_length=100, pages=20)), pytest.fail)
    fixed = [(plan.longest, plan.budget, plan.ranks, plan.keeps_up) for plan in rounds.plans(adapts=False)]
    each = [(0, 0, False), (0, 0, True), (7, 1, True), (16, 16, True)]
    assert fixed == [(longest, *shape) for longest in (320, 256, 128, 64) for shape in each]
    sizes = [plan.budget for plan in rounds.plans(adapts=True) if plan.longest == 64]
    assert sizes == [0, 0, 7, 4, 8, 16]
    plain = DeviceRounds(load_runtime(tiny_config(context_length=100, pages=20, drafter=False)), pytest.fail)
    assert [(plan.longest, plan.budget) for plan in plain.plans(adapts=False)] == [
        (320, 0),
        (256, 0),
        (128, 0),
        (64, 0),
    ]


def test_a_capture_that_fails_is_told_once_and_rounds_go_on_eagerly(
    tiny_config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RoundGraphs needs a GPU: here it stands for one whose captures fail."""

    class Failing:
        def prepare(self, plans: Sequence[Any], *, grafted: bool = False) -> None:
            raise RuntimeError("operation not permitted when stream is capturing\nand more lines")

    told: list[Event] = []
    runtime = load_runtime(tiny_config(context_length=96))
    rounds = DeviceRounds(runtime, told.append)
    monkeypatch.setattr(rounds, "_graphs", Failing())
    generation = prefill(runtime, LONG, Sampling(), Speculation("ddtree", 8))
    steps = [rounds.decode([generation])[0] for _ in range(3)]
    assert told == [Degraded("no_graphs", "RuntimeError: operation not permitted when stream is capturing")]
    assert all(step.tokens and not step.captured for step in steps)
    release(runtime, generation)


def test_a_finished_request_is_not_kept_alive_by_the_stage(tiny: Callable[..., Runtime]) -> None:
    runtime = tiny()
    device = DeviceRounds(runtime, pytest.fail)

    def one() -> list[int]:
        generation = prefill(runtime, LONG[:9], Sampling(), Speculation("ddtree", 8))
        device.decode([generation])
        release(runtime, generation)
        return generation.token_ids

    assert one() == one()
    assert device._staged is not None and device._staged() is None


def test_a_command_generates_by_the_devices_rounds_where_there_are_any(
    tiny: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime, tree = tiny(), Speculation("ddtree", 8)
    plain = generate(runtime, LONG, GREEDY, tree, max_tokens=30)
    assert decode_by_device(runtime) is None
    monkeypatch.setattr(serving_room, "decodes_on", lambda device: True)
    decode = decode_by_device(runtime)
    assert decode is not None
    rounds = []

    def counted(batch: Sequence[Generation]) -> list[Round]:
        rounds.append(len(batch))
        return decode(batch)

    ours = generate(runtime, LONG, GREEDY, tree, max_tokens=30, decode=counted)
    assert (ours.token_ids, ours.commit_lengths) == (plain.token_ids, plain.commit_lengths)
    assert rounds == [1] * ours.steps
    assert set(ours.stages_ms) == {"draft", "build", "verify", "walk", "commit"} and min(ours.stages_ms.values()) > 0
    generate(runtime, LONG, Sampling(presence_penalty=1.0), tree, max_tokens=4, decode=decode)
    assert capsys.readouterr().err == "host_rounds: requests with penalties\n"
