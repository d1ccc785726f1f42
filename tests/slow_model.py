"""A slow reference model in float64 NumPy, written from the paper's description: one state and one query at a time.

No masks, no caches, no batches: the main stream of a state is recomputed from its prompt and the tokens written so far,
and a query then reads it, layer by layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recor_dist.model.transformer import Model


@dataclass(frozen=True)
class State:
    """s_t: a prompt and the (slot, token) pairs written so far, in generation order."""

    prompt: tuple[int, ...]
    written: tuple[tuple[int, int], ...] = ()

    def write(self, slot: int, token: int) -> "State":
        return State(self.prompt, (*self.written, (slot, token)))

    @property
    def filled(self) -> set[int]:
        return {slot for slot, _ in self.written}


class SlowModel:
    def __init__(self, model: Model) -> None:
        self.w = {name: p.detach().numpy().astype(np.float64) for name, p in model.named_parameters()}
        self.N, self.M, self.V, self.C = model.shape.N, model.shape.M, model.shape.V, model.C
        self.layers, self.heads = model.config.layers, model.config.heads
        self.passes = [layer for _ in range(model.config.loops) for layer in range(self.layers)]
        self.positions = [self._position(model, position) for position in range(self.N + 1 + self.M)]

    def _position(self, model: Model, position: int) -> np.ndarray:
        """(D,): the vector of position 0..N (prompt and SEP) or N + 1 + slot."""
        table, N = self.w["wpe.weight"], self.N
        if model.config.positions == "absolute":
            return table[position]
        vector, start = np.zeros(table.shape[1]), 0
        for values in (model.coordinates or {}).values():
            value = -1 if position == N else values[position if position < N else position - 1]
            vector += table[start + value] if value >= 0 else 0
            start += max(values) + 1
        part = 0 if position < N else 1 if position == N else 2
        assert len(table) == start + 3
        return vector + table[start + part]

    def token_logits(self, state: State, slot: int) -> np.ndarray:
        """(V,): logits of the token at a slot, given a state."""
        query = self.w["token_query"] + self.positions[self.N + 1 + slot]
        return self.w["token_head.weight"] @ self._read(self._main_stream(state), query)

    def order_logits(self, state: State) -> np.ndarray:
        """(M,): z of Q(s, slot)."""
        layers = self._main_stream(state)
        if self.C:
            outputs = np.concatenate([self._read(layers, query) for query in self.w["order_query"]])
        else:
            outputs = self._norm(layers[-1][-1], "ln_f")
        return self.w["order_head.weight"] @ outputs + self.w["order_head.bias"]

    def next_logits(self, state: State) -> np.ndarray:
        """(V,): logits of the token after the last written one, from the main stream."""
        return self.w["token_head.weight"] @ self._norm(self._main_stream(state)[-1][-1], "ln_f")

    def denoised_logits(self, prompt: Sequence[int], response: Sequence[int | None]) -> np.ndarray:
        """(M, V): logits of masked diffusion, where every position sees every other; None is a masked slot."""
        embedding = self.w["wte.weight"]
        tokens = [*embedding[list(prompt)], embedding[self.V]]
        tokens += [self.w["token_query"] if token is None else embedding[token] for token in response]
        x = np.stack(tokens) + np.stack(self.positions)
        for layer in self.passes:
            x = np.stack([self._block(layer, row, x) for row in x])
        return np.stack([self.w["token_head.weight"] @ self._norm(row, "ln_f") for row in x[self.N + 1 :]])

    def _main_stream(self, state: State) -> list[np.ndarray]:
        """The input of each layer and the output of the last one, (rows, D) each."""
        tokens = [*state.prompt, self.V, *(token for _, token in state.written)]
        positions = [*range(self.N + 1), *(self.N + 1 + slot for slot, _ in state.written)]
        x = self.w["wte.weight"][tokens] + np.stack([self.positions[p] for p in positions])
        layers = [x]
        for layer in self.passes:
            # The prompt and SEP see all of the prompt and SEP; a written token sees those and the tokens up to itself.
            visible = [max(self.N + 1, row + 1) for row in range(len(x))]
            x = np.stack([self._block(layer, x[row], x[:end]) for row, end in enumerate(visible)])
            layers.append(x)
        return layers

    def _read(self, layers: list[np.ndarray], query: np.ndarray) -> np.ndarray:
        """Passes a query through all layers; it sees the whole main stream of its state, but not itself."""
        for layer, context in zip(self.passes, layers, strict=False):
            query = self._block(layer, query, context)
        return self._norm(query, "ln_f")

    def _block(self, layer: int, x: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Passes one row x (D,) through a block; its attention reads `context` (rows, D)."""
        name = f"blocks.{layer}"
        weight, bias = self.w[f"{name}.attn.c_attn.weight"], self.w[f"{name}.attn.c_attn.bias"]
        D = len(x)
        q = weight[:D] @ self._norm(x, f"{name}.ln_1") + bias[:D]
        normed = self._norm(context, f"{name}.ln_1")
        k, v = normed @ weight[D : 2 * D].T + bias[D : 2 * D], normed @ weight[2 * D :].T + bias[2 * D :]
        heads = []
        for h in np.split(np.arange(D), self.heads):
            scores = k[:, h] @ q[h] / math.sqrt(len(h))
            weights = np.exp(scores - scores.max())
            heads.append(weights / weights.sum() @ v[:, h])
        x = x + self.w[f"{name}.attn.c_proj.weight"] @ np.concatenate(heads) + self.w[f"{name}.attn.c_proj.bias"]
        hidden = self.w[f"{name}.c_fc.weight"] @ self._norm(x, f"{name}.ln_2") + self.w[f"{name}.c_fc.bias"]
        gelu = hidden * np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in hidden])
        return x + self.w[f"{name}.c_proj.weight"] @ gelu + self.w[f"{name}.c_proj.bias"]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return normed * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - math.log(np.exp(shifted).sum())
