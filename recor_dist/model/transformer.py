"""The model: a GPT-2 backbone read by three streams, with a head for tokens and one for the order.

  main stream    x_1 .. x_N SEP y_rho_1 .. y_rho_{M-1}     writes keys and values; the prompt sees itself in full,
                                                           a response token sees the prompt and its predecessors
  token queries  q + pos(j), K for each step t             read the main stream up to y_rho_{t-1}; -> token at slot j
  order queries  q_1 .. q_C for each step t                read the same; concatenated -> Q(s_t, .) over the M slots
                                                           (with C = 0, Q comes from the main stream itself)

Two baselines use the same weights in simpler ways. Left to right, the main stream itself predicts the next token
(`predict_all`). In `denoise`, prompt and response see each other in full, and the token query serves as the MASK token:
it replaces the embedding of every masked slot.

All streams share the weights. Position table: 0..N for prompt and SEP, N+1+j for response slot j. A position's vector
is learned by itself, or with model.positions=coordinates, the sum of one learned vector per coordinate of the position:
the row, the column and the box of a Sudoku cell, say, which a prompt cell and its slot share. The state s_t of step t
is (prompt, y_rho_1 .. y_rho_{t-1}), a prefix in generation order, so masks are the same for every row of a batch.

With model.loops, the stack of blocks is passed several times with the same weights.

Every parameter is a view into one flat float32 buffer, matrices first, so weights are published, loaded, clipped and
optimized as one or two arrays instead of dozens.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recor_dist.core.config import ModelConfig
from recor_dist.core.device import staged, to_device
from recor_dist.core.messages import Shape
from recor_dist.core.rng import rng

# Coordinate name -> its value at each of the N + M positions of prompt and response; -1 where a position has none.
Coordinates = Mapping[str, np.ndarray]

ALIGNMENT = 16  # floats; each parameter starts on a cache line of the flat buffer
WORTHWHILE = 2**21  # multiply-adds of a product from which oneDNN's layout pays

Pair = tuple[Tensor, Tensor]  # weight and bias, or keys and values


class Weights(NamedTuple):
    """The parameters of a block the way a pass reads them."""

    heads: int
    ln_1: Pair
    query_key_value: Pair
    query: Pair
    key_value: Pair
    attn_proj: Pair
    ln_2: Pair
    fc: Pair
    proj: Pair


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.width, 3 * config.width)  # query, key, value
        self.c_proj = nn.Linear(config.width, config.width)


class Block(nn.Module):
    """The parameters of a block under GPT-2's names; `pass_block` is what they do."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.width, self.heads = config.width, config.heads
        self.ln_1 = nn.LayerNorm(config.width)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.width)
        self.c_fc = nn.Linear(config.width, 4 * config.width)
        self.c_proj = nn.Linear(4 * config.width, config.width)

    def weights(self) -> Weights:
        def both(module: nn.LayerNorm | nn.Linear) -> Pair:
            return module.weight, module.bias

        (weight, bias), D = both(self.attn.c_attn), self.width
        return Weights(
            heads=self.heads,
            ln_1=both(self.ln_1),
            query_key_value=(weight, bias),
            query=(weight[:D], bias[:D]),
            key_value=(weight[D:], bias[D:]),
            attn_proj=both(self.attn.c_proj),
            ln_2=both(self.ln_2),
            fc=both(self.c_fc),
            proj=both(self.c_proj),
        )

    def forward(self, x: Tensor, new: int, start: int, mask: Tensor | None, onednn: bool = False) -> Tensor:
        return pass_block(self.weights(), x, new, start, mask, None, onednn)


class Cache:
    """Keys and values of the main stream, layer by layer, in buffers that are written in place.

    In a rollout they have room for M more entries after the main stream: the branches of `Model.branch_order_logits`. A
    block that is passed several times has a layer for each pass.
    """

    def __init__(self, k: Tensor, v: Tensor, positions: Tensor, blocks: list[Weights], onednn: bool) -> None:
        self.k, self.v = k.unbind(), v.unbind()  # of (loops * layers, B, H, room, D/H)
        # Weights do not change while a cache is in use, so what depends on them alone is computed once.
        self.positions = positions  # (N + 1 + M, D)
        self.blocks = blocks
        self.onednn = onednn  # for all passes with this cache, see `operand`
        self.length = 0  # entries that all layers hold

    def append(self, layer: int, new: Pair | None) -> Pair:
        """Writes new entries of one layer, if any; returns all entries of that layer. The caller advances `length`."""
        end = self.length
        if new is not None:
            end += new[0].shape[2]
            self.k[layer][:, :, self.length : end] = new[0]
            self.v[layer][:, :, self.length : end] = new[1]
        return self.k[layer][:, :, :end], self.v[layer][:, :, :end]


