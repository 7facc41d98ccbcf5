"""Writes a tiny random model in the Hugging Face layout, for vLLM and SGLang: python tiny_model.py llama FOLDER

The tokenizer is byte-level without merges: one ASCII character is one token, so that prompt_tokens can be predicted. The
output head prefers the letters a-z and the space, so that replies are readable text that never ends by itself: set
max_tokens. With --words, each word of the lexicon is one token too, and replies consist of those. Runs in an engine's own environment, for it needs torch and transformers; takes a few seconds.
"""

import argparse
import json
import string
import sys
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

sys.path.insert(0, str(Path(__file__).parents[1]))
from lexicon import LEXICON

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|pad|>"]
VOCAB_SIZE = 576  # 256 bytes, the special tokens and as many words as bytes, rounded up
CONTEXT = 131072

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

ATTENTION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "vocab_size": VOCAB_SIZE,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 257,
    "pad_token_id": 258,
}

KINDS = {
    "llama": {**ATTENTION, "num_hidden_layers": 2},
    # Three Gated DeltaNet layers and one attention layer. Both engines want MoE layers.
    "qwen3_next": {
        **ATTENTION,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
    # Three Mamba2 layers and one attention layer.
    "granitemoehybrid": {
        **ATTENTION,
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "mamba", "mamba", "attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 128,
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_n_groups": 1,
        "mamba_d_state": 32,
        "mamba_expand": 2,
        "mamba_chunk_size": 64,
    },
}


def write_tokenizer(folder: Path, words: list[str]) -> None:
    chars = bytes_to_unicode()
    said = [*chars.values(), *SPECIAL, *("".join(chars[byte] for byte in word.encode()) for word in words)]
    vocab = {text: at for at, text in enumerate(said)} | {char: byte for byte, char in chars.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    cut = pre_tokenizers.Split(Regex("[a-z]{3} "), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    assert [tokenizer.token_to_id(name) for name in SPECIAL] == [256, 257, 258]
    assert all(len(tokenizer.encode(word).ids) == 1 for word in words)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def prefer(model: torch.nn.Module, tokens: list[int]) -> None:
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        head.zero_()
        head[tokens] = 2 * torch.randn(len(tokens), head.shape[1]).to(head.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--words", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    config = AutoConfig.for_model(args.kind, **KINDS[args.kind])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    words = LEXICON if args.words else []
    first = 256 + len(SPECIAL)
    letters = [ord(char) for char in string.ascii_lowercase + " "]
    prefer(model, list(range(first, first + len(words))) or letters)
    args.folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.folder)
    # Engines read settings that transformers leaves out, such as full_attention_interval.
    path = args.folder / "config.json"
    path.write_text(json.dumps({**KINDS[args.kind], **json.loads(path.read_text())}, indent=2))
    write_tokenizer(args.folder, words)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{args.folder}: {args.kind}, {count} parameters")


if __name__ == "__main__":
    main()
