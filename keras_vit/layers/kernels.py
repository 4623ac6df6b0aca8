"""Kernels of the encoder: attention in parts, and an explicit gradient of a block.

They compute the encoder's equations with the same results in less time and memory.
docs/performance.md has measurements and lists the kernels of each backend.

Glossary: see `encoder`. - P: softmax(q k^T / sqrt(D_h)), Appendix A. - n: normalized.
- h: the MLP's hidden layer before its GELU. - dx: the gradient of x.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
from keras import ops

from keras_vit.layers.embeddings import Tensor, known_length

LONG = 1024  # Number of tokens from which P is computed in parts.
PART = 512  # Queries in a part.


def on_cpu(*backends: str) -> bool:
    """Whether the backend is one of `backends` and computes on CPUs only.

    Args:
        backends: "tensorflow" or "jax".
    """
    backend = keras.backend.backend()
    if backend not in backends:
        return False
    if backend == "jax":
        import jax

        return bool(jax.default_backend() == "cpu")
    import tensorflow as tf

    kinds = {device.device_type for device in tf.config.list_physical_devices()}
    return kinds <= {"CPU"}


def has_fused_attention() -> bool:
    """Whether the backend has a kernel for Appendix A that never stores P."""
    if keras.backend.backend() != "jax":
        return bool(keras.backend.backend() == "torch")
    import jax

    return bool(jax.default_backend() != "cpu")


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """P v by the backend's kernel, if `has_fused_attention`: three [B, T, k, D_h].

    Args:
        q: queries, divided by sqrt(D_h).
        k: keys.
        v: values.
    """
    if _is_refused_by_cudnn(q):
        return attention_of_even_length(q, k, v, "cudnn")
    return ops.dot_product_attention(q, k, v, scale=1.0)


def _is_refused_by_cudnn(q: Tensor) -> bool:
    """Whether JAX refuses to train with cuDNN's kernel because T is odd.

    JAX 0.11.2 requires an even T for the gradient with a bias, and takes its empty
    placeholder for one. Keras then logs an error for each block and stores P. Several
    devices keep this: JAX does not divide the lengths of sequences among them.
    """
    is_disabled = keras.config.is_flash_attention_enabled() is False  # None by default.
    if keras.backend.backend() != "jax" or is_disabled:
        return False
    if keras.distribution.distribution() is not None:
        return False
    import jax

    if jax.default_backend() != "gpu" or q.shape[1] % 2 == 0:
        return False
    capability = getattr(jax.local_devices()[0], "compute_capability", "")
    is_ampere = capability[:1].isdigit() and float(capability) >= 8
    dtype, size = keras.backend.standardize_dtype(q.dtype), q.shape[-1]
    is_half = dtype in ("bfloat16", "float16")
    return is_ampere and is_half and size <= 128 and size % 8 == 0


def attention_of_even_length(
    q: Tensor, k: Tensor, v: Tensor, implementation: Literal["cudnn", "xla"]
) -> Tensor:
    """`fused_attention` on JAX with one more token, which receives no attention.

    Args:
        q: see `fused_attention`.
        k: see `fused_attention`.
        v: see `fused_attention`.
        implementation: "cudnn" or "xla".
    """
    import jax

    batch, tokens = q.shape[:2]
    q, k, v = (ops.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (q, k, v))
    lengths = jax.numpy.full((batch,), tokens, "int32")
    y = jax.nn.dot_product_attention(
        *(q, k, v),
        scale=1.0,
        key_value_seq_lengths=lengths,
        implementation=implementation,
    )
    return y[:, :tokens]


def control_dependency(x: Tensor, event: Tensor) -> Tensor:
    """`x`, but not before `event`, so that later operations do not start early."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.control_dependencies([event]):
            return tf.identity(x)
    if keras.backend.backend() == "jax":
        import jax

        return jax.lax.optimization_barrier((x, event))[0]  # type: ignore[no-untyped-call]
    return x


