"""Turn a GGUF file of a llama-architecture model into an ordinary Hugging Face folder.

The quantised blocks are dequantised in float32 and stored as bfloat16. For Q4_1 and Q8_0 sources the rounding to bfloat16 (relative
error up to 2^-9) is far below the quantisation step already paid, and it is the precision the models were published in.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.errors import EngineError

# The tensors of one block: GGUF name -> Hugging Face name.
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL: never produced by splitting text


def write_hf_folder(gguf_path: Path, folder: Path) -> None:
    """Write config, weights, tokenizer and chat template of `gguf_path` into the existing `folder`.

    Raises EngineError where the file is not a llama-architecture model with a "smollm" byte-level BPE tokenizer.
    """
    reader = GGUFReader(str(gguf_path))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    for key, wanted in (
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
    ):
        if fields.get(key) != wanted:
            raise EngineError(
                f"{key} is {fields.get(key)!r}, this converter knows {wanted!r}",
                where=str(gguf_path),
                mend="use the published SmolLM2 package",
            )
    tied = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    _write_json(folder / "config.json", _config(fields, tied))
    _write_json(folder / "generation_config.json", _generation_config(fields))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")
    build_tokenizer(fields).save(str(folder / "tokenizer.json"))
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    weights = dict(_hf_tensor(tensor, heads, kv_heads) for tensor in reader.tensors)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def build_tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """The byte-level BPE of a "smollm" GGUF: single digits are split off first, and no space is put before the text."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def _hf_tensor(tensor: ReaderTensor, heads: int, kv_heads: int) -> tuple[str, torch.Tensor]:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    outer = _OUTER_NAMES.get(tensor.name)
    if outer is not None:
        name = outer
    else:
        _, layer, part, _ = tensor.name.split(".")  # blk.7.attn_q.weight
        name = f"model.layers.{layer}.{_BLOCK_NAMES[part]}.weight"
        if part == "attn_q":
            values = _split_halves(values, heads)
        elif part == "attn_k":
            values = _split_halves(values, kv_heads)
    return name, torch.from_numpy(np.array(values, dtype=np.float32)).to(torch.bfloat16)


def _split_halves(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Undo GGUF's RoPE row order: it interleaves the two rotated halves of each head, Hugging Face keeps them apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "head_dim": fields["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        # Stored as float32; six digits give back the decimal the model was configured with.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_scaling": None,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "vocab_size": fields["llama.vocab_size"],
    }


def _generation_config(fields: dict[str, Any]) -> dict[str, Any]:
    names = ("bos", "eos", "padding")
    bos, eos, pad = (fields[f"tokenizer.ggml.{name}_token_id"] for name in names)
    return {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
