"""What the engine says over HTTP becomes figures; what it does not say stays unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.engine_report import read_server_info, read_tree
from console.snapshot import GpuFigures, HostFigures, KvFigures, ProcessFigures

INFO = {
    "engine": "bundled",
    "version": "0.1.0",
    "pid": 41,
    "invocation": "abc",
    "model": {"path": "/m", "name": "smollm2", "architecture": "LlamaForCausalLM", "max_position_embeddings": 8192},
    "drafter": {"path": "/d", "block_size": 8, "target_layer_ids": [1, 9], "mask_token_id": 2},
    "settings": {"page_size": 16, "mode": "ddtree", "tree_budget": 16},
    "kv": {"page_size": 16, "pages_total": 512, "pages_used": 9, "bytes_per_token": 46080, "capacity_tokens": 8192},
    "requests": {"running": 1, "queued": 0, "served": 4, "refused": 0},
    "window": None,
    "speculation": {"spine_hit_rate": 0.61, "branch_gain": 0.4, "calibration": None, "lookup_share": 0.25},
    "host": {"cpu_percent": 12.0, "cpu_count": 2, "load_1m": 1.5, "memory_used_bytes": 1, "memory_total_bytes": 2},
    "process": {"pid": 41, "cpu_percent": 180.0, "rss_bytes": 900, "threads": 9},
    "gpus": [{"index": 0, "name": "H200", "utilization_percent": 97.0, "throttle": "power cap", "novel": 1}],
}


def test_every_figure_finds_its_place() -> None:
    report = read_server_info(INFO, 8765)
    assert (report.engine.kind, report.engine.version, report.engine.port) == ("bundled", "0.1.0", 8765)
    assert (report.engine.model, report.engine.max_context, report.engine.block_size) == ("smollm2", 8192, 8)
    assert report.invocation == "abc"
    assert report.settings == INFO["settings"]
    assert report.kv == KvFigures(pages_used=9, pages_total=512, page_size=16, bytes_per_token=46080)
    assert (report.running, report.queued) == (1, 0)
    assert (report.spine_hit_rate, report.branch_gain, report.lookup_share) == (0.61, 0.4, 0.25)
    assert report.machine == HostFigures(12.0, 2, 1.5, 1, 2)
    assert report.process == ProcessFigures(41, 180.0, 900, 9)
    assert report.gpus == (GpuFigures(0, "H200", 97.0, throttle="power cap"),)


def test_what_is_missing_is_unknown_and_not_zero() -> None:
    report = read_server_info({"engine": "bundled", "kv": {"pages_used": 3}, "process": {"threads": 2}}, 1)
    assert report.kv is None and report.process is None and report.machine is None
    assert report.running is None and report.spine_hit_rate is None


@given(
    st.dictionaries(
        st.sampled_from(list(INFO)),
        st.none()
        | st.integers()
        | st.text(max_size=4)
        | st.lists(st.integers())
        | st.dictionaries(st.text(max_size=3), st.none()),
    )
)
def test_no_answer_makes_it_fail(data: dict[str, object]) -> None:
    read_server_info({**INFO, **data}, 1)


TREE = [
    {"parent": -1, "depth": 0, "token_id": 7, "text": "the", "probability": 1.0, "accepted": True},
    {"parent": 0, "depth": 1, "token_id": 8, "text": " light", "probability": 0.62, "accepted": True},
    {"parent": 0, "depth": 1, "token_id": 9, "text": " sea", "probability": 0.28, "accepted": False},
]


def test_a_draft_tree_keeps_parents_probabilities_and_the_accepted_path() -> None:
    tree = read_tree({"seq": 1, "nodes": TREE, "budget": 16, "commit_length": 2})
    assert tree is not None
    assert (tree.budget, tree.commit_length) == (16, 2)
    assert [(node.parent, node.text, node.probability, node.accepted) for node in tree.nodes] == [
        (-1, "the", 1.0, True),
        (0, " light", 0.62, True),
        (0, " sea", 0.28, False),
    ]


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        None,
        [{"parent": 0, "depth": 0}],
        [TREE[0], {"parent": 2, "depth": 1}],
        [TREE[0], {"parent": -1, "depth": 1}],
        [TREE[0], 5],
    ],
)
def test_nodes_that_form_no_tree_are_no_picture(nodes: object) -> None:
    assert read_tree({"nodes": nodes}) is None