def traced_once(
    function: Callable[..., Any], jit_compile: bool | None = None
) -> Callable[..., Any]:
    """Makes a function that TensorFlow traces once for all layers of one shape.

    For use in explicit gradients, with tensors and Python numbers as arguments. Tracing
    takes most of the time before the first update. JAX and torch call the function.

    Args:
        function: the function.
        jit_compile: True: XLA compiles it; None: TensorFlow inlines it.
    """

    @functools.cache
    def traced() -> Callable[..., Any]:
        import tensorflow as tf

        return tf.function(function, jit_compile=jit_compile, autograph=False)  # type: ignore[no-any-return]

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        is_tensorflow = keras.backend.backend() == "tensorflow"
        return (traced() if is_tensorflow else function)(*args)

    return call


def xla_fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a chain of elementwise operations into one pass on TensorFlow.

    For use in explicit gradients. JAX compiles whole steps anyway.
    """
    return traced_once(function, jit_compile=True)


def with_gradient(
    forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., Tensor]:
    """Makes a function with an explicit gradient, for any backend.

    Both functions are `traced_once`.

    Args:
        forward: function from (tensors, *options) to y and the values kept for
            `backward`.
        backward: function from (dy, tensors, kept values, *options) to the gradients
            of the tensors.

    Returns:
        A function from (tensors, *options) to y.
    """
    forward, backward = traced_once(forward), traced_once(backward)

    def differentiable(xs: Sequence[Tensor], *options: Any) -> Tensor:
        @ops.custom_gradient
        def of_tensors(*xs: Tensor) -> tuple[Tensor, Callable[..., Any]]:
            y, kept = forward(xs, *options)

            def gradient(*args: Tensor, upstream: Tensor = None) -> tuple[Tensor, ...]:
                dy = args[-1] if upstream is None else upstream
                return backward(dy, xs, kept, *options)  # type: ignore[no-any-return]

            return y, gradient

        return of_tensors(*xs)

    return differentiable


def at_least_float32(x: Tensor) -> Tensor:
    """Casts to float32, unless the policy is float64."""
    return ops.cast(x, wide(x.dtype))


def wide(dtype: Any = None) -> str:
    """The dtype of computations in float32 or more under any policy.

    Args:
        dtype: compute dtype; None: the default compute dtype of layers.
    """
    own = keras.config.dtype_policy().compute_dtype if dtype is None else dtype
    return "float64" if keras.backend.standardize_dtype(own) == "float64" else "float32"


def attention_softmax(logits: Tensor) -> Tensor:
    """The softmax of Appendix A, in float32 or more under any dtype policy."""
    logits = at_least_float32(logits)
    if logits.shape[-1] == 1:  # Keras would warn: "likely not what you intended".
        return ops.ones_like(logits)
    return ops.softmax(logits, axis=-1)


def transposed(x: Tensor) -> Tensor:
    """Exchanges the last two axes."""
    return ops.swapaxes(x, -1, -2)


def split_heads(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """[B, T, 3 D] -> q / sqrt(D_h), k and v, each [B, k, T, D_h]."""
    tokens, width = known_length(qkv, 1), qkv.shape[2]
    size = width // 3 // num_heads
    heads = ops.reshape(qkv, (-1, tokens, 3, num_heads, size))
    q, k, v = ops.unstack(ops.transpose(heads, (2, 0, 3, 1, 4)), 3)
    return q * size**-0.5, k, v


def merge_heads(heads: Tensor) -> Tensor:
    """[B, k, T, D_h] -> [B, T, D]."""
    num_heads, _, size = heads.shape[1:]
    tokens = known_length(heads, 2)
    y = ops.transpose(heads, (0, 2, 1, 3))
    return ops.reshape(y, (-1, tokens, num_heads * size))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """P v from q / sqrt(D_h), k and v: three [B, k, T, D_h] -> [B, k, T, D_h].

    For `LONG` or more tokens P is computed `PART` rows at a time, and again for the
    gradient. If TensorFlow does not know T beforehand, P is computed as a whole.
    """
    part = _part_of(q.shape[2])
    if part is None:
        return _attended(q, k, v)
    return _differentiable_in_parts((q, k, v), part)


def _part_of(tokens: int | None) -> int | None:
    """Number of rows of P that are computed together; None: all of them."""
    return PART if (tokens or 0) >= LONG else None


def _attended_in_parts(
    heads: Sequence[Tensor], part: int | None
) -> tuple[Tensor, tuple[()]]:
    """Returns P v, and nothing for the gradient."""
    q, k, v = heads
    if part is None:
        return _attended(q, k, v), ()
    done: list[Tensor] = []
    for rows in _parts(q, part):
        own = control_dependency(q[:, :, rows], done[-1]) if done else q[:, :, rows]
        done.append(_attended(own, k, v))
    return ops.concatenate(done, axis=2), ()


def _gradient_in_parts(
    dy: Tensor, heads: Sequence[Tensor], kept: tuple[()], part: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv of `attend`, with the same parts of P."""
    q, k, v = heads
    dqs: list[Tensor] = []
    dk = dv = 0.0
    for rows in _parts(q, part):
        own, upstream = q[:, :, rows], dy[:, :, rows]
        own = control_dependency(own, dqs[-1] if dqs else dy)
        p = _rows_of_p(own, k)
        dp = ops.matmul(upstream, transposed(v))
        d_logits = p * (dp - ops.sum(p * dp, axis=-1, keepdims=True))
        dqs.append(ops.matmul(d_logits, k))
        dk += ops.matmul(transposed(d_logits), own)
        dv += ops.matmul(transposed(p), upstream)
    return ops.concatenate(dqs, axis=2), dk, dv


