"""Speech of a tiny model that writes codes, beside transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.in_process import weft
from weft.errors import ArgumentError, ContextError, FormatError
from weft.llm.code_speaker import CodeSpeaker, number_words, open_speaker, words_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.llm.test_vocoder import SIZES  # noqa: E402
from tests.llm.vision_models import randomised  # noqa: E402

N_CODES = 20
VOICE: dict[str, Any] = {
    "text": "a fox",
    "words": [
        {"word": "A", "duration": "0.25", "codes": [1, 2]},
        {"word": "fox", "duration": 0.5, "codes": [3, 4, 5]},
    ],
}


def save_tokenizer(folder: Path, between: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=270, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(["a fox ran over it"] * 4, trainer)
    names = ["im_start", "im_end", "text_start", "text_end", "audio_start", "audio_end", between,
             "code_start", "code_end", "t_0.25", "t_0.50", *map(str, range(N_CODES))]  # fmt: skip
    made.add_special_tokens([f"<|{name}|>" for name in names])
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return made


def make(folder: Path, between: str = "text_sep") -> tuple[Any, Any]:
    """A text model, and beside it a decoder."""
    folder.mkdir()
    tokenizer = save_tokenizer(folder, between)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=48,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        max_position_embeddings=512, bos_token_id=None, attn_implementation="eager",
    )  # fmt: skip
    model = randomised(transformers.LlamaForCausalLM(config))
    model.save_pretrained(folder)
    sizes = {"codebook_size": N_CODES, "codebook_dim": 16, "num_filters": 2}
    decoder = randomised(transformers.WavTokenizerModel(
        transformers.WavTokenizerConfig(**sizes, **SIZES[0])
    ))  # fmt: skip
    decoder.save_pretrained(folder / "wavtokenizer")
    (folder / "voices").mkdir()
    (folder / "voices" / "ann.json").write_text(json.dumps(VOICE))
    return model, tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("codes") / "model"
    model, tokenizer = make(folder)
    return model, tokenizer, folder, open_speaker(folder)


def test_the_codes_of_transformers(made: Any) -> None:
    """The most probable tokens, behind a penalty on the last 64, as sound."""
    model, tokenizer, _, speaker = made
    prompt = (
        "<|im_start|>\n<|text_start|>a<|text_sep|>fox<|text_sep|>it<|text_sep|>ran<|text_end|>\n"
        "<|audio_start|>\na<|t_0.25|><|code_start|><|1|><|2|><|code_end|>\n"
        "fox<|t_0.50|><|code_start|><|3|><|4|><|5|><|code_end|>\n"
    )
    ids = tokenizer.encode(prompt).ids
    assert speaker.prompt(["it", "ran"], speaker._voice("ann", files=False)) == ids
    got = np.concatenate(list(speaker.speak("It ran.", voice="ann", temperature=0)))
    codes = []
    for _ in range(min(512 - len(ids), 2 * 120 + 64)):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1].numpy()
        for id_ in set(ids[-64:]):
            logits[id_] *= 1.1 if logits[id_] < 0 else 1 / 1.1
        id_ = int(logits.argmax())
        if id_ in (tokenizer.token_to_id("<|audio_end|>"), tokenizer.token_to_id("<|im_end|>")):
            break
        ids.append(id_)
        piece = tokenizer.id_to_token(id_)
        if piece.strip("<|>").isdigit() and piece.startswith("<|"):
            codes.append(int(piece.strip("<|>")))
    assert len(codes) > 3
    np.testing.assert_allclose(got, speaker.vocoder.samples(codes), atol=1e-4)
    assert speaker.rate == 24000 and speaker.voices == ("ann",)


def test_words() -> None:
    assert words_of("It's 3.05 o'clock, 1,200!") == [
        "it's", "three", "point", "zero", "five", "o'clock", "one", "thousand", "two", "hundred",
    ]  # fmt: skip
    assert number_words(21_000_019) == "twenty one million nineteen"
    assert words_of("9" * 14) == ["nine"] * 14 and words_of("<|3|> _ ?") == ["three"]


def test_the_command_and_what_is_refused(made: Any, tmp_path: Path) -> None:
    _, _, folder, speaker = made
    out = tmp_path / "a.wav"
    done = weft("speak", folder, "It ran.", "-o", out, "--temperature", "0", "--voice", "ann")
    assert done.returncode == 0
    assert out.read_bytes() == speaker.wav("It ran.", voice="ann", temperature=0)
    assert "weights of the decoder" in weft("speak", folder, "--explain").stdout
    one, two = (speaker.wav("It ran.", seed=seed) for seed in (1, 2))
    assert one == speaker.wav("It ran.", seed=1) != two
    (tmp_path / "bad.json").write_text(json.dumps({"words": [{"word": "a", "codes": [99]}]}))
    (tmp_path / "long.json").write_text(json.dumps({"words": VOICE["words"] * 60}))
    for text, voice, error, why in (
        (" ?! ", None, ArgumentError, "the text is empty"),
        ("a" * 70000, None, ArgumentError, "has 70000 characters"),
        ("a", "zed", ArgumentError, "known are ann"),
        ("a", tmp_path / "bad.json", FormatError, "no voice of OuteTTS"),
        ("a", tmp_path / "long.json", ContextError, "give a shorter voice"),
    ):
        with pytest.raises(error, match=why):
            list(speaker.speak(text, voice=voice))
    with pytest.raises(ArgumentError, match="seed is -1; it is 0 or more"):
        speaker.speak("a", seed=-1)
    with pytest.raises(ArgumentError, match="known are ann"):
        speaker.speak("a", voice="a" * 5000)  # longer than names of files are
    with pytest.raises(ArgumentError, match="steps is 3, which only Pocket TTS has"):
        open_speaker(folder, steps=3)
    with pytest.raises(FormatError, match="no tokens of codes and words"):
        CodeSpeaker("examples/weft-demo.gguf", folder / "wavtokenizer")
    assert "as --mmproj" in weft("speak", "examples/weft-demo.gguf", "a", "-o", out).stderr
    assert "with OuteTTS" in weft("run", folder / "wavtokenizer", "-p", "a").stderr


def test_a_model_that_writes_no_sound(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, instead of an empty sound."""
    speaker = made[3]
    monkeypatch.setattr(speaker, "_codes", {})
    with pytest.raises(ContextError, match="the model wrote no sound for the text"):
        speaker.wav("It ran.")


def test_marks_of_the_third_version(tmp_path: Path) -> None:
    _, tokenizer = make(tmp_path / "model", "space")
    speaker = open_speaker(tmp_path / "model")
    assert isinstance(speaker, CodeSpeaker)
    want = (
        "<|im_start|>\n<|text_start|>a<|space|>fox<|space|>it<|text_end|>\n<|audio_start|>\n"
        "a<|t_0.25|><|1|><|2|><|space|>\nfox<|t_0.50|><|3|><|4|><|5|><|space|>\n"
    )
    got = speaker.prompt(["it"], speaker._voice("ann", files=False))
    assert got == tokenizer.encode(want).ids
