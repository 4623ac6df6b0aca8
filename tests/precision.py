"""Computing in float64, where rounding must not decide a comparison."""

import contextlib
import sys
from unittest import mock

import keras


def float64_is_allowed():
    """JAX rounds everything to float32 unless told otherwise."""
    if keras.backend.backend() != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(True)


@contextlib.contextmanager
def in_float64():
    """Keras computes in float64, which it rounds to float32 on torch otherwise."""
    types = vars(sys.modules[keras.backend.result_type.__module__])
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    with (
        float64_is_allowed(),
        mock.patch.dict(types["BIT64_TO_BIT32_DTYPE"], float64="float64"),
    ):
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
        try:
            yield
        finally:
            keras.config.set_floatx(floatx)
            keras.config.set_dtype_policy(policy)
