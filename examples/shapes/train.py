"""Train a small LLaVA that names shapes and colours, and write it as a Hugging Face folder.

    python examples/shapes/train.py FOLDER           # trains, then writes the folder

Needs torch, transformers, tokenizers and Pillow. The pictures and questions come from pictures.py;
nothing is downloaded. The same seed, thread count, processor and version of torch give the same
model. `weft convert` makes the GGUF files of the folder (README.md).
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np
import pictures
import tokenizers
import torch
import torch.nn.functional as F
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor

SIDE, PATCH = 48, 8
N_ROWS = (SIDE // PATCH) ** 2
"""Rows of a picture in the text model."""
SPECIAL = ["<s>", "</s>", "<image>", "<|user|>", "<|assistant|>"]
BOS, EOS, IMAGE, USER, ASSISTANT = range(5)
TEMPLATE = """{{ bos_token }}{% for message in messages %}\
{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}<|assistant|>\
{% elif message['role'] == 'assistant' %}{{ message['content'] }}{{ eos_token }}\
{% endif %}{% endfor %}"""


def make_tokenizer() -> tokenizers.Tokenizer:
    """Byte-level BPE in which every word of the questions and answers is one token."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(pictures.texts(), trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))  # fmt: skip
    return made


def make_model(n_vocab: int) -> transformers.LlavaForConditionalGeneration:
    text = transformers.LlamaConfig(
        vocab_size=n_vocab, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    vision = transformers.CLIPVisionConfig(
        hidden_size=96, intermediate_size=192, num_hidden_layers=4, num_attention_heads=3,
        image_size=SIDE, patch_size=PATCH, projection_dim=96,
    )  # fmt: skip
    config = transformers.LlavaConfig(
        text_config=text, vision_config=vision, image_token_id=IMAGE, vision_feature_layer=-1,
        vision_feature_select_strategy="default", image_seq_length=N_ROWS,
        tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration(config)


# --- what is trained on -----------------------------------------------------------------------


def pixels_of(image: pictures.Image.Image) -> np.ndarray:
    """The picture in the middle of a grey square, as CLIP's processor for LLaVA has it, f32
    [3, SIDE, SIDE]."""
    side = max(image.size)
    square = pictures.Image.new("RGB", (side, side), (127, 127, 127))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    small = square.resize((SIDE, SIDE), pictures.Image.Resampling.BICUBIC)
    return (np.asarray(small, np.float32).transpose(2, 0, 1) / 255 - 0.5) / 0.5


def conversation(
    tok: tokenizers.Tokenizer, rng: random.Random, n_pictures: int, n_questions: int, broad: bool
) -> tuple[list[int], list[bool], list[np.ndarray]]:
    """Ids, which of them are answers, and the pictures."""
    ids, answers, seen = [BOS], [False], []

    def put(new: list[int], answer: bool = False) -> None:
        ids.extend(new)
        answers.extend([answer] * len(new))

    for _ in range(n_pictures):
        scene = pictures.scene(rng, held_out=False)
        seen.append(pixels_of(pictures.draw(scene, rng, broad=broad)))
        for i in range(n_questions):
            question, answer = pictures.ask(scene, rng)
            parts = [tok.encode(question).ids]
            if i == 0:  # clients put the picture before the question or behind it
                parts.insert(int(rng.random() < 0.3), [IMAGE] * N_ROWS)
            put([USER, *(t for part in parts for t in part), ASSISTANT])
            put([*tok.encode(answer).ids, EOS], answer=True)
    return ids, answers, seen


def batch(
    tok: tokenizers.Tokenizer, rng: random.Random, size: int, broad: bool
) -> tuple[Tensor, ...]:
    """Ids and labels [n, longest], and pixels of `size` pictures, some of them in twos."""
    n_pictures = 2 if rng.random() < 0.15 else 1
    made = [conversation(tok, rng, n_pictures, 4, broad) for _ in range(size // n_pictures)]
    longest = max(len(ids) for ids, _, _ in made)
    ids = torch.full((len(made), longest), EOS)
    labels = torch.full((len(made), longest), -100)
    for row, (tokens, answers, _) in enumerate(made):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, : len(tokens)] = torch.where(
            torch.tensor(answers), ids[row, : len(tokens)], -100
        )
    return ids, labels, torch.from_numpy(np.stack([p for _, _, seen in made for p in seen]))


# --- training ---------------------------------------------------------------------------------


def train(model: torch.nn.Module, tok: tokenizers.Tokenizer, args: argparse.Namespace) -> None:
    rng = random.Random(args.seed)
    named = dict(model.named_parameters())
    hidden = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name]
    taken = {id(p) for p in hidden}
    others = [p for p in named.values() if id(p) not in taken]
    # Muon learns from fewer examples than AdamW does, but is meant for hidden matrices alone.
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(hidden, lr=args.rate, weight_decay=0.1),
        torch.optim.AdamW(others, lr=args.rate / 5, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    peaks = [o.param_groups[0]["lr"] for o in optimizers]
    start, total, count = time.process_time(), 0.0, 0
    for step in range(1, args.steps + 1):
        # Warm up over 50 steps, then fall to zero in a straight line.
        scale = min(step / 50, 1 - (step - 1) / args.steps)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * scale
            optimizer.zero_grad()
        ids, labels, pixels = batch(tok, rng, args.batch, args.broad)
        logits = model(input_ids=ids, pixel_values=pixels, use_cache=False).logits[:, :-1]
        wanted = labels[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        total, count = total + loss.item(), count + 1
        if step % args.every == 0 or step == args.steps:
            right = ((logits.argmax(-1) == wanted) | (wanted == -100)).all(-1).float().mean()
            print(
                f"step {step:5}  loss {total / count:.4f}  conversations without a mistake "
                f"{right:5.1%}  {time.process_time() - start:4.0f} s",
                flush=True,
            )
            total, count = 0.0, 0


def save(model: torch.nn.Module, tok: tokenizers.Tokenizer, folder: Path) -> None:
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tok, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)
    transformers.CLIPImageProcessor(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE},
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    ).save_pretrained(folder)  # fmt: skip
    (folder / "README.md").write_text("---\nlicense: mit\n---\nNames shapes and colours.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small model that names shapes.")
    parser.add_argument("folder", type=Path, help="where the model is written")
    parser.add_argument("--start", type=Path, help="a folder to go on from, in place of chance")
    parser.add_argument("--broad", action="store_true", help="dark grounds, wider pictures, ...")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the pictures")
    parser.add_argument("--steps", type=int, default=3000, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=32, help="pictures a step")
    parser.add_argument("--rate", type=float, default=0.01, help="Muon's learning rate")
    parser.add_argument("--every", type=int, default=200, help="steps between lines of progress")
    parser.add_argument("--threads", type=int, default=1, help="threads that torch may use")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tok = make_tokenizer()
    if args.start is None:
        model = make_model(tok.get_vocab_size())
    else:
        model = transformers.LlavaForConditionalGeneration.from_pretrained(args.start)
    train(model, tok, args)
    save(model, tok, args.folder)


if __name__ == "__main__":
    main()
