"""A builder's name, defaults and documentation; its arguments are in `applications`.

The variants are those of Table 1, sections 3.1 and 4.1, and D.6.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from keras_vit.configs import (
    BIT_VARIANTS,
    HYBRID_VARIANTS,
    VARIANTS,
    VIT_VARIANTS,
    ResNetConfig,
    ViTConfig,
    builder_name,
)
from keras_vit.models.vision import VisionModel
from keras_vit.weights import registry

Row = TypeVar("Row", ViTConfig, ResNetConfig)


class _PerVariant:
    """The default of arguments with a value that depends on the variant."""

    def __repr__(self) -> str:
        return "<the variant's>"


PER_VARIANT: Any = _PerVariant()
# Options with the default None: the value of the weights.
OF_THE_WEIGHTS = ("gelu", "numerics", "license_allow")


class Builder(Generic[Row]):
    """A builder of one variant: callable, documented and pickled under its name.

    A subclass has types and documentation in `__call__` and `options`. Each instance
    has both in its `__signature__`, with the defaults of its variant.

    Args:
        variant: a key of `VARIANTS`.
        config: config of the model; default: the variant's row of `VARIANTS`.

    Attributes:
        variant: the paper's spelling, such as "ViT-B/16".
        config: the frozen config of the variant.
    """

    __call__: Callable[..., VisionModel]
    options: ClassVar[type]
    _documentation: ClassVar[str]

    def __init_subclass__(cls) -> None:
        call: Any = cls.__call__
        cls._documentation = inspect.getdoc(call) or ""  # None with `python -OO`.
        # IPython shows the docstrings of both an instance and `__call__`.
        call.__doc__ = "See the docstring of the builder."

    def __init__(self, variant: str, config: Row | None = None) -> None:
        self.variant = variant
        self.config: Row = VARIANTS[variant] if config is None else config
        self.__name__ = self.__qualname__ = builder_name(variant)
        signature: inspect.Signature = inspect.signature(self.__call__)
        shared = [*self._parameters(signature)]
        own = {at.name: self.value_of(at.name, at.default) for at in shared}
        self.__signature__ = signature.replace(
            parameters=[at.replace(default=own[at.name]) for at in shared]
        )
        tags = ", ".join(map(repr, registry.tags(variant))) or "none published"
        defaults = ", ".join(
            f"{at.name}={own[at.name]!r}" for at in shared if at.default is PER_VARIANT
        )
        self.__doc__ = "\n\n".join(
            [
                f"Builds {variant} ({_section(variant)}), pretrained unless "
                "`weights=None`.",
                textwrap.fill(f"Tags: {tags}.", 88, break_on_hyphens=False),
                textwrap.fill(f"Defaults: {defaults}.", 88, break_on_hyphens=False),
                self._documentation.partition("\n\n")[2],
            ]
        )

    def _parameters(self, call: inspect.Signature) -> Iterator[inspect.Parameter]:
        """The parameters of `__call__`, with `options` instead of `**options`."""
        for parameter in call.parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                yield parameter
        for name, annotation in self.options.__annotations__.items():
            default = None if name in OF_THE_WEIGHTS else PER_VARIANT
            kind = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(name, kind, default=default, annotation=annotation)

    def value_of(self, name: str, given: Any) -> Any:
        """Returns the given argument, else the default of the variant."""
        if given is not PER_VARIANT:
            return given
        if name == "weights":
            return _default_weights(self.variant)
        return self.__name__.lower() if name == "name" else getattr(self.config, name)

    def __repr__(self) -> str:
        return f"<keras_vit.{self.__name__}: builder of {self.variant}>"

    def __reduce__(self) -> str:
        return self.__name__


def _section(variant: str) -> str:
    """The section of the paper that contains a variant."""
    if variant in VIT_VARIANTS:
        from_deit = variant.startswith(("ViT-Ti", "ViT-S"))
        sizes = "section 3.1; the size is DeiT's and AugReg's"
        return sizes if from_deit else "Table 1, section 3.1"
    if variant in HYBRID_VARIANTS:
        return "hybrid, sections 3.1 and 4.1"
    return "section 4.1's BiT" if variant in BIT_VARIANTS else "D.6"


def _default_weights(variant: str) -> str | None:
    """The paper's ImageNet-21k weights, else AugReg's; None if none were published."""
    tags = registry.tags(variant)
    wanted = ("imagenet21k", "augreg-imagenet21k")
    return next((tag for tag in wanted if tag in tags), None)
