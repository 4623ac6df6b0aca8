"""ResNets: the hybrids' stems (3.1), the BiT baselines (4.1), and D.6.

"We replace the Batch Normalization layers with Group Normalization, and used
standardized convolutions" (4.1). The two families differ:

|                  | hybrids, "v1"             | BiT, "v2"                     |
|------------------|---------------------------|-------------------------------|
| unit             | convolve, normalize, ReLU | normalize, ReLU, convolve     |
| kernel           | (w - mean) / (std + 1e-5) | (w - mean) / sqrt(var + 1e-10)|
| group norm       | epsilon 1e-6              | epsilon 1e-5                  |
| padding          | SAME: more at the end     | the same at both ends         |

Glossary of shapes: B: batch.   - H, W, C: height, width, channels.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers import kernels
from keras_vit.layers.embeddings import Composite, Shape, Tensor, register

GROUPS = 32


@register
class StdConv2D(keras.layers.Layer):
    """The standardized convolution of 4.1: [B, H, W, C] -> [B, H', W', filters].

    Each filter has mean 0 and, up to epsilon, standard deviation 1 over its height,
    width and channels (Qiao et al., 2019). There is no bias. The statistics are
    computed in float32 under any dtype policy.

    Args:
        filters: number of output channels.
        kernel_size: side of the square kernel.
        strides: stride along height and width.
        padding: "same" (TensorFlow's, more at the end), or "symmetric" (the same at
            both ends, kernel_size // 2).
        epsilon: value added to the standard deviation or to the variance; above 0.
        epsilon_outside: True: w / (std + epsilon), as in the hybrids; False:
            w / sqrt(variance + epsilon), as in BiT.

    Raises:
        ValueError: if an argument is invalid, or `padding` is "symmetric" with an even
            kernel size.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        strides: int = 1,
        padding: str = "same",
        epsilon: float = 1e-5,
        epsilon_outside: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = arguments.integer("filters", filters)
        self.kernel_size = arguments.integer("kernel_size", kernel_size)
        self.strides = arguments.integer("strides", strides)
        self.padding = arguments.choice("padding", padding, ("same", "symmetric"))
        self.epsilon = arguments.positive("epsilon", epsilon)
        self.epsilon_outside = arguments.flag("epsilon_outside", epsilon_outside)
        if padding == "symmetric" and kernel_size % 2 == 0:
            raise ValueError(
                "Expected an odd kernel_size for padding='symmetric'. "
                f"Received: kernel_size={kernel_size}"
            )

    def build(self, input_shape: Shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            initializer="lecun_normal",
            autocast=False,
        )

    def standardized_kernel(self, training: bool | None = None) -> Tensor:
        """Returns the kernel of the convolution in float32: [k, k, C, filters].

        Args:
            training: whether its gradient will be needed. On TensorFlow's CPUs it is
                then an explicit one, which keeps no copy of the kernel.
        """
        kernel = kernels.at_least_float32(self.kernel)
        options = self.epsilon, self.epsilon_outside
        if training and kernels.on_cpu("tensorflow"):
            return _differentiable_standardized((kernel,), *options)
        return _standardized((kernel,), *options)[0]

    def call(self, images: Tensor, training: bool | None = None) -> Tensor:
        kernel = ops.cast(self.standardized_kernel(training), self.compute_dtype)
        if training and self._is_centered() and kernels.on_cpu("tensorflow"):
            images = images[:, :: self.strides, :: self.strides]
            return _differentiable_centered((images, kernel))
        if self.padding == "symmetric" and not self._is_centered():
            images = pad(images, self.kernel_size // 2)
            return _convolve(images, kernel, self.strides, "valid")
        return _convolve(images, kernel, self.strides)

    def _is_centered(self) -> bool:
        """Whether each output has its pixel in the middle under both paddings."""
        odd = self.kernel_size % 2 == 1
        return self.kernel_size == 1 or (self.strides == 1 and odd)

    def keeps_shape(self) -> bool:
        """Returns True with stride 1, an odd kernel, and float32 or float64."""
        is_wide = self.compute_dtype == kernels.wide(self.compute_dtype)
        return is_wide and self.strides == 1 and self._is_centered()

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return strided(input_shape, self.strides, self.filters)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "epsilon": self.epsilon,
            "epsilon_outside": self.epsilon_outside,
        }


def _convolve(
    x: Tensor, kernel: Tensor, strides: int = 1, padding: str = "same"
) -> Tensor:
    """Convolves [B, H, W, C] with [k, k, C, filters]."""
    return ops.conv(
        x, kernel, strides=strides, padding=padding, data_format="channels_last"
    )


def _centered(x: Tensor, kernel: Tensor) -> Tensor:
    """The convolution: [B, H, W, C] and [k, k, C, filters] -> [B, H, W, filters].

    With stride 1 and an odd kernel.
    """
    if kernel.shape[0] > 1:
        return _convolve(x, kernel)
    rows = kernels.flatten_tokens(x)
    y = ops.matmul(rows, ops.reshape(kernel, kernel.shape[2:]))
    return ops.reshape(y, (-1, *ops.shape(x)[1:3], kernel.shape[-1]))


def centered_gradient(dy: Tensor, x: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a convolution with stride 1 and an odd kernel, on TensorFlow.

    They are faster than oneDNN's gradients of convolutions: matrix products for a 1x1
    kernel; otherwise dx is a convolution with the flipped kernel.
    """
    import tensorflow as tf

    if kernel.shape[0] == 1:
        rows, weights = kernels.flatten_tokens(x), ops.reshape(kernel, kernel.shape[2:])
        dy = kernels.flatten_tokens(dy)
        dx = tf.matmul(dy, weights, transpose_b=True)
        d_weights = tf.matmul(rows, dy, transpose_a=True)
        return ops.reshape(dx, ops.shape(x)), ops.reshape(d_weights, kernel.shape)
    own = kernels.control_dependency(kernel, dy)
    flipped = ops.transpose(ops.flip(own, (0, 1)), (0, 1, 3, 2))
    d_kernel = tf.raw_ops.Conv2DBackpropFilter(
        input=x,
        filter_sizes=kernel.shape,
        out_backprop=dy,
        strides=[1, 1, 1, 1],
        padding="SAME",
    )
    return _convolve(dy, flipped), d_kernel


_differentiable_centered = kernels.with_gradient(
    lambda xs: (_centered(*xs), ()), lambda dy, xs, _: centered_gradient(dy, *xs)
)


def _standardized(
    xs: Sequence[Tensor], epsilon: float, epsilon_outside: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The standardized kernel, and its mean, divisor and deviation."""
    (kernel,) = xs
    mean = _over_inputs(kernel)
    variance = _over_inputs(ops.square(kernel - mean))
    if epsilon_outside:
        deviation = ops.sqrt(variance)
        divisor = deviation + epsilon
    else:
        deviation = divisor = ops.sqrt(variance + epsilon)
    return (kernel - mean) / divisor, (mean, divisor, deviation)


def _standardized_gradient(
    dy: Tensor,
    xs: Sequence[Tensor],
    kept: Sequence[Tensor],
    epsilon: float,
    epsilon_outside: bool,
) -> tuple[Tensor]:
    mean, divisor, deviation = kept
    centered = kernels.control_dependency(xs[0], dy) - mean
    slope = _over_inputs(dy * centered) / (divisor * divisor * deviation)
    return ((dy - _over_inputs(dy)) / divisor - centered * slope,)


_differentiable_standardized = kernels.with_gradient(
    _standardized, _standardized_gradient
)


def _over_inputs(kernel: Tensor) -> Tensor:
    """The mean of each filter: [k, k, C, filters] -> [1, 1, 1, filters].

    Multiplies by 1 / n, as XLA does for a constant divisor. If a filter's deviation is
    much smaller than its mean, a rounding error of the mean changes the fourth digit of
    the standardized kernel.
    """
    inputs = math.prod(kernel.shape[:3])
    return ops.sum(kernel, axis=(0, 1, 2), keepdims=True) * (1 / inputs)


@register
class GroupNorm(keras.layers.Layer):
    """Group normalization, 4.1's replacement of batch normalization: [B, H, W, C].

    n = (x - mean) / sqrt(variance + epsilon);  y = n * gamma + beta

    Mean and variance are those of an image's pixels and a group's channels (Wu and He,
    2018), in float32 under any dtype policy. The result is that of Keras's layer, in
    fewer passes over x: it first averages pixels, then channels. In training on
    TensorFlow's CPUs, only x is kept for the gradient.

    Args:
        groups: number of groups; a divisor of C.
        epsilon: value added to the variance; above 0.
        gamma_initializer: initial scale, a Keras initializer.

    Raises:
        ValueError: if an argument is invalid, or C is not a multiple of `groups`.
    """

    def __init__(
        self,
        groups: int = GROUPS,
        epsilon: float = 1e-5,
        gamma_initializer: Any = "ones",
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.groups = arguments.integer("groups", groups)
        self.epsilon = arguments.positive("epsilon", epsilon)
        self.gamma_initializer = keras.initializers.get(gamma_initializer)

    def build(self, input_shape: Shape) -> None:
        channels = input_shape[-1]
        if channels is None or channels % self.groups:
            raise ValueError(
                f"Expected a multiple of groups={self.groups} channels. Received: "
                f"{channels} channels"
            )
        self.gamma, self.beta = (
            self.add_weight(
                name=name, shape=(channels,), initializer=initializer, autocast=False
            )
            for name, initializer in (
                ("gamma", self.gamma_initializer),
                ("beta", "zeros"),
            )
        )

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        xs = tuple(map(kernels.at_least_float32, (inputs, self.gamma, self.beta)))
        options = self.groups, self.epsilon
        if training and kernels.on_cpu("tensorflow"):
            y = _differentiable_normed(xs, *options)
        else:
            y = _normed(xs, *options)[0]
        return ops.cast(y, self.compute_dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "groups": self.groups,
            "epsilon": self.epsilon,
            "gamma_initializer": keras.initializers.serialize(self.gamma_initializer),
        }


def _normed(
    xs: Sequence[Tensor], groups: int, epsilon: float
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Returns n * gamma + beta for x, gamma and beta, and x's `_moments`."""
    x = xs[0]
    mean, inverse, scale, offset = _moments(xs, groups, epsilon)
    return x * scale + offset, (mean, inverse, scale, offset)


def _moments(xs: Sequence[Tensor], groups: int, epsilon: float) -> tuple[Tensor, ...]:
    """Mean and 1 / deviation of the groups, and scale and offset, each [B, 1, 1, C].

    y = x * scale + offset.
    """
    x, gamma, beta = xs
    mean = _over_groups(_over_pixels(x), groups)
    variance = _over_groups(_over_pixels(ops.square(x - mean)), groups)
    inverse = ops.rsqrt(variance + epsilon)
    scale = inverse * gamma
    return mean, inverse, scale, beta - mean * scale


def _normed_gradient(
    dy: Tensor,
    xs: Sequence[Tensor],
    moments: Sequence[Tensor],
    groups: int,
    epsilon: float,
) -> tuple[Tensor, ...]:
    """The gradients of x, gamma and beta."""
    x, gamma, _ = xs
    x = kernels.control_dependency(x, dy)
    mean, inverse, scale, _ = moments
    along_n = _over_pixels(_product(dy, x, mean)) * inverse
    along_1 = _over_pixels(dy)
    slope = -inverse * inverse * _over_groups(along_n * gamma, groups)
    rest = -inverse * _over_groups(along_1 * gamma, groups) - slope * mean
    height, width = ops.shape(x)[1:3]
    pixels = ops.cast(height * width, x.dtype)
    d_gamma, d_beta = (
        ops.sum(along, axis=(0, 1, 2)) * pixels for along in (along_n, along_1)
    )
    return _weighted(dy, scale, x, slope, rest), d_gamma, d_beta


_differentiable_normed = kernels.with_gradient(_normed, _normed_gradient)


def _over_groups(x: Tensor, groups: int) -> Tensor:
    """The mean of each group's channels, for each of them: [B, 1, 1, C]."""
    size = x.shape[-1] // groups
    mean = ops.mean(ops.reshape(x, (-1, 1, 1, groups, size)), axis=-1, keepdims=True)
    return ops.reshape(mean * ops.ones(size, x.dtype), (-1, 1, 1, x.shape[-1]))


@kernels.xla_fused
def _scaled_relu(x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    return ops.relu(x * scale + offset)


@kernels.xla_fused
def _relu_gradient(dy: Tensor, x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """The gradient of `_scaled_relu`'s product, from that of its result."""
    return ops.where(x * scale + offset > 0, dy, ops.zeros_like(dy))


@kernels.xla_fused
def _product(dy: Tensor, x: Tensor, mean: Tensor) -> Tensor:
    return dy * (x - mean)


@kernels.xla_fused
def _weighted(
    dy: Tensor, scale: Tensor, x: Tensor, slope: Tensor, rest: Tensor
) -> Tensor:
    return dy * scale + (x * slope + rest)


def convolution_of_norm(
    norm: GroupNorm,
    convolution: keras.layers.Layer,
    x: Tensor,
    training: bool | None,
) -> Tensor:
    """convolution(relu(norm(x))): [B, H, W, C] -> [B, H', W', filters].

    In training on TensorFlow's CPUs with stride 1, in float32, only x is kept for the
    gradient. The gradient computes relu(norm(x)) again, in one pass over x.
    """
    is_fast = isinstance(convolution, StdConv2D) and convolution.keeps_shape()
    if not (training and is_fast and kernels.on_cpu("tensorflow")):
        return convolution(ops.relu(norm(x, training=training)), training=training)

    gamma, beta = map(kernels.at_least_float32, (norm.gamma, norm.beta))
    kernel = convolution.standardized_kernel(training)
    xs = x, gamma, beta, kernel
    return _differentiable_convolution_of_norm(xs, norm.groups, norm.epsilon)


def _convolution_of_norm(
    xs: Sequence[Tensor], groups: int, epsilon: float
) -> tuple[Tensor, tuple[Tensor, ...]]:
    *into_norm, kernel = xs
    moments = _moments(into_norm, groups, epsilon)
    return _centered(_scaled_relu(xs[0], *moments[2:]), kernel), moments


def _convolution_of_norm_gradient(
    dy: Tensor,
    xs: Sequence[Tensor],
    moments: Sequence[Tensor],
    groups: int,
    epsilon: float,
) -> tuple[Tensor, ...]:
    x, gamma, beta, kernel = xs
    x = kernels.control_dependency(x, dy)
    rectified = _scaled_relu(x, *moments[2:])
    d_rectified, d_kernel = centered_gradient(dy, rectified, kernel)
    dy = _relu_gradient(d_rectified, x, *moments[2:])
    into_norm = x, gamma, beta
    return (*_normed_gradient(dy, into_norm, moments, groups, epsilon), d_kernel)


_differentiable_convolution_of_norm = kernels.with_gradient(
    _convolution_of_norm, _convolution_of_norm_gradient
)


def _over_pixels(x: Tensor) -> Tensor:
    """The mean over height and width: [B, H, W, C] -> [B, 1, 1, C]."""
    return ops.mean(x, axis=(1, 2), keepdims=True)


def strided(shape: Shape, strides: int, channels: int | None) -> Shape:
    """The shape after `strides`: sides divided and rounded up, for both paddings."""
    batch, *sides, _ = shape
    return batch, *(side and -(-side // strides) for side in sides), channels


def pad(images: Tensor, pixels: int, value: float = 0.0) -> Tensor:
    """Pads every side: [B, H, W, C] -> [B, H + 2 pixels, W + 2 pixels, C]."""
    if not pixels:
        return images
    sides = ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0))
    return ops.pad(images, sides, constant_values=value)


@register
class RootPool(keras.layers.Layer):
    """The root's 3x3 max-pooling with stride 2: [B, H, W, C] -> [B, H/2, W/2, C].

    Args:
        padding: "same", TensorFlow's (hybrids); "zero", zeros on every side, which
            exceed negative values (BiT); "inf", minus infinity on every side
            (big_vision's BiT).
    """

    def __init__(self, padding: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.padding = arguments.choice("padding", padding, ("same", "zero", "inf"))

    def call(self, x: Tensor) -> Tensor:
        padding = "same"
        if self.padding != "same":
            x = pad(x, 1, 0.0 if self.padding == "zero" else float("-inf"))
            padding = "valid"
        return ops.max_pool(x, 3, 2, padding, data_format="channels_last")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return strided(input_shape, 2, input_shape[-1])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "padding": self.padding}


class _Unit(Composite):
    """The common part of bottleneck units: their arguments and layers."""

    padding: str

    def __init__(
        self,
        filters: int,
        strides: int = 1,
        kernel_epsilon: float = 1e-10,
        epsilon_outside: bool = False,
        group_norm_epsilon: float = 1e-5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = arguments.integer("filters", filters)
        if self.filters % GROUPS:
            raise ValueError(
                f"Expected filters to be a multiple of {GROUPS}, a norm's groups. "
                f"Received: filters={self.filters}"
            )
        self.strides = arguments.integer("strides", strides)
        self.kernel_epsilon = arguments.positive("kernel_epsilon", kernel_epsilon)
        self.epsilon_outside = arguments.flag("epsilon_outside", epsilon_outside)
        self.group_norm_epsilon = arguments.positive(
            "group_norm_epsilon", group_norm_epsilon
        )

    def _conv(self, name: str, filters: int, size: int, strides: int = 1) -> StdConv2D:
        return StdConv2D(
            filters,
            size,
            strides,
            self.padding,
            self.kernel_epsilon,
            self.epsilon_outside,
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name: str, scale: str = "ones") -> keras.layers.Layer:
        return GroupNorm(
            epsilon=self.group_norm_epsilon,
            gamma_initializer=scale,
            dtype=self.dtype_policy,
            name=name,
        )

    def _needs_projection(self, input_shape: Shape) -> bool:
        return self.strides != 1 or input_shape[-1] != 4 * self.filters

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return strided(input_shape, self.strides, 4 * self.filters)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "strides": self.strides,
            "kernel_epsilon": self.kernel_epsilon,
            "epsilon_outside": self.epsilon_outside,
            "group_norm_epsilon": self.group_norm_epsilon,
        }


@register
class ResidualUnit(_Unit):
    """A hybrid's bottleneck (3.1), "v1": [B, H, W, C] -> [B, H', W', 4 filters].

    y = gn3(conv3(relu(gn2(conv2(relu(gn1(conv1(x))))))));  relu(x + y)

    conv2 has the stride. If the shape changes, x becomes gn_proj(conv_proj(x)). The
    scale of gn3 starts at zero (vit_jax/models_resnet.py).

    Args:
        filters: output channels of conv1 and conv2; a multiple of the 32 groups.
        strides: strides of conv2, along height and width.
        kernel_epsilon: see `StdConv2D`.
        epsilon_outside: see `StdConv2D`.
        group_norm_epsilon: epsilon of the 32 groups' variance.

    Raises:
        ValueError: if an argument is invalid.
    """

    padding = "same"

    def build(self, input_shape: Shape) -> None:
        self.conv1 = self._conv("conv1", self.filters, 1)
        self.gn1 = self._norm("gn1")
        self.conv2 = self._conv("conv2", self.filters, 3, self.strides)
        self.gn2 = self._norm("gn2")
        self.conv3 = self._conv("conv3", 4 * self.filters, 1)
        self.gn3 = self._norm("gn3", scale="zeros")
        self.conv_proj: Any = None
        self.gn_proj: Any = None
        if self._needs_projection(input_shape):
            self.conv_proj = self._conv("conv_proj", 4 * self.filters, 1, self.strides)
            self.gn_proj = self._norm("gn_proj")
            self.conv_proj.build(input_shape)
            self.gn_proj.build((*input_shape[:-1], 4 * self.filters))
        shape = input_shape
        for layer in self.sublayers()[:6]:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)
        super().build(input_shape)

    def sublayers(self) -> list[keras.layers.Layer]:
        layers = [self.conv1, self.gn1, self.conv2, self.gn2, self.conv3, self.gn3]
        return layers + ([self.conv_proj, self.gn_proj] if self.conv_proj else [])

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        y = self.conv1(x)
        y = convolution_of_norm(self.gn1, self.conv2, y, training)
        y = convolution_of_norm(self.gn2, self.conv3, y, training)
        y = self.gn3(y)
        if self.conv_proj is not None:
            x = self.gn_proj(self.conv_proj(x))
        return ops.relu(x + y)


@register
class PreActivationUnit(_Unit):
    """BiT's bottleneck (4.1), "v2": [B, H, W, C] -> [B, H', W', 4 filters].

    x' = relu(gn1(x));  y = conv3(relu(gn3(conv2(relu(gn2(conv1(x')))))));  x + y

    conv2 has the stride. If the shape changes, x becomes conv_proj(x'), a projection of
    the normalized input (Kolesnikov et al., 2020, and big_transfer's models).

    Args:
        filters: output channels of conv1 and conv2; a multiple of the 32 groups.
        strides: strides of conv2, along height and width.
        kernel_epsilon: see `StdConv2D`.
        epsilon_outside: see `StdConv2D`.
        group_norm_epsilon: epsilon of the 32 groups' variance.

    Raises:
        ValueError: if an argument is invalid.
    """

    padding = "symmetric"

    def build(self, input_shape: Shape) -> None:
        self.gn1 = self._norm("gn1")
        self.conv1 = self._conv("conv1", self.filters, 1)
        self.gn2 = self._norm("gn2")
        self.conv2 = self._mixing()
        self.gn3 = self._norm("gn3")
        self.conv3 = self._conv("conv3", 4 * self.filters, 1)
        self.conv_proj: Any = None
        if self._needs_projection(input_shape):
            self.conv_proj = self._conv("conv_proj", 4 * self.filters, 1, self.strides)
            self.conv_proj.build(input_shape)
        shape = input_shape
        for layer in self.sublayers()[:6]:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)
        super().build(input_shape)

    def _mixing(self) -> keras.layers.Layer:
        """The layer that mixes spatial positions."""
        return self._conv("conv2", self.filters, 3, self.strides)

    def sublayers(self) -> list[keras.layers.Layer]:
        layers = [self.gn1, self.conv1, self.gn2, self.conv2, self.gn3, self.conv3]
        return layers + ([self.conv_proj] if self.conv_proj else [])

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        if self.conv_proj is None:
            y = convolution_of_norm(self.gn1, self.conv1, x, training)
        else:
            y = ops.relu(self.gn1(x))
            x, y = self.conv_proj(y), self.conv1(y)
        y = convolution_of_norm(self.gn2, self.conv2, y, training)
        return x + convolution_of_norm(self.gn3, self.conv3, y, training)