class RaggedCache(Cache):
    """A cache whose rows hold different numbers of entries, because a pass may write several tokens.

    The entries of row b are the first lengths[b]. What lies behind them is masked out, and is finite.
    """

    def __init__(self, k: Tensor, v: Tensor, positions: Tensor, blocks: list[Weights], onednn: bool) -> None:
        super().__init__(k, v, positions, blocks, onednn)
        self.both = k, v
        self.lengths = torch.zeros(k.shape[1], dtype=torch.int64, device=k.device)  # `length` is the largest

    def append(self, layer: int, new: Pair | None) -> Pair:
        """Writes new entries of one layer behind those of each row; the caller advances `lengths`."""
        assert new is not None
        count = new[0].shape[2]
        rows = torch.arange(len(self.lengths), device=self.lengths.device)[:, None]
        places = self.lengths[:, None] + torch.arange(count, device=rows.device)  # (B, S)
        for cached, added in zip((self.k[layer], self.v[layer]), new, strict=True):
            cached[rows, :, places] = added.transpose(1, 2).to(cached.dtype)
        end = self.length + count
        return self.k[layer][:, :, :end], self.v[layer][:, :, :end]

    def grow(self, counts: Tensor) -> None:
        """Keeps the first counts[b] of the entries that each row's last pass has appended."""
        self.lengths = self.lengths + counts
        self.length = int(self.lengths.max())

    def select(self, rows: Tensor) -> "RaggedCache":
        """A copy of some rows, which may be named several times."""
        k, v = (part[:, rows] for part in self.both)
        chosen = RaggedCache(k, v, self.positions, self.blocks, self.onednn)
        chosen.lengths, chosen.length = self.lengths[rows], self.length
        return chosen


def pass_block(
    w: Weights,
    x: Tensor,
    new: int,
    start: int,
    mask: Tensor | None,
    append: Callable[[Pair | None], Pair] | None,  # `Cache.append` of one layer
    onednn: bool,
) -> Tensor:
    """Passes x (B, S, D) through a block: the first `new` positions write keys and values, those from `start` on read
    them; returns (B, S - start, D)."""

    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (w.heads, -1)).transpose(1, 2)  # (B, S, D) -> (B, H, S, D/H)

    def linear(x: Tensor, weight_and_bias: Pair) -> Tensor:
        return F.linear(operand(x, onednn), *weight_and_bias).to_dense()

    D = x.shape[-1]
    h = F.layer_norm(x, (D,), *w.ln_1)
    q = kv = None
    if append is not None and new == h.shape[1] and not start:  # a gradient would round differently
        q, k, v = linear(h, w.query_key_value).split(D, dim=-1)
        kv = split(k), split(v)
    elif new:
        k, v = linear(h if new == h.shape[1] else h[:, :new], w.key_value).split(D, dim=-1)
        kv = split(k), split(v)
    if append is not None:
        kv = append(kv)
    assert kv is not None
    if start:
        x, h = x[:, start:], h[:, start:]
    q = split(linear(h, w.query) if q is None else q)
    y = F.scaled_dot_product_attention(q, *kv, attn_mask=mask)
    x = x + linear(y.transpose(1, 2).flatten(2), w.attn_proj)
    h = operand(F.layer_norm(x, (D,), *w.ln_2), onednn)
    return x + F.linear(F.gelu(F.linear(h, *w.fc)), *w.proj).to_dense()


def operand(x: Tensor, onednn: bool) -> Tensor:
    """x (B, S, D), in oneDNN's layout if that makes its product with a D x D matrix or a larger one faster.

    Torch multiplies float32 matrices with MKL, and with oneDNN only those in its layout. On an AMD processor with
    AVX-512, oneDNN was twice as fast (docs/benchmarks.md). It rounds differently, so `onednn` is always set for
    answers, and for training only with model.onednn, which is part of a run's identity.
    """
    return x.to_mkldnn() if onednn and x.numel() * x.shape[-1] >= WORTHWHILE else x


