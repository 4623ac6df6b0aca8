"""What `keras-vit` alone prints: what one can do next. Standard library only."""

import shlex
from pathlib import Path

from keras_vit._version import __version__
from keras_vit.files import parse_json

_PAGE = """\
keras-vit {version}: the Vision Transformer (arXiv:2010.11929v2) from a shell
{here}
A first look, on digits and without a download:
  keras-vit demo                                   trains, inspects, exports

Your own images, photos/CLASS/*.jpg:
  keras-vit finetune --data photos                 trains; on a CPU: --freeze
  keras-vit predict --model runs/finetune CAT.jpg  says what is on an image
  keras-vit inspect runs/finetune                  shows where the model looks
  keras-vit export runs/finetune exported          for TensorFlow Serving
  keras-vit serve exported                         answers requests

The paper:
  keras-vit recipes                                how its models were trained
  keras-vit costs ViT-B/16                         parameters and multiply-adds
  keras-vit paper table5                           its numbers

What is installed, what is missing:
  keras-vit doctor

All commands: keras-vit --help; the options of one: keras-vit COMMAND --help"""


def page(runs: Path = Path("runs")) -> str:
    """The page, with what to do about the newest run there, if there is one."""
    return _PAGE.format(version=__version__, here=_here(runs))


def _here(runs: Path) -> str:
    """What the newest folder of a training is good for; "" without one."""
    begun = sorted(runs.glob("*/begun.json"), key=lambda file: file.stat().st_mtime)
    if not begun:
        return ""
    folder = begun[-1].parent
    name = shlex.quote(str(folder))
    try:
        run = parse_json((folder / "run.json").read_text(encoding="utf-8"))
        objective = run["details"].get("objective")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return (
            f"\n{folder} has not ended. Its command, given again, goes on; how far it "
            f"is:\n  keras-vit runs show {name}\n"
        )
    if objective == "masked-patches":
        command = f"keras-vit finetune --model {name} --data photos"
    else:
        command = f"keras-vit predict --model {name} IMAGE.jpg"
    return f"\n{folder} is trained:\n  {command}\n"
