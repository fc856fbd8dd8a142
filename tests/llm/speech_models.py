"""A tiny model of Whisper with random weights, as a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.llm.vision_models import randomised

POSITIONS = 50
"""Rows of a window of a second."""
SPECIAL = ["endoftext", "startoftranscript", "en", "de", "translate", "transcribe", "startoflm",
           "startofprev", "nospeech", "notimestamps"]  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "small": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "num_mel_bins": 16,
              "encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
              "decoder_ffn_dim": 40},
    "large": {"d_model": 48, "encoder_layers": 3, "decoder_layers": 1, "num_mel_bins": 24,
              "encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_ffn_dim": 64,
              "decoder_ffn_dim": 56},
}  # fmt: skip


def save_tokenizer(folder: Path, special: list[str]) -> Any:
    """Trains bytes on a line, with the tokens of Whisper behind; returns the tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(["the quick brown fox jumps over the lazy dog. äöü"] * 4, trainer)
    made.add_special_tokens([f"<|{name}|>" for name in special])
    made.add_tokens([f"<|{i * 0.02:.2f}|>" for i in range(POSITIONS + 1)])
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "WhisperTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return made


def make(folder: Path, kind: str = "small", *, english: bool = False) -> Any:
    """The model, which is saved in the folder; `english` has no tokens of languages and tasks."""
    import transformers

    some = [n for n in SPECIAL if not (english and n in ("en", "de", "translate", "transcribe"))]
    tokenizer = save_tokenizer(folder, some)
    id_of = {name: tokenizer.token_to_id(f"<|{name}|>") for name in some}
    end, start = id_of["endoftext"], id_of["startoftranscript"]
    config = transformers.WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(), max_source_positions=POSITIONS,
        max_target_positions=48, decoder_start_token_id=start, eos_token_id=end, pad_token_id=end,
        bos_token_id=end, attn_implementation="eager", **KINDS[kind],
    )  # fmt: skip
    model = randomised(transformers.WhisperForConditionalGeneration(config))
    told = model.generation_config
    told.no_timestamps_token_id, told.is_multilingual = id_of["notimestamps"], not english
    told.max_initial_timestamp_index, told.max_length = 20, 48
    told.prev_sot_token_id = id_of["startofprev"]
    told.begin_suppress_tokens = [5, end]
    told.suppress_tokens = [7, 8, *(id_of[name] for name in some[1:-1])]
    if not english:
        told.lang_to_id = {f"<|{code}|>": id_of[code] for code in ("en", "de")}
        told.task_to_id = {task: id_of[task] for task in ("translate", "transcribe")}
    model.save_pretrained(folder)
    return model
