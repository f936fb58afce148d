"""Work of layers other than plain and latent attention on one device: linear, sparse, state space.

Plain numbers that `operations` turns into operations. A state is read and written once per step of
a sequence in decode and once per chunk in prefill, and its arithmetic grows with the tokens:
both hold if it is counted as a window of one chunk, which is how the kernels work (FLA and
Mamba-2 chunks of 64 to 256 tokens; 64 here).

| mixer | FLOPs per token and head, d_k x d_v state |
|---|---|
| delta rule (gated delta net, KDA) | 7: fade, read, correct, write, read out |
| lightning attention, Mamba-2 | 5: fade, write, read out |
"""

from __future__ import annotations

from typing import NamedTuple

from servetune.models.counting import cache_parts, state_bytes
from servetune.models.shape import (
    Attention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    SparseIndex,
    StateSpace,
)

_CHUNK_TOKENS = 64


class Product(NamedTuple):
    """One matrix product of a layer: its name, size on one device, and whether it is packed.

    What is not packed keeps the model's dtype in quantised checkpoints.
    """

    name: str
    outputs: float
    inputs: float
    packed: bool = True


class Reading(NamedTuple):
    """FLOPs and bytes of a query per key, and the number of latest keys: one kernel each."""

    prefill_flops_per_pair: float
    decode_flops_per_key: float
    cache_bytes_per_key: float
    window: int | None = None
    latent: bool = False
    indexing: bool = False


def products(mixer: Mixer | None, hidden: int, ways: int) -> list[Product]:
    """Matrix products of a mixer, without those of plain and latent attention themselves."""
    if isinstance(mixer, LinearAttention):
        return _linear_products(mixer, hidden, ways)
    if isinstance(mixer, StateSpace):
        columns = (mixer.inner + mixer.conv_channels + mixer.heads) / ways
        return [
            Product("state in", columns, hidden),
            Product("state out", hidden, mixer.inner / ways),
        ]
    if isinstance(mixer, CompressedAttention):
        return _compressed_products(mixer, hidden, ways)
    found: list[Product] = []
    if isinstance(mixer, Attention) and mixer.gate_columns:
        found.append(Product("attention gate", mixer.gate_columns / ways, hidden))
    if isinstance(mixer, LatentAttention) and mixer.output_gate:
        found.append(Product("attention gate", mixer.heads * mixer.value_dim / ways, hidden))
    if isinstance(mixer, Attention | LatentAttention) and mixer.index is not None:
        found += _index_products(mixer.index, hidden, keyed=True)
    return found


def _linear_products(mixer: LinearAttention, hidden: int, ways: int) -> list[Product]:
    values = mixer.value_heads * mixer.value_dim / ways
    found = [Product("linear in", mixer.conv_channels / ways, hidden)]
    ranks = [] if mixer.gate_rank is None else [("gate", mixer.gate_rank)]
    if mixer.gate_rank is None:
        found.append(Product("linear gate", values, hidden))
    if mixer.decay == "channel":
        ranks.append(("decay", mixer.decay_rank or mixer.key_dim))
    for name, rank in ranks:
        found.append(Product(f"linear {name} down", rank, hidden))
        found.append(Product(f"linear {name} up", values, rank))
    return [*found, Product("linear out", hidden, values)]


def _compressed_products(mixer: CompressedAttention, hidden: int, ways: int) -> list[Product]:
    heads = mixer.heads / ways
    groups = mixer.output_groups / ways
    found = [
        Product("latent down", mixer.q_rank + mixer.head_dim, hidden),
        Product("query", heads * mixer.head_dim, mixer.q_rank),
        # Each group of heads has its own matrix: as many columns, and its heads as inputs.
        Product(
            "output down",
            groups * mixer.output_rank,
            mixer.heads / mixer.output_groups * mixer.head_dim,
        ),
        Product("attention output", hidden, groups * mixer.output_rank),
    ]
    copies = 2 if mixer.overlapping else 1
    if mixer.ratio:
        found.append(Product("compressor", 2 * copies * mixer.head_dim, hidden, packed=False))
    if mixer.index is not None:
        found += _index_products(mixer.index, hidden, keyed=False)
        found.append(
            Product("index compressor", 2 * copies * mixer.index.dim, hidden, packed=False)
        )
    return found


