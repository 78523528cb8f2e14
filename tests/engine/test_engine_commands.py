"""`python -m engine`: generate, capacity and bench as their users run them, and bad input in one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process -> (exit status, standard output, standard error)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_generate_as_a_process_of_its_own_gives_the_authors_tokens_and_the_contracts_keys(
    tiny_folder: Path, expected: dict[str, Any]
) -> None:
    case = expected["cases"][4]
    budget_16 = next(run for run in case["ddtree"] if run["tree_budget"] == 16)
    argv = [sys.executable, "-m", "engine", "generate", "--model", tiny_folder / "target"]
    argv += ["--drafter", tiny_folder / "drafter", "--prompt-ids", ",".join(map(str, case["prompt"]))]
    argv += ["--max-tokens", 96, "--mode", "ddtree", "--tree-budget", 16, "--page-size", 7, "--dtype", "float32"]
    done = subprocess.run(
        [str(word) for word in [*argv, "--ignore-eos", "--json"]],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert list(answer) == ["token_ids", "text", "commit_lengths", "finish_reason", "steps", "decode_s", "stages_ms"]
    assert answer["token_ids"] == budget_16["tokens"]
    assert answer["commit_lengths"][:-1] == budget_16["commit_lengths"][: answer["steps"] - 1]
    assert sum(answer["commit_lengths"]) == 95
    assert answer["text"] == "" and answer["finish_reason"] == "length"
    assert answer["steps"] == len(answer["commit_lengths"])
    assert 0 < sum(answer["stages_ms"].values()) <= answer["decode_s"] * 1e3


def test_bad_input_to_a_process_is_one_line_and_status_2(tiny_folder: Path) -> None:
    argv = [sys.executable, "-m", "engine", "generate", "--model", str(tiny_folder), "--prompt-ids", "1"]
    done = subprocess.run(
        [*argv, "--max-tokens", "4"], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"{tiny_folder}: no config.json in the folder; give a Hugging Face model folder\n"


def test_generate_without_a_drafter_decodes_token_by_token(
    tiny_folder: Path, expected: dict[str, Any], run: Callable[..., tuple[int, str, str]]
) -> None:
    case = expected["cases"][0]
    status, out, _ = run("generate", "--model", tiny_folder / "target", "--prompt-ids", 9, "--max-tokens", 12, "--json")
    answer = json.loads(out)
    assert status == 0
    assert answer["token_ids"] == case["autoregressive"][:12]
    assert answer["commit_lengths"] == [1] * 11


def test_generate_without_json_prints_the_answer(
    tiny_folder: Path, expected: dict[str, Any], run: Callable[..., tuple[int, str, str]]
) -> None:
    tokens = ",".join(map(str, expected["cases"][0]["autoregressive"][:4]))
    status, out, _ = run("generate", "--model", tiny_folder / "target", "--prompt-ids", 9, "--max-tokens", 4)
    assert (status, out) == (0, tokens + "\n")


def test_a_sampled_answer_repeats_with_its_seed(tiny_folder: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    common = (
        "generate",
        "--model",
        tiny_folder / "target",
        "--prompt-ids",
        9,
        "--max-tokens",
        12,
        "--temperature",
        1.5,
    )
    drafting = ("--drafter", tiny_folder / "drafter", "--tree-budget", 9)
    assert run(*common, "--seed", 1) == run(*common, "--seed", 1, *drafting)
    assert run(*common, "--seed", 1) != run(*common, "--seed", 2)


def test_an_end_token_named_by_the_folder_stops_and_ignore_eos_goes_on(
    tiny_folder: Path, tmp_path: Path, expected: dict[str, Any], run: Callable[..., tuple[int, str, str]]
) -> None:
    tokens = expected["cases"][0]["autoregressive"]
    model = shutil.copytree(tiny_folder / "target", tmp_path / "target")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [60, tokens[6]]}))
    common = ("generate", "--model", model, "--prompt-ids", 9, "--max-tokens", 12, "--json")
    answer = json.loads(run(*common)[1])
    assert (answer["token_ids"], answer["finish_reason"]) == (tokens[: tokens.index(tokens[6]) + 1], "stop")
    answer = json.loads(run(*common, "--ignore-eos")[1])
    assert (answer["token_ids"], answer["finish_reason"]) == (tokens[:12], "length")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "the following arguments are required: --model"),
        (("--model", "TARGET", "--prompt-ids", "1"), "the following arguments are required: --max-tokens"),
        (("--model", "TARGET", "--prompt-ids", "1", "--max-tokens", "0"), "argument --max-tokens: 0 is below 1"),
        (("--model", "TARGET", "--prompt-ids", "1,x", "--max-tokens", "4"), "--prompt-ids: not token ids: 1,x"),
        (("--model", "TARGET", "--prompt", "hi", "--max-tokens", "4"), "the folder has no tokenizer; give token ids"),
        (("--model", "TARGET", "--prompt-ids", "64", "--max-tokens", "4"), "token id 64 lies outside the vocabulary"),
        (("MIN", "--page-size", "257"), "--page-size: page_size = 257 is outside 1-256"),
        (("MIN", "--page-size", "0"), "--page-size: page_size = 0 is outside 1-256"),
        (("MIN", "--context-length", "2049"), "context_length = 2049 is more than the model's 2048"),
        (("MIN", "--context-length", "65", "--pages", "4"), "more than the 64 tokens the KV pool holds"),
        (("MIN", "--tree-budget", "8"), "--tree-budget: a tree budget needs a drafter; add --drafter DIR"),
        (("MIN", "--mode", "ddtree"), '--mode: mode "ddtree" needs a drafter; add --drafter DIR, or use --mode off'),
        (("MIN", "--drafter", "DRAFTER", "--tree-budget", "0"), "--tree-budget: tree_budget = 0 is outside 1-1024"),
        (("MIN", "--drafter", "TARGET"), "this is no DFlash drafter"),
        (("MIN", "--drafter", "ABSENT"), "no config.json in the folder; there is no such folder"),
        (("MIN", "--dtype", "float16"), '--dtype: dtype = "float16" is not one of auto, bfloat16, float32'),
        (("MIN", "--temperature", "-1"), "temperature = -1.0 is not a finite number of 0 or above"),
        (("MIN", "--mode", "tree"), "argument --mode: invalid choice: 'tree'"),
        (("MIN", "--temperature", "inf"), "temperature = inf is not a finite number of 0 or above"),
        (("MIN", "--block-size", "4"), "--block-size: a block size needs a drafter; add --drafter DIR"),
        (("MIN", "--rope-scaling", "ntk:2"), 'rope_scaling = "ntk:2" is not known; write "yarn:F"'),
        (("--model", "TARGET", "--prompt-ids", "1", "--max-tokens", "-3"), "argument --max-tokens: -3 is below 1"),
        (("--model", "TARGET", "--prompt-ids", "1", "--max-tokens", "x"), "argument --max-tokens: x is not a whole"),
        (("--model", "TARGET", "--prompt-ids", "", "--max-tokens", "4"), "--prompt-ids: not token ids: "),
    ],
)
def test_bad_input_to_generate_is_one_line_and_status_2(
    tiny_folder: Path,
    tmp_path: Path,
    run: Callable[..., tuple[int, str, str]],
    arguments: tuple[str, ...],
    says: str,
) -> None:
    words = {
        "TARGET": (str(tiny_folder / "target"),),
        "DRAFTER": (str(tiny_folder / "drafter"),),
        "ABSENT": (str(tmp_path / "absent"),),
        "MIN": ("--model", str(tiny_folder / "target"), "--prompt-ids", "1", "--max-tokens", "4"),
    }
    status, out, err = run("generate", *(word for name in arguments for word in words.get(name, (name,))))
    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("[kv]\npage_sise = 4", "[kv]: unknown setting page_sise; the nearest known one is page_size in [kv]"),
        ("[kv]\npage_size = 300", "[kv]: page_size = 300 is outside 1-256"),
        ("[speculation]\nmode = 'ddtree'", '[speculation]: mode = "ddtree" needs a drafter'),
    ],
)
def test_settings_that_cannot_be_served_are_one_line_and_status_2(
    tiny_folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]], lines: str, says: str
) -> None:
    settings = tmp_path / "engine.toml"
    settings.write_text(f'[model]\npath = "{tiny_folder / "target"}"\n{lines}\n')
    status, out, err = run("serve", "--config", settings)
    assert (status, out) == (2, "")
    assert err.startswith(f"{settings} {says}") and err.count("\n") == 1


def test_a_settings_file_is_checked_without_serving(
    tiny_folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    settings = tmp_path / "engine.toml"
    model = f'[model]\npath = "{tiny_folder / "target"}"\ndrafter = "{tiny_folder / "drafter"}"\n'
    settings.write_text(f"{model}[context]\ncontext_length = 100\n[kv]\npage_size = 7\n")
    status, out, err = run("serve", "--config", settings, "--check-config")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["context_length"], found["page_size"], found["mode"]) == (100, 7, "ddtree")
    assert found["pages"] * 7 >= 100 + found["block_size"]  # what was left to the engine is told as a number
    settings.write_text(f"{model}[context]\ncontext_length = 9000000\n")
    status, out, err = run("serve", "--config", settings, "--check-config")
    assert (status, out) == (2, "")
    assert "context_length = 9000000 is more than the model's" in err and err.count("\n") == 1


def test_an_unknown_command_is_one_line_and_status_2(run: Callable[..., tuple[int, str, str]]) -> None:
    status, _, err = run("generat")
    assert status == 2
    assert err.startswith("python -m engine: argument COMMAND: invalid choice: 'generat'") and err.count("\n") == 1


def test_capacity_counts_bytes_from_the_config_files_alone(
    tiny_folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    for part in ("target", "drafter"):
        (tmp_path / part).mkdir()
        shutil.copy(tiny_folder / part / "config.json", tmp_path / part)
    common = ("capacity", "--model", tmp_path / "target", "--context-length", 1000, "--page-size", 64)
    status, out, _ = run(*common, "--json")
    figures = json.loads(out)
    assert status == 0
    assert figures["kv_bytes_per_token"] == 6 * 2 * 2 * 16 * 4
    assert figures["pages"] == 16 and figures["pool_tokens"] == 1024
    assert figures["pool_bytes"] == 1024 * figures["kv_bytes_per_token"]
    assert figures["max_position_embeddings"] == 2048 and figures["dtype"] == "float32"
    with_drafter = json.loads(run(*common, "--drafter", tmp_path / "drafter", "--dtype", "bfloat16", "--json")[1])
    assert with_drafter["kv_bytes_per_token"] == (6 + 2) * 2 * 2 * 16 * 2
    status, _, err = run("capacity", "--model", tmp_path / "target", "--context-length", 3000)
    assert status == 2 and "context_length = 3000 is more than the model's 2048" in err


def test_bench_prints_one_line_an_arm_whose_figures_belong_together(
    tiny_folder: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    models = ("--model", tiny_folder / "target", "--drafter", tiny_folder / "drafter")
    status, out, _ = run(
        "bench", *models, "--budgets", "4,16", "--contexts", "0,40", "--max-tokens", 24, "--rounds", 2, "--json"
    )
    arms = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [(arm["mode"], arm["budget"], arm["context"]) for arm in arms] == [
        (mode, budget, context)
        for context in (8 + 12, 40 + 12)
        for mode, budget in (("off", 0), ("dflash", 7), ("ddtree", 4), ("ddtree", 16))
    ]
    for arm in arms:
        assert list(arm) == [
            "mode", "kind", "context", "budget", "tok_s", "commit_length", "step_ms", "stages_ms", "floor_share",
        ]  # fmt: skip
        assert arm["tok_s"] == pytest.approx(arm["commit_length"] / arm["step_ms"] * 1e3, rel=0.01)
        assert sum(arm["stages_ms"].values()) <= arm["step_ms"]
        assert 0 < arm["floor_share"] < 1
    assert arms[0]["commit_length"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--modes", "off,tree"), "--modes: unknown mode tree"),
        (("--modes", "ddtree"), "--modes: dflash and ddtree need a drafter"),
        (("--modes", "off", "--contexts", "many"), "--contexts: not whole numbers: many"),
        (("--modes", "off", "--contexts", "2000"), "--contexts: 2000 prompt tokens and 64 more exceed 2048"),
        (("--modes", "off", "--contexts", "-5"), "--contexts: -5 is outside 0-2048"),
        (("--drafter", "DRAFTER", "--budgets", "0"), "--budgets: 0 is outside 1-1024"),
        (("--max-tokens", "1"), "argument --max-tokens: 1 is below 2"),
        (("--rounds", "0"), "argument --rounds: 0 is below 1"),
    ],
)
def test_bad_input_to_bench_is_one_line_and_status_2(
    tiny_folder: Path, run: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], says: str
) -> None:
    words = [str(tiny_folder / "drafter") if word == "DRAFTER" else word for word in arguments]
    status, _, err = run("bench", "--model", tiny_folder / "target", *words)
    assert status == 2 and says in err and err.count("\n") == 1


BROKEN_CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("target", {"architectures": 5}, "architectures = 5 is not a list of texts"),
    ("target", {"architectures": ["GPT2LMHeadModel"]}, "the architecture GPT2LMHeadModel is not one the engine knows"),
    ("target", {"vocab_size": -1}, "vocab_size = -1 is not a whole number of 1 or more"),
    ("target", {"vocab_size": True}, "vocab_size = true is not a whole number of 1 or more"),
    ("target", {"num_hidden_layers": 0}, "num_hidden_layers = 0 is not a whole number of 1 or more"),
    ("target", {"num_key_value_heads": "x"}, 'num_key_value_heads = "x" is not a whole number of 1 or more'),
    ("target", {"head_dim": 15}, "head_dim = 15 is odd"),
    ("target", {"rms_norm_eps": -1}, "rms_norm_eps = -1 is not a number above 0"),
    ("target", {"max_position_embeddings": "x"}, 'max_position_embeddings = "x" is not a whole number'),
    ("target", {"rope_parameters": "x"}, 'rope_parameters = "x" is not an object'),
    ("target", {"rope_parameters": {"rope_theta": "x"}}, 'rope_parameters.rope_theta = "x" is not a number above 1'),
    ("target", {"eos_token_id": "x"}, 'eos_token_id = "x" is not a list of whole numbers of 0 or more'),
    ("target", {"text_config": "x"}, 'text_config = "x" is not an object'),
    ("target", {"layer_types": 5}, "layer_types = 5 is not a list of texts"),
    ("target", {"tie_word_embeddings": "x"}, 'tie_word_embeddings = "x" is neither true nor false'),
    (
        "target",
        {"quantization_config": {"quant_method": "fp8"}},
        "quantization fp8 without weight_block_size is not supported",
    ),
    ("drafter", {"dflash_config": 5}, "dflash_config = 5 is not an object"),
    ("drafter", {"architectures": ["DFlash2DraftModel"]}, "a DFlash2 drafter is not supported"),
    ("drafter", {"architectures": ["DominoDraftModel"]}, "a Domino drafter is not supported"),
    ("drafter", {"architectures": ["DSparkModel"]}, "a DSpark drafter is not supported"),
    ("drafter", {"hidden_size": 48}, "the drafter's hidden size is 48, the target's is 64"),
    ("drafter", {"vocab_size": 65}, "the drafter's vocabulary is 65, the target's is 64"),
    ("drafter", {"num_target_layers": 7}, "the drafter's number of target layers is 7, the target's is 6"),
    ("drafter", {"dflash_config": {"mask_token_id": 63, "target_layer_ids": [9]}}, "taps target layers 9, outside 0-5"),
    ("drafter", {"dflash_config": {"mask_token_id": 63, "target_layer_ids": 5.5}}, "is not a list of whole numbers"),
    ("drafter", {"dflash_config": {"mask_token_id": 63, "selector_rank": 4}}, "a DFlash2 drafter is not supported"),
    ("drafter", {"layer_types": 5}, "layer_types = 5 is not a list of texts"),
]


@pytest.mark.parametrize(("part", "changes", "says"), BROKEN_CONFIGS)
def test_a_broken_config_of_target_or_drafter_is_one_line_and_status_2(
    tiny_folder: Path,
    tmp_path: Path,
    run: Callable[..., tuple[int, str, str]],
    part: str,
    changes: dict[str, Any],
    says: str,
) -> None:
    changed = shutil.copytree(tiny_folder / part, tmp_path / part)
    config = {**json.loads((changed / "config.json").read_text()), **changes}
    (changed / "config.json").write_text(json.dumps(config))
    models = {"target": tiny_folder / "target", "drafter": tiny_folder / "drafter", part: changed}
    prompt = ("--prompt-ids", "1", "--max-tokens", "4")
    status, out, err = run("generate", "--model", models["target"], "--drafter", models["drafter"], *prompt)
    assert (status, out) == (2, "")
    assert err.startswith(f"{changed}: ") and says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("config.json", "[" * 100_000, "cannot read it as JSON (it is nested too deep)"),
        ("model.safetensors.index.json", '{"weight_map": 5}', "it has no weight_map of tensors to files"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "../b.safetensors"}}',
            "names ../b.safetensors, which is",
        ),
        ("model.safetensors.index.json", '{"weight_map": {"a": "b.safetensors"}}', "missing b.safetensors, one of 1"),
        ("generation_config.json", '{"eos_token_id": "x"}', 'eos_token_id = "x" is not a list of whole numbers'),
        ("tokenizer.json", "{}", "not a tokenizer: "),
    ],
)
def test_a_broken_file_of_the_model_folder_is_one_line_and_status_2(
    tiny_folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]], name: str, text: str, says: str
) -> None:
    model = shutil.copytree(tiny_folder / "target", tmp_path / "target")
    (model / name).write_text(text)
    status, out, err = run("generate", "--model", model, "--prompt-ids", "1", "--max-tokens", "4")
    assert (status, out) == (2, "")
    assert says in err and err.count("\n") == 1


def test_weights_that_hold_no_numbers_end_the_answer_in_one_line(
    tiny_folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    model = shutil.copytree(tiny_folder / "target", tmp_path / "target")
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    save_file(weights, model / "model.safetensors")
    status, out, err = run("generate", "--model", model, "--prompt-ids", "1", "--max-tokens", "4")
    assert (status, out) == (2, "")
    assert err == "the target's logits are not finite; check its weights, or run it in float32\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("eval-drafter", "--model", "M"), "the following arguments are required: --drafter"),
        (("eval-drafter", "--model", "M", "--drafter", "D", "--threads", "-1"), "argument --threads: -1 is below 1"),
        (("eval-drafter", "--model", "M", "--drafter", "D", "--prompts", "0"), "argument --prompts: 0 is below 1"),
        (("host", "--x"), "unrecognized arguments: --x"),
        (("fetch-model", "llama", "D"), "invalid choice: 'llama'"),
        (("capacity", "--model", "/no/such"), "/no/such: no config.json in the folder; there is no such folder"),
    ],
)
def test_bad_input_to_the_other_commands_is_one_line_and_status_2(
    run: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], says: str
) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('host = "0.0.0.0"', 'host = "0.0.0.0" is open to other machines, and no key is set; set api_key_file'),
        ('host = "no.such.host.invalid"', "is open to other machines"),
        ("port = 70000", "port = 70000 is outside 0-65535"),
        ('api_key_file = "/no/such"', "api_key_file /no/such: cannot be read"),
    ],
)
def test_an_address_that_cannot_be_served_is_one_line_and_status_2(
    tiny_folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]], lines: str, says: str
) -> None:
    settings = tmp_path / "engine.toml"
    settings.write_text(f'[model]\npath = "{tiny_folder / "target"}"\n[server]\n{lines}\n')
    status, out, err = run("serve", "--config", settings)
    assert (status, out) == (2, "")
    assert says in err and err.count("\n") == 1


def test_another_package_named_kernels_does_not_stand_in_for_the_engines_own(tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("raise ImportError('another kernels')\n")
    command = [sys.executable, "-m", "engine", "generate", "--model", str(tiny_folder / "target")]
    answered = subprocess.run(
        [*command, "--prompt-ids", "1,2,3", "--max-tokens", "2", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
    )
    assert (answered.returncode, answered.stderr) == (0, "")
    assert len(json.loads(answered.stdout)["token_ids"]) == 2
