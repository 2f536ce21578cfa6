"""BERT inference: the architecture of `transformers` with weights from a seed; nothing is downloaded.

Token ids follow Zipf's law, sentences have random lengths and are padded. Attention is computed as plain products
("eager"), which can be intercepted. The run passes if the hidden states of a sample of sentences differ from a
float64 run with correctly rounded products by at most 64·√hidden·u.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch

import prismm
from prismm.applications.application import Application, Unavailable, Verdict, main
from prismm.applications.references import relative


@dataclass(frozen=True)
class Batch:
    """The model, token ids and attention mask (sentences, length)."""

    model: Any
    ids: torch.Tensor
    mask: torch.Tensor


def make(size: int, seed: int, device: str, dtype: torch.dtype) -> Batch:
    """BERT with hidden states of `size` (at 1024 BERT-large's 24 layers, below fewer) and size/16 sentences."""
    try:
        from transformers import BertConfig, BertModel
    except ImportError as error:
        raise Unavailable(
            f"BERT's architecture comes from transformers ({error}); install it with: pip install transformers"
        ) from error
    layers, sentences, length = max(2, size * 24 // 1024), max(4, size // 16), 512 if size >= 512 else 64
    config = BertConfig(
        hidden_size=size, num_hidden_layers=layers, num_attention_heads=max(1, size // 64),
        intermediate_size=4 * size, attn_implementation="eager",
    )  # fmt: skip
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = BertModel(config, add_pooling_layer=False).eval().to(device)
    torch.random.set_rng_state(state)
    generator = torch.Generator().manual_seed(seed)
    ranks = 1.0 / torch.arange(1, config.vocab_size + 1, dtype=torch.float64)
    ids = torch.multinomial(ranks, sentences * length, replacement=True, generator=generator)
    lengths = torch.randint(length // 4, length + 1, (sentences, 1), generator=generator)
    mask = (torch.arange(length)[None] < lengths).long()
    return Batch(model, ids.reshape(sentences, length).to(device), mask.to(device))


@torch.no_grad()
def solve(batch: Batch) -> torch.Tensor:
    """Hidden states of the last layer."""
    found: torch.Tensor = batch.model(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
    return found


@torch.no_grad()
def refer(batch: Batch) -> torch.Tensor:
    """Hidden states of the first two sentences by correctly rounded products in float64."""
    model = copy.deepcopy(batch.model).double()
    with prismm.emulate("correctly-rounded"):
        found: torch.Tensor = model(input_ids=batch.ids[:2], attention_mask=batch.mask[:2]).last_hidden_state
    return found


def judge(batch: Batch, output: torch.Tensor, reference: torch.Tensor) -> Verdict:
    """The relative error over the tokens that are no padding."""
    tokens = batch.mask[:2].bool()
    error = relative(output[:2][tokens], reference[tokens])
    limit = 64 * math.sqrt(output.shape[-1]) * 2.0**-24
    return Verdict(error, error <= limit, f"error {error:.2g} (at most {limit:.2g})")


APP = Application("bert", "BERT", make, solve, refer, judge, {"quick": 64, "cpu": 256, "cuda": 1024})

if __name__ == "__main__":
    main(APP)
