"""Gated DeltaNet in plain PyTorch, with the signatures of SGLang's CPU kernels.

Slow, but the states are real: a reply that is resumed from a cached state equals the reply computed from the start.
"""

import functools
import itertools

import torch
import torch.nn.functional as F

CHUNK = 64


@functools.cache
def _replace_triton_kernels():
    """SGLang has no CPU version of some small kernels, or has it with AMX only."""
    from sglang.kernels.ops.attention.fla import fused_norm_gate, layernorm_gated
    from sglang.kernels.ops.elementwise import elementwise
    from sglang.kernels.ops.mamba import mamba_state_scatter_triton

    fused_norm_gate._use_cpu = layernorm_gated._use_cpu = True
    elementwise._launch_fused_gate_sigmoid_mul = _gate_sigmoid_mul
    mamba_state_scatter_triton._launch_track_mamba_states = _track_states


def _gate_sigmoid_mul(hidden_states, gate_weight, shared_output, output, do_add):
    gated = (hidden_states @ gate_weight).sigmoid()[:, None] * shared_output
    output.copy_(output + gated if do_add else gated)


def _track_states(
    conv_states, ssm_states, cache_indices, mask, track_indices, batch_size, num_layers, conv_strides, *rest
):
    """Copies the states of the marked rows to their snapshot slots."""
    rows = mask[:batch_size].nonzero().flatten()
    source, target = cache_indices[rows].long(), track_indices[rows].long()
    for states in (conv_states, ssm_states):
        if conv_strides[0]:  # all layers at once
            states[:, target] = states[:, source]
        else:
            states[target] = states[source]


def _rows(cu_seqlens):
    return itertools.pairwise(cu_seqlens.tolist())


def _delta_rule(query, key, value, decay, beta, state):
    """One chunk: [T, H, K], [T, H, K], [T, H, V], [T, H], [T, H], [H, V, K]."""
    query, key, value = (x.float().transpose(0, 1) for x in (query, key, value))
    decay, beta = decay.float().t(), beta.float().t()
    query = F.normalize(query, dim=-1) * query.shape[-1] ** -0.5
    key = F.normalize(key, dim=-1)
    total = decay.cumsum(-1)
    pairs = (total[:, :, None] - total[:, None, :]).tril().exp().tril()
    state = state.float().transpose(1, 2)

    # Each token corrects what the state holds for its key: (I + A) delta = value - old.
    size = key.shape[1]
    mixing = ((key @ key.transpose(1, 2)) * pairs * beta[:, :, None]).tril(-1)
    old = (key @ state) * total.exp()[:, :, None]
    target = beta[:, :, None] * (value - old)
    delta = torch.linalg.solve_triangular(mixing + torch.eye(size), target, upper=False, unitriangular=True)

    output = (query @ state) * total.exp()[:, :, None]
    output = output + ((query @ key.transpose(1, 2)) * pairs).tril() @ delta
    remaining = (total[:, -1:] - total).exp()[:, :, None]
    state = state * total[:, -1].exp()[:, None, None] + (key * remaining).transpose(1, 2) @ delta
    return output.transpose(0, 1), state.transpose(1, 2)


def chunk_gated_delta_rule_cpu(q, k, v, g, beta, initial_state, cu_seqlens, initial_state_indices, **kwargs):
    """Returns the output, None and the states before each chunk of 64 tokens."""
    _replace_triton_kernels()
    repeat = v.shape[2] // q.shape[2]
    q, k = q[0].repeat_interleave(repeat, 1), k[0].repeat_interleave(repeat, 1)
    v, g, beta = v[0], g[0], beta[0]
    output = torch.empty_like(v)
    states = []
    for slot, (start, end) in zip(initial_state_indices.tolist(), _rows(cu_seqlens)):
        state = initial_state[slot]
        for first in range(start, end, CHUNK):
            part = slice(first, min(first + CHUNK, end))
            states.append(state.clone())
            output[part], state = _delta_rule(q[part], k[part], v[part], g[part], beta[part], state)
        initial_state[slot] = state.to(initial_state.dtype)
    return output[None], None, torch.stack(states)[None] if states else None


def _fused_gdn_gating(A_log, a, b, dt_bias):
    decay = -A_log.float().exp() * F.softplus(a.float() + dt_bias)
    return decay[None], b.float().sigmoid()[None]


def _fused_sigmoid_gating_delta_rule_update(
    A_log, dt_bias, q, k, v, a, b, initial_state_source, initial_state_indices, cu_seqlens, **kwargs
):
    decay, beta = _fused_gdn_gating(A_log, a, b, dt_bias)
    output, _, _ = chunk_gated_delta_rule_cpu(
        q, k, v, decay, beta, initial_state_source, cu_seqlens, initial_state_indices
    )
    return output


def causal_conv1d_fn_cpu(
    x, weight, bias, activation, conv_states, has_initial_state, cache_indices, query_start_loc, **kwargs
):
    """x: [channels, tokens]; conv_states: [slots, channels, width - 1]."""
    width = weight.shape[1]
    output = torch.empty_like(x)
    rows = zip(cache_indices.tolist(), has_initial_state.tolist(), _rows(query_start_loc))
    for slot, resumed, (start, end) in rows:
        before = conv_states[slot] if resumed else torch.zeros_like(conv_states[slot])
        window = torch.cat([before.to(x.dtype), x[:, start:end]], 1)
        mixed = F.conv1d(window[None], weight[:, None], bias, groups=len(weight))[0]
        output[:, start:end] = F.silu(mixed) if activation in ("silu", "swish") else mixed
        conv_states[slot] = window[:, 1 - width :].to(conv_states.dtype)
    return output


def causal_conv1d_update_cpu(x, conv_states, weight, bias, activation, conv_state_indices, **kwargs):
    """One token for each row. x: [rows, channels]."""
    slots = conv_state_indices.long()
    window = torch.cat([conv_states[slots].to(x.dtype), x[:, :, None]], 2)
    conv_states[slots] = window[:, :, 1:].to(conv_states.dtype)
    mixed = (window * weight).sum(2)
    mixed = mixed if bias is None else mixed + bias
    return F.silu(mixed) if activation in ("silu", "swish") else mixed


def _fused_rmsnorm_gated(x, weight, z, eps):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
    return (wide * F.silu(z.float())).to(x.dtype)


torch.ops.sgl_kernel.fused_rmsnorm_gated_cpu = _fused_rmsnorm_gated
torch.ops.sgl_kernel.fused_gdn_gating_cpu = _fused_gdn_gating
torch.ops.sgl_kernel.fused_sigmoid_gating_delta_rule_update_cpu = _fused_sigmoid_gating_delta_rule_update