_differentiable_in_parts = with_gradient(_attended_in_parts, _gradient_in_parts)


def _attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rows of P v: [B, k, t, D_h], twice [B, k, T, D_h] -> [B, k, t, D_h].

    With JAX on CPUs the division by the softmax's sums is after the product with v:
    one pass over [B, k, t, T] less, and XLA computes the exponentials with the product.
    """
    if not on_cpu("jax"):
        return ops.matmul(_rows_of_p(q, k), v)
    logits = at_least_float32(ops.matmul(q, transposed(k)))
    highest = ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
    p = ops.exp(logits - highest)
    y = ops.matmul(ops.cast(p, v.dtype), v) / ops.sum(p, axis=-1, keepdims=True)
    return ops.cast(y, v.dtype)


def _rows_of_p(q: Tensor, k: Tensor) -> Tensor:
    """Rows of P in q's dtype: [B, k, t, D_h], [B, k, T, D_h] -> [B, k, t, T]."""
    return ops.cast(attention_softmax(ops.matmul(q, transposed(k))), q.dtype)


def _parts(q: Tensor, part: int | None) -> list[slice]:
    """Slices of the rows of P that are computed together."""
    if part is None:
        return [slice(None)]
    tokens = q.shape[2]
    return [slice(at, min(at + part, tokens)) for at in range(0, tokens, part)]


def block(
    z: Tensor,
    weights: Sequence[Tensor],
    *,
    num_heads: int,
    gelu: str,
    epsilon: float,
) -> Tensor:
    """Equations 2 and 3 with an explicit gradient: [B, T, D] -> [B, T, D].

    For the gradient it keeps z, q, k, v, the heads' outputs, z' and h: 10 D numbers per
    token. Derived gradients keep the inputs of every operation. It is used with
    TensorFlow and JAX on CPUs; on torch it takes longer than the derived one.

    Args:
        z: tokens, in float32.
        weights: gamma and beta of the first norm, kernel and bias of [q, k, v] and of
            the output; then the same for the second norm and the MLP's two layers.
        num_heads: k.
        gelu: "tanh" or "erf".
        epsilon: epsilon of both norms.
    """
    part = _part_of(z.shape[1])
    return _differentiable_block((z, *weights), num_heads, part, gelu, epsilon)