def _index_products(index: SparseIndex, hidden: int, *, keyed: bool) -> list[Product]:
    found = [Product("index queries", index.heads * index.dim, index.query_rank or hidden)]
    if keyed:
        found.append(Product("index keys", index.dim, hidden))
    if index.weighted:
        found.append(Product("index weights", index.heads, hidden, packed=False))
    return found


def readings(
    mixer: Mixer | None, ways: int, cache_width_bytes: float, plain_bytes: float
) -> list[Reading] | None:
    """Readings of a mixer per key; `None` for plain and latent attention over all keys."""
    if mixer is None:
        return []
    if isinstance(mixer, LinearAttention):
        numbers = mixer.value_heads * mixer.key_dim * mixer.value_dim / ways
        operations = 5 if mixer.decay == "fixed" else 7
        flops = operations * numbers + 2 * mixer.conv_width * mixer.conv_channels / ways
        return [_state(flops, state_bytes(mixer, plain_bytes, tensor_parallel=ways))]
    if isinstance(mixer, StateSpace):
        numbers = mixer.heads * mixer.head_dim * mixer.state / ways
        flops = 5 * numbers + 2 * mixer.conv_width * mixer.conv_channels / ways
        return [_state(flops, state_bytes(mixer, plain_bytes, tensor_parallel=ways))]
    if isinstance(mixer, CompressedAttention):
        return _compressed_readings(mixer, ways, cache_width_bytes)
    if mixer.top_k is None:
        return None
    return _sparse_readings(mixer, ways, cache_width_bytes)


def _state(flops_per_token: float, state: float) -> Reading:
    share = 1 / _CHUNK_TOKENS
    flops = flops_per_token * share
    return Reading(flops, flops, 2 * state * share, _CHUNK_TOKENS)


def _sparse_readings(
    mixer: Attention | LatentAttention, ways: int, cache_width_bytes: float
) -> list[Reading]:
    """The keys that the index picked, and the index over all keys where the layer has one."""
    (part,) = cache_parts(mixer, cache_width_bytes, tensor_parallel=ways)
    index_bytes = mixer.index.bytes_per_token if mixer.index else 0.0
    heads = mixer.heads / ways
    if isinstance(mixer, LatentAttention):  # in the compressed space, prefill too
        flops = 2 * heads * (2 * mixer.kv_rank + mixer.rope_dim)
    else:
        flops = 2 * heads * (mixer.head_dim + mixer.value_width)
    kept_bytes, latent = part.bytes_per_token - index_bytes, isinstance(mixer, LatentAttention)
    found = [Reading(flops, flops, kept_bytes, mixer.top_k, latent)]
    if mixer.index is not None:
        scored = 2.0 * mixer.index.heads * mixer.index.dim / mixer.index.key_tokens
        found.append(Reading(scored, scored, index_bytes, indexing=True))
    return found


def _compressed_readings(
    mixer: CompressedAttention, ways: int, cache_width_bytes: float
) -> list[Reading]:
    flops = 4 * mixer.heads / ways * mixer.head_dim
    near, *far = cache_parts(mixer, cache_width_bytes)
    found = [Reading(flops, flops, near.bytes_per_token, mixer.window)]
    if far:
        picked = None if mixer.top_k is None else mixer.top_k * mixer.ratio
        share = 1 / mixer.ratio
        entry_bytes = near.bytes_per_token * share
        found.append(Reading(flops * share, flops * share, entry_bytes, picked))
    if mixer.index is not None:
        scored = 2.0 * mixer.index.heads * mixer.index.dim / mixer.ratio
        found.append(Reading(scored, scored, mixer.index.key_bytes / mixer.ratio, indexing=True))
    return found


def turned_numbers(mixer: Mixer | None, ways: int) -> float:
    """Numbers that norms, convolutions and rotations read and write per token."""
    if isinstance(mixer, LinearAttention):
        return (2 * mixer.conv_channels + mixer.value_heads * mixer.value_dim) / ways
    if isinstance(mixer, StateSpace):
        return (2 * mixer.conv_channels + mixer.inner) / ways
    if isinstance(mixer, CompressedAttention):
        return mixer.heads * mixer.head_dim / ways + mixer.head_dim
    return 0.0
