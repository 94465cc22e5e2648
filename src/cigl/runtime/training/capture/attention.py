"""``nn.MultiheadAttention`` in a captured graph: its projections become layers, attention itself stays torch's."""

from __future__ import annotations

import operator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, fx


def expose_projections(graph: fx.Graph) -> None:
    """Where query, key and value are one, and nothing is masked."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is F.multi_head_attention_forward:
            plain = _plain(*node.args, **node.kwargs)
            reads_output_alone = all(each.target is operator.getitem and each.args[1] == 0 for each in node.users)
            if plain is not None and reads_output_alone:
                _replace(graph, node, *plain)


def _plain(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: Any,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    *others: Any,
    is_causal: bool = False,
    **more: Any,
) -> tuple[Any, ...] | None:
    given = (bias_k, bias_v, key_padding_mask, attn_mask, *others, *more.values())
    if any(each is not None and each is not True for each in given) or add_zero_attn or need_weights or is_causal:
        return None
    if use_separate_proj_weight or not (query is key is value) or query.meta["example_value"].dim() != 3:
        return None
    dropout = dropout_p if training else 0.0
    return query, num_heads, dropout, (in_proj_weight, in_proj_bias), (out_proj_weight, out_proj_bias)


def _replace(graph: fx.Graph, node: fx.Node, x: fx.Node, heads: int, dropout: float, project: Any, out: Any) -> None:
    example: Tensor = x.meta["example_value"]
    *sizes, width = example.shape
    with graph.inserting_before(node):
        parts = graph.call_function(F.linear, (x, *project))
        mixed = graph.call_function(mix_heads, (parts, heads, dropout))
        result = graph.call_function(F.linear, (mixed, *out))
    parts.meta["example_value"] = example.new_empty((*sizes, 3 * width))
    mixed.meta["example_value"] = result.meta["example_value"] = example.new_empty((*sizes, width))
    for reader in list(node.users):
        reader.replace_all_uses_with(result)
        graph.erase_node(reader)
    graph.erase_node(node)


def mix_heads(parts: Tensor, heads: int, dropout: float) -> Tensor:
    """As torch computes it (need_weights=False), in the same memory order, which random numbers follow."""
    length, batch, width = parts.shape[0], parts.shape[1], parts.shape[2] // 3
    q, k, v = parts.view(length, batch, 3, heads, width // heads).permute(2, 1, 3, 0, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    return mixed.permute(2, 0, 1, 3).reshape(length, batch, width)