def _block(
    xs: Sequence[Tensor], num_heads: int, part: int | None, gelu: str, epsilon: float
) -> tuple[Tensor, tuple[Any, ...]]:
    """Returns the output and the values kept for `_block_gradient`."""
    z, gamma_0, beta_0, u_qkv, b_qkv, u_msa, b_msa = xs[:7]
    gamma_1, beta_1, w_0, b_0, w_1, b_1 = xs[7:]
    z_0 = flatten_tokens(z)
    norm_0 = _moments(z_0, epsilon)
    qkv = ops.matmul(_normed(z_0, norm_0, gamma_0, beta_0), u_qkv) + b_qkv
    heads, _ = _attended_in_parts(_rows_in_heads(qkv, z, num_heads), part)
    heads = flatten_tokens(merge_heads(heads))
    z_1 = ops.matmul(heads, u_msa) + b_msa + z_0
    norm_1 = _moments(z_1, epsilon)
    h = ops.matmul(_normed(z_1, norm_1, gamma_1, beta_1), w_0) + b_0
    y = ops.matmul(_gelu(h, gelu), w_1) + b_1 + z_1
    return ops.reshape(y, ops.shape(z)), (norm_0, qkv, heads, z_1, norm_1, h)


def _block_gradient(
    dy: Tensor,
    xs: Sequence[Tensor],
    kept: Sequence[Any],
    num_heads: int,
    part: int | None,
    gelu: str,
    epsilon: float,
) -> tuple[Tensor, ...]:
    """Returns the gradients of z and of the weights."""
    z, gamma_0, beta_0, u_qkv, _, u_msa, _ = xs[:7]
    gamma_1, beta_1, w_0, _, w_1, _ = xs[7:]
    norm_0, qkv, heads, z_1, norm_1, h = kept
    z_0, dy = flatten_tokens(z), flatten_tokens(dy)
    da = ops.matmul(dy, transposed(w_1))
    a, dh = _gelu_gradient(control_dependency(h, da), da, gelu)
    d_1 = ops.matmul(transposed(a), dy), ops.sum(dy, axis=0)
    dz, into_mlp = _dense_of_norm(
        control_dependency(z_1, dh), norm_1, gamma_1, beta_1, w_0, dh
    )
    dz += dy
    d_msa = ops.matmul(transposed(heads), dz), ops.sum(dz, axis=0)
    d_heads = ops.reshape(ops.matmul(dz, transposed(u_msa)), ops.shape(z))
    d_heads = _in_heads(d_heads, num_heads)
    own = _rows_in_heads(control_dependency(qkv, d_heads), z, num_heads)
    d_qkv = _gradient_of_heads(own, d_heads, part)
    d_input, into_msa = _dense_of_norm(
        control_dependency(z_0, d_qkv), norm_0, gamma_0, beta_0, u_qkv, d_qkv
    )
    d_input = ops.reshape(d_input + dz, ops.shape(z))
    return (d_input, *into_msa, *d_msa, *into_mlp, *d_1)


_differentiable_block = with_gradient(_block, _block_gradient)