@dataclass(frozen=True)
class Streams:
    """The output of a training forward: logits of the K token queries and of the order, for each step."""

    tokens: Tensor  # (B, M, K, V)
    order: Tensor  # (B, M, M): logits z of Q(s_t, slot); filled slots are not masked out


class Model(nn.Module):
    def __init__(
        self, config: ModelConfig, shape: Shape, order_queries: int = 0, coordinates: Coordinates | None = None
    ) -> None:
        """`coordinates` of the N + M positions, which model.positions=coordinates needs; None for positions without
        structure."""
        super().__init__()
        self.config, self.shape, self.C, self.coordinates = config, shape, order_queries, coordinates
        D = config.width
        self.wte = nn.Embedding(shape.V + 1, D)  # the vocabulary and SEP
        structured = config.positions == "coordinates"
        self._selection = select_coordinates(shape, coordinates or {}) if structured else None  # (N + 1 + M, vectors)
        vectors = shape.N + 1 + shape.M if self._selection is None else self._selection.shape[1]
        self.wpe = nn.Embedding(vectors, D)
        self.token_query = nn.Parameter(torch.empty(D))
        self.order_query = nn.Parameter(torch.empty(order_queries, D)) if order_queries else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(D)
        self.token_head = nn.Linear(D, shape.V, bias=False)
        self.order_head = nn.Linear(max(1, order_queries) * D, shape.M)
        self.flat, self.decayed = self._make_flat()
        self._masks: dict[tuple[str, int, torch.dtype, torch.device], Tensor] = {}

    # --- the flat buffer ---------------------------------------------------------------------------------------------

    def _make_flat(
        self, device: str = "cpu", dtype: torch.dtype = torch.float32, flat: Tensor | None = None
    ) -> tuple[Tensor, int]:
        """Lays out all parameters in one buffer, a new one unless given, those with weight decay first; returns it and
        where those end."""
        # The learned queries are vectors, even if several are stacked into a matrix.
        decays = {name: p.dim() >= 2 and name != "order_query" for name, p in self.named_parameters()}
        named = sorted(self.named_parameters(), key=lambda item: not decays[item[0]])
        offsets, end, decayed = [], 0, 0
        for name, parameter in named:
            offsets.append(end)
            end += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
            decayed = end if decays[name] else decayed
        flat = torch.zeros(end, dtype=dtype, device=device) if flat is None else flat
        for (_, parameter), offset in zip(named, offsets, strict=True):
            parameter.data = flat[offset : offset + parameter.numel()].view(parameter.shape)
        return flat, decayed

    def share_gradients(self) -> Tensor:
        """Gives every parameter a gradient that is a view into one flat buffer, laid out like `flat`; returns it."""
        flat = torch.zeros_like(self.flat)
        for _, parameter, start in self.laid_out():
            parameter.grad = flat[start : start + parameter.numel()].view(parameter.shape)
        return flat

    def move(self, device: str, dtype: torch.dtype = torch.float32) -> "Model":
        """Moves the flat buffer and its views together; `nn.Module.to` would separate them."""
        before = self.flat
        self.flat, self.decayed = self._make_flat(device, dtype)
        self.flat.copy_(before)
        if self._selection is not None:
            self._selection = self._selection.to(device, dtype)
        return self

    def twin(self) -> "Model":
        """Another model on the same buffer: what is loaded into one is loaded into both."""
        other = Model(self.config, self.shape, self.C, self.coordinates)
        other.flat, other.decayed = other._make_flat(flat=self.flat)
        other._selection = self._selection
        return other

    def weights(self) -> np.ndarray:
        """A copy of all weights as one float32 array, for publishing."""
        return self.flat.detach().cpu().numpy().copy()

    def load(self, weights: np.ndarray) -> None:
        """Copies published weights into the model. Keeps no reference: the array may be shared and read-only."""
        if self.flat.device.type == "cpu":
            np.copyto(self.flat.numpy(), weights)
        else:
            self.flat.copy_(staged(weights, self.flat.device), non_blocking=True)

    def named_weights(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """The parameters in a flat array of weights, by name."""
        return {name: weights[start : start + p.numel()].reshape(p.shape) for name, p, start in self.laid_out()}

    def flat_weights(self, named: dict[str, np.ndarray]) -> np.ndarray:
        """The inverse of `named_weights`."""
        weights = np.zeros(self.flat.numel(), dtype=np.float32)
        for name, p, start in self.laid_out():
            weights[start : start + p.numel()] = named[name].reshape(-1)
        return weights

    def laid_out(self) -> Iterator[tuple[str, nn.Parameter, int]]:
        """Every parameter with its name and its offset in the flat buffer."""
        for name, parameter in self.named_parameters():
            yield name, parameter, int(parameter.storage_offset())

    def initialise(self, seed: int) -> None:
        """Sets v_0, GPT-2's initialization: normal, residual projections scaled by depth, biases 0, norms 1."""
        residual = self.config.deviation / math.sqrt(2 * self.config.layers * self.config.loops)
        with torch.no_grad():
            for index, (name, parameter) in enumerate(self.named_parameters()):
                if name.endswith("bias"):
                    parameter.zero_()
                elif "ln_" in name:
                    parameter.fill_(1.0)
                else:
                    deviation = residual if name.endswith("c_proj.weight") else self.config.deviation
                    normal = rng(seed, "initialise", index).standard_normal(tuple(parameter.shape), dtype=np.float32)
                    parameter.copy_(torch.from_numpy(normal * np.float32(deviation)))

    # --- inputs of the streams ---------------------------------------------------------------------------------------

    def _positions(self) -> Tensor:
        """(N + 1 + M, D): the vector of every position."""
        return self.wpe.weight if self._selection is None else self._selection @ self.wpe.weight

    def _prompt(self, prompts: Tensor, positions: Tensor) -> Tensor:
        """(B, N) -> (B, N + 1, D): prompt and SEP."""
        tokens = F.pad(prompts, (0, 1), value=self.shape.V)
        return self.wte(tokens) + positions[: self.shape.N + 1]

    def _slots(self, slots: Tensor, positions: Tensor) -> Tensor:
        return F.embedding(slots + self.shape.N + 1, positions)

    def _token(self, tokens: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """(B,), (B,) -> (B, 1, D): one written token per row."""
        return (self.wte(tokens) + self._slots(slots, positions))[:, None]

    def _token_query(self, slots: Tensor, positions: Tensor) -> Tensor:
        """(B,) -> (B, 1, D): one query per row."""
        return (self.token_query + self._slots(slots, positions))[:, None]

    def _order_queries(self, rows: int, steps: int) -> Tensor:
        """(rows, steps * C, D): the C query vectors, repeated for each step."""
        assert self.order_query is not None
        return self.order_query.repeat(steps, 1).expand(rows, -1, -1)

    def _run(
        self, x: Tensor, new: int, start: int, mask: Tensor | None, cache: Cache | None, answering: bool = False
    ) -> Tensor:
        """Runs all blocks. The last one skips outputs before `start`: only their keys and values are needed."""
        onednn = cache.onednn if cache is not None else self._onednn(answering)
        last = self.config.loops * len(self.blocks) - 1
        for layer in range(last + 1):
            index, begin = layer % len(self.blocks), start if layer == last else 0
            visible = mask[..., begin:, :] if mask is not None and begin else mask
            if cache is None:
                x = self.blocks[index](x, new, begin, visible, onednn)
            else:
                append = partial(cache.append, layer)
                x = pass_block(cache.blocks[index], x, new, begin, visible, append, onednn)
        if cache is not None:
            cache.length += new
        return self.ln_f(x)

    def _order_logits(self, outputs: Tensor) -> Tensor:
        """(B, steps, D) of the main stream, or (B, steps * C, D) of the order queries -> (B, steps, M)."""
        return self.order_head(outputs.unflatten(1, (-1, max(1, self.C))).flatten(2))

    # --- training ----------------------------------------------------------------------------------------------------

    def forward(self, prompts: Tensor, tokens: Tensor, order: Tensor, queries: Tensor) -> Streams:
        """All streams of whole trajectories, with one attention call per layer.

        prompts (B, N); tokens (B, M) in generation order, at slots order (B, M); queries (B, M, K) slots.
        """
        (B, M, K), N = queries.shape, self.shape.N
        L, positions = N + M, self._positions()  # no step reads y_rho_M
        written = self.wte(tokens[:, :-1]) + self._slots(order[:, :-1], positions)  # (B, M - 1, D)
        asked = self.token_query + self._slots(queries.flatten(1), positions)
        streams = [self._prompt(prompts, positions), written, asked]
        if self.C:
            streams.append(self._order_queries(B, M))
        x = torch.cat(streams, dim=1)  # (B, L + M K + M C, D)
        y = self._run(x, new=L, start=N, mask=self._mask(self._stream_mask, K, x), cache=None)
        main, answered, ordered = y.split([M, M * K, M * self.C], dim=1)  # main: from SEP on
        token_logits = self.token_head(answered).unflatten(1, (M, K))
        return Streams(token_logits, self._order_logits(ordered if self.C else main))

    def predict_all(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """Left to right: logits (B, M, V) of each response token, from the main stream at the token before it."""
        assert not self.C
        positions, slots = self._positions(), torch.arange(self.shape.M - 1, device=responses.device)
        written = self.wte(responses[:, :-1]) + self._slots(slots, positions)
        x = torch.cat([self._prompt(prompts, positions), written], dim=1)  # (B, N + M, D)
        y = self._run(x, new=x.shape[1], start=self.shape.N, mask=self._mask(self._stream_mask, 0, x), cache=None)
        return self.token_head(y)

    def denoise(self, prompts: Tensor, responses: Tensor, masked: Tensor, answering: bool = False) -> Tensor:
        """Logits (B, M, V) at every slot of responses (B, M), with the slots in `masked` (B, M) hidden."""
        N, M, positions = self.shape.N, self.shape.M, self._positions()
        tokens = torch.where(masked[..., None], self.token_query, self.wte(responses))
        x = torch.cat([self._prompt(prompts, positions), tokens + positions[N + 1 :]], dim=1)  # (B, N + 1 + M, D)
        return self.token_head(self._run(x, new=N + 1 + M, start=N + 1, mask=None, cache=None, answering=answering))

    # --- attention masks ---------------------------------------------------------------------------------------------

    def _mask(self, build: Callable[[int], np.ndarray], K: int, like: Tensor) -> Tensor:
        """The matrix to add to attention scores: 0 where `build(K)` is True, else -inf."""
        key = (build.__name__, K, like.dtype, like.device)
        if key not in self._masks:
            with torch.inference_mode(False):  # a mask that a rollout has made may be needed for a gradient
                allowed = to_device(build(K), like.device)
                self._masks[key] = like.new_zeros(allowed.shape).masked_fill(~allowed, -math.inf)
        return self._masks[key]

    def _prefixes(self) -> np.ndarray:
        """(M, L): what the queries of step t see: the prompt, SEP and y_rho_1 .. y_rho_{t-1}."""
        N, M = self.shape.N, self.shape.M
        return np.arange(N + M) < np.arange(N + 1, N + 1 + M)[:, None]

    def _stream_mask(self, K: int) -> np.ndarray:
        """(L + M K + M C, L): the main stream, the token queries, the order queries."""
        N, prefixes = self.shape.N, self._prefixes()
        prompt = np.repeat(
            prefixes[:1], N, axis=0
        )  # x_1 .. x_N; SEP and the response see what the queries of their step see
        return np.concatenate([prompt, prefixes, self._query_mask(K), prefixes.repeat(self.C, axis=0)])

    def _query_mask(self, K: int) -> np.ndarray:
        """(M K, L): the K token queries of a step see its prefix and not each other."""
        return self._prefixes().repeat(K, axis=0)

    def _branch_mask(self, _: int) -> np.ndarray:
        """(M + M C, L + M): the branch token of step t and its order queries see the prefix of step t and the token."""
        M = self.shape.M
        own = np.concatenate([self._prefixes(), np.eye(M, dtype=bool)], axis=1)  # (M, L + M)
        return np.concatenate([own, own.repeat(self.C, axis=0)])

    # --- step by step, with a cache ----------------------------------------------------------------------------------

    def new_cache(self, rows: int, answering: bool = False) -> Cache:
        """A cache for a rollout, or for `answering` prompts, which has no room for branches."""
        config = self.config
        depth, room = config.loops * config.layers, self.shape.N + (1 if answering else 2) * self.shape.M
        size = (depth, rows, config.heads, room, config.width // config.heads)
        k, v = (self.flat.new_empty(size, dtype=self._dtype()) for _ in range(2))
        blocks = [block.weights() for block in cast("Iterator[Block]", iter(self.blocks))]
        return Cache(k, v, self._positions(), blocks, onednn=self._onednn(answering))

    def new_ragged_cache(self, rows: int) -> RaggedCache:
        """A cache for answers of which a pass may write several tokens; M entries more than they have are room for what
        the longest of them appends to all."""
        config = self.config
        room = self.shape.N + 2 * self.shape.M
        size = (config.loops * config.layers, rows, config.heads, room, config.width // config.heads)
        k, v = (self.flat.new_zeros(size, dtype=self._dtype()) for _ in range(2))
        blocks = [block.weights() for block in cast("Iterator[Block]", iter(self.blocks))]
        return RaggedCache(k, v, self._positions(), blocks, onednn=self._onednn(answering=True))

    def _dtype(self) -> torch.dtype:
        """Of products, keys and values."""
        device = self.flat.device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.flat.dtype

    def _onednn(self, answering: bool) -> bool:
        """True if oneDNN multiplies: it is asked to, and it can."""
        if not (answering or self.config.onednn):
            return False
        on = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
        return on and self.flat.device.type == "cpu" and self._dtype() == torch.float32

    def start(self, prompts: Tensor, cache: Cache) -> Tensor:
        """Reads the prompts (B, N) into an empty cache; returns the order logits of s_1 (B, M)."""
        return self._next_order(self._advance(self._prompt(prompts, cache.positions), cache))

    def step(self, tokens: Tensor, slots: Tensor, cache: Cache) -> Tensor:
        """Writes one token per row (B,) at its slot (B,); returns the order logits of the next state (B, M)."""
        return self._next_order(self._advance(self._token(tokens, slots, cache.positions), cache))

    def predict_first(self, prompts: Tensor, cache: Cache) -> Tensor:
        """Left to right: reads the prompts (B, N) into an empty cache; returns logits (B, V) of the first token."""
        return self.token_head(self._advance(self._prompt(prompts, cache.positions), cache)[:, 0])

    def predict_next(self, tokens: Tensor, slots: Tensor, cache: Cache) -> Tensor:
        """Left to right: writes one token per row (B,) at its slot (B,); returns logits (B, V) of the next token."""
        return self.token_head(self._advance(self._token(tokens, slots, cache.positions), cache)[:, 0])

    def _advance(self, x: Tensor, cache: Cache) -> Tensor:
        """Writes x (B, S, D) to the cache; returns the outputs (B, 1 + C, D) of its last token and the order queries.

        Each of them may see all of x and the cache, so no mask is needed.
        """
        new = x.shape[1]
        if self.C:
            x = torch.cat([x, self._order_queries(x.shape[0], 1)], dim=1)
        return self._run(x, new=new, start=new - 1, mask=None, cache=cache)

    def _next_order(self, y: Tensor) -> Tensor:
        """(B, 1 + C, D) -> order logits (B, M)."""
        return self._order_logits(y[:, 1:] if self.C else y)[:, 0]

    def ask(self, slots: Tensor, cache: Cache) -> Tensor:
        """Token logits (B, V) for one slot per row (B,), given everything in the cache."""
        y = self._run(self._token_query(slots, cache.positions), new=0, start=0, mask=None, cache=cache)
        return self.token_head(y[:, 0])

    def ask_first(self, prompts: Tensor, asked: Tensor, cache: Cache) -> Tensor:
        """Reads the prompts (B, N) into an empty cache and asks for one slot per row (B,): token logits (B, V)."""
        return self._write_and_ask(self._prompt(prompts, cache.positions), asked, cache)

    def ask_next(self, tokens: Tensor, slots: Tensor, asked: Tensor, cache: Cache) -> Tensor:
        """Writes one token per row (B,) at its slot (B,) and asks for another slot (B,): token logits (B, V)."""
        return self._write_and_ask(self._token(tokens, slots, cache.positions), asked, cache)

    def _write_and_ask(self, x: Tensor, asked: Tensor, cache: Cache) -> Tensor:
        """One pass in place of two: the query may see all of x (B, S, D) and the cache, so no mask is needed."""
        new = x.shape[1]
        x = torch.cat([x, self._token_query(asked, cache.positions)], dim=1)
        return self.token_head(self._run(x, new=new, start=new, mask=None, cache=cache)[:, 0])

    def read_and_ask_several(self, prompts: Tensor, asked: Tensor, cache: RaggedCache) -> Tensor:
        """Reads the prompts (B, N) into an empty cache and asks for slots (B, Q): token logits (B, Q, V)."""
        x = self._prompt(prompts, cache.positions)
        return self._write_and_ask_several(x, cache.lengths + x.shape[1], asked, None, cache)

    def write_and_ask_several(
        self, tokens: Tensor, slots: Tensor, counts: Tensor, asked: Tensor, cache: RaggedCache
    ) -> Tensor:
        """Writes the first counts[b] of each row's tokens (B, S) at slots (B, S), one after another, and asks for slots
        (B, Q), given all of them: token logits (B, Q, V). What a row has beyond its count is filling."""
        S, Q, device = tokens.shape[1], asked.shape[1], tokens.device
        x = self.wte(tokens) + self._slots(slots, cache.positions)
        # A token sees the prompt and the tokens up to itself; the queries see all that is written.
        after = (cache.lengths + counts)[:, None].expand(-1, Q)
        ends = torch.cat([cache.lengths[:, None] + 1 + torch.arange(S, device=device), after], dim=1)  # (B, S + Q)
        mask = torch.arange(cache.length + S, device=device) < ends[:, None, :, None]  # (B, 1, S + Q, keys)
        return self._write_and_ask_several(x, counts, asked, mask, cache)

    def _write_and_ask_several(
        self, x: Tensor, counts: Tensor, asked: Tensor, mask: Tensor | None, cache: RaggedCache
    ) -> Tensor:
        new = x.shape[1]
        x = torch.cat([x, self.token_query + self._slots(asked, cache.positions)], dim=1)
        y = self._run(x, new=new, start=new, mask=mask, cache=cache)
        cache.grow(counts)
        return self.token_head(y)

    def ask_all(self, queries: Tensor, cache: Cache) -> Tensor:
        """Token logits (B, M, K, V) for the queries (B, M, K) of whole trajectories, from the full cache."""
        assert cache.length == self.shape.N + self.shape.M
        _, M, K = queries.shape
        x = self.token_query + self._slots(queries.flatten(1), cache.positions)
        y = self._run(x, new=0, start=0, mask=self._mask(self._query_mask, K, x), cache=cache)
        return self.token_head(y).unflatten(1, (M, K))

    def branch_order_logits(self, tokens: Tensor, slots: Tensor, cache: Cache) -> Tensor:
        """Order logits (B, M, M) of the states s_t + token, one branch per step: tokens and slots (B, M).

        A branch token follows the prefix of step t, sees that prefix and itself, and is then dropped from the cache.
        """
        assert cache.length == self.shape.N + self.shape.M
        M = self.shape.M
        x = self.wte(tokens) + self._slots(slots, cache.positions)
        if self.C:
            x = torch.cat([x, self._order_queries(x.shape[0], M)], dim=1)
        y = self._run(x, new=M, start=0, mask=self._mask(self._branch_mask, 0, x), cache=cache)
        cache.length -= M
        return self._order_logits(y[:, M:] if self.C else y)


def select_coordinates(shape: Shape, coordinates: Coordinates) -> Tensor:
    """(N + 1 + M, vectors): 1 where a position has a coordinate's value, which has a learned vector, else 0.

    Every position has one coordinate more: whether it belongs to the prompt, is SEP, or belongs to the response.
    """
    N, M = shape.N, shape.M
    with_sep = [np.insert(np.asarray(values), N, -1) for values in coordinates.values()]
    with_sep.append(np.repeat([0, 1, 2], [N, 1, M]))
    selection = [values[:, None] == np.arange(values.max() + 1) for values in with_sep]
    return torch.from_numpy(np.concatenate(selection, axis=1).astype(np.float32))


def filled_slots(order: Tensor) -> Tensor:
    """(B, M, M): True where a slot is filled in state s_t of the trajectories `order` (B, M)."""
    B, M = order.shape
    steps = torch.arange(M, device=order.device)
    step_of_slot = torch.empty_like(order).scatter_(1, order, steps.expand(B, M))
    return step_of_slot[:, None, :] < steps[:, None]
