"""The names of everything that can be built or read: builders, tags, architectures."""

import dataclasses
import fnmatch
from collections.abc import Iterator

from keras_vit.configs import EFFICIENTNET_VARIANTS, VARIANTS, builder_name
from keras_vit.weights import registry, timm_names


@dataclasses.dataclass(frozen=True)
class Named:
    """A model's name and the line that loads it."""

    name: str
    call: str


def search(filter: str = "") -> list[Named]:
    """The rows of `list_models`, with the calls that load them.

    Args:
        filter: see `list_models`.

    Raises:
        ValueError: if no name matches.
    """
    pattern = filter.lower()
    if not any(character in pattern for character in "*?["):
        pattern = f"*{pattern}*"
    found = [row for row in _rows() if fnmatch.fnmatchcase(row.name.lower(), pattern)]
    if not found:
        raise ValueError(
            "Expected a part of a name, such as 'b16' or 'siglip', or a pattern, such "
            f"as 'timm:vit_*_dinov2'. Received: {filter!r}, which matches no builder, "
            "tag or architecture. Checkpoints with other names may still be readable: "
            "try keras_vit.from_checkpoint"
        )
    return found


def list_models(filter: str = "") -> list[str]:
    """Lists the models that can be built or read, by name (3.1, 4.1, D.6).

    Builders ("ViT_B16"), tags of published weights ("ViT_B16 imagenet21k"), timm's
    architectures ("timm:vit_base_patch16_224") and transformers' model types
    ("transformers:vit").

    Args:
        filter: a part of a name, or a shell pattern ("timm:*siglip*"); case is
            ignored. "": all.

    Returns:
        The names. `keras-vit weights list --search FILTER` also prints the calls that
        load them.

    Raises:
        ValueError: if no name matches.

    Examples:
        >>> list_models("r50*l32*2012")
        ['R50_ViT_L32 augreg-imagenet21k+imagenet2012']
    """
    return [row.name for row in search(filter)]


def _rows() -> Iterator[Named]:
    from keras_vit.weights.config_json import model_types  # NumPy.

    for variant in VARIANTS:
        if variant in EFFICIENTNET_VARIANTS or variant == builder_name(variant):
            continue
        builder = builder_name(variant)
        yield Named(builder, f"keras_vit.{builder}()")
        for tag in registry.tags(variant):
            call = f"keras_vit.{builder}(weights={tag!r})"
            yield Named(f"{builder} {tag}", call)
    for name in sorted(timm_names.HEADS):
        call = f"keras_vit.from_checkpoint('timm:{name}.TAG')"
        yield Named(f"timm:{name}", call)
    for kind in model_types():
        call = "keras_vit.from_checkpoint('hf://ORG/NAME')"
        yield Named(f"transformers:{kind}", call)