def _rows_in_heads(
    qkv: Tensor, z: Tensor, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`split_heads` of rows [B T, 3 D], for tokens z [B, T, D]."""
    qkv = ops.reshape(qkv, (-1, known_length(z, 1), qkv.shape[-1]))
    return split_heads(qkv, num_heads)


def dense(layer: keras.layers.Dense, x: Tensor) -> Tensor:
    """layer(x) for tokens as rows: [B T, D] -> [B T, D'].

    On torch, the product's kernel adds the bias. Keras adds it afterwards, in one more
    pass over the output.
    """
    is_plain = layer.use_bias and not layer.quantization_mode
    if keras.backend.backend() != "torch" or not is_plain:
        return layer(x)
    import torch

    bias, x, kernel = (
        ops.cast(value, layer.compute_dtype) for value in (layer.bias, x, layer.kernel)
    )
    return torch.addmm(bias, x, kernel)


def flatten_tokens(x: Tensor) -> Tensor:
    """[B, T, D] -> [B T, D], for which TensorFlow fuses product, bias and GELU."""
    return ops.reshape(x, (-1, x.shape[-1]))


@xla_fused
def _moments(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The mean of every row and 1 / its standard deviation, each [B T, 1]."""
    mean = ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(x - mean), axis=-1, keepdims=True)
    return mean, ops.rsqrt(variance + epsilon)


@xla_fused
def _normed(
    x: Tensor, moments: tuple[Tensor, Tensor], gamma: Tensor, beta: Tensor
) -> Tensor:
    """Returns n * gamma + beta."""
    return _normalized(x, *moments) * gamma + beta


def _normalized(x: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    return (x - mean) * inverse


def _dense_of_norm(
    x: Tensor,
    moments: tuple[Tensor, Tensor],
    gamma: Tensor,
    beta: Tensor,
    kernel: Tensor,
    dy: Tensor,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Gradients of y = (n * gamma + beta) kernel + bias: dx, and those of weights."""
    d_kernel = ops.matmul(transposed(_normed(x, moments, gamma, beta)), dy)
    d_normed = ops.matmul(dy, transposed(kernel))
    dx, d_gamma, d_beta = _norm_gradient(x, moments, gamma, d_normed)
    return dx, (d_gamma, d_beta, d_kernel, ops.sum(dy, axis=0))


@xla_fused
def _norm_gradient(
    x: Tensor, moments: tuple[Tensor, Tensor], gamma: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of y = n * gamma + beta: dx, d_gamma, d_beta."""
    n, dn = _normalized(x, *moments), dy * gamma
    along_n = ops.mean(dn * n, axis=-1, keepdims=True)
    dx = (dn - ops.mean(dn, axis=-1, keepdims=True) - n * along_n) * moments[1]
    return dx, ops.sum(dy * n, axis=0), ops.sum(dy, axis=0)


@xla_fused
def _gelu(h: Tensor, kind: str) -> Tensor:
    return _gelu_and_slope(h, kind)[0]


@xla_fused
def _gelu_gradient(h: Tensor, dy: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """The GELU, and the gradient of its input."""
    y, slope = _gelu_and_slope(h, kind)
    return y, dy * slope


def _gelu_and_slope(h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """The GELU and its derivative."""
    if kind == "erf":
        share = 0.5 * (1 + ops.erf(h * math.sqrt(0.5)))
        density = ops.exp(-0.5 * ops.square(h)) * (1 / math.sqrt(2 * math.pi))
        return h * share, share + h * density
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    square = ops.square(h)
    tanh = ops.tanh(h * (scale + scale * cubic * square))
    share = 0.5 * (1 + tanh)
    steepness = (1 - ops.square(tanh)) * (scale + 3 * scale * cubic * square)
    return h * share, share + 0.5 * h * steepness


def _in_heads(y: Tensor, num_heads: int) -> Tensor:
    """The inverse of `merge_heads`: [B, T, D] -> [B, k, T, D_h]."""
    tokens, width = known_length(y, 1), y.shape[2]
    heads = ops.reshape(y, (-1, tokens, num_heads, width // num_heads))
    return ops.transpose(heads, (0, 2, 1, 3))


def _gradient_of_heads(
    heads: tuple[Tensor, Tensor, Tensor], dy: Tensor, part: int | None
) -> Tensor:
    """Gradient of `attend` and `split_heads`: [B, k, T, D_h] -> [B T, 3 D], of qkv."""
    num_heads, _, size = dy.shape[1:]
    dq, dk, dv = _gradient_in_parts(dy, heads, (), part)
    d_qkv = ops.transpose(ops.stack([dq * size**-0.5, dk, dv]), (1, 3, 0, 2, 4))
    return ops.reshape(d_qkv, (-1, 3 * num_heads * size))
