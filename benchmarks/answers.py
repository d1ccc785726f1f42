"""`python -m benchmarks.answers`: how fast answers are, compared with GPT-2 of Hugging Face and with AdaMDM.

Needs `pip install -c constraints.txt -e '.[benchmarks]'`. All three have 3 layers of width 384 and random weights, and
answer 20 tokens with 20 on one core. GPT-2 writes from left to right with its cache, and is not asked for an order.
Rounds are interleaved; every number is a median over rounds.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from recor_dist.core.config import ModelConfig
from recor_dist.core.messages import Shape
from recor_dist.core.rng import rng
from recor_dist.model.decoding import generate
from recor_dist.model.denoising import denoise_adaptively, margin
from recor_dist.model.transformer import Model

SIZE, SHAPE = ModelConfig(layers=3, width=384, heads=12), Shape(N=20, M=20, V=7)


def gpt2() -> Callable[[np.ndarray], object]:
    try:
        transformers: Any = import_module("transformers")  # an extra, which the type checker may not find
    except ModuleNotFoundError:
        sys.exit("transformers is missing: pip install -c constraints.txt -e '.[benchmarks]'")
    config = transformers.GPT2Config(
        vocab_size=SHAPE.V + 1,
        n_positions=SHAPE.N + 1 + SHAPE.M,
        n_embd=SIZE.width,
        n_layer=SIZE.layers,
        n_head=SIZE.heads,
        bos_token_id=SHAPE.V,
        eos_token_id=None,
        pad_token_id=SHAPE.V,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    greedy = transformers.GenerationConfig(
        max_new_tokens=SHAPE.M, min_new_tokens=SHAPE.M, do_sample=False, use_cache=True, pad_token_id=SHAPE.V
    )

    @torch.inference_mode()
    def answer(prompts: np.ndarray) -> object:
        tokens = torch.as_tensor(np.pad(prompts.astype(np.int64), ((0, 0), (0, 1)), constant_values=SHAPE.V))
        return model.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=greedy)

    return answer


def main(scale: float) -> None:
    """`scale` multiplies the number of rounds."""
    torch.set_num_threads(1)
    model = Model(SIZE, SHAPE)
    model.initialise(0)
    adamdm = partial(denoise_adaptively, random=rng(0, "benchmark"), steps=20, score=margin)
    answers = {"ReCOR": partial(generate, model), "GPT-2": gpt2(), "AdaMDM": partial(adamdm, model)}
    print(f"{'prompts':>7}{'ReCOR ms':>10}{'GPT-2 / ReCOR':>15}{'AdaMDM, T=20 / ReCOR':>22}")
    for prompts, rounds in ((1, 30), (32, 8), (256, 3)):
        rows = rng(0, "benchmark", prompts).integers(0, SHAPE.V, (prompts, SHAPE.N))
        seconds = {name: [] for name in answers}
        for warm in [True] + [False] * max(1, round(rounds * scale)):
            for name, answer in answers.items():
                began = time.perf_counter()
                answer(rows)
                if not warm:
                    seconds[name].append(time.perf_counter() - began)
        ours = np.array(seconds["ReCOR"])
        others = [np.median(np.array(seconds[name]) / ours) for name in ("GPT-2", "AdaMDM")]
        print(f"{prompts:>7}{1000 * np.median(ours):>10.1f}{others[0]:>15.2f}{others[1]:>22.1f}")


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
