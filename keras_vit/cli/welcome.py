"""The page of `keras-vit` without arguments. Standard library only."""

import shlex
from pathlib import Path

from keras_vit._version import __version__
from keras_vit.files import parse_json

_PAGE = """\
keras-vit {version}: the Vision Transformer (arXiv:2010.11929v2) from a shell
{here}
Try it on handwritten digits, without a download:
  keras-vit demo                                   train, inspect, export

Use your own images, photos/CLASS/*.jpg:
  keras-vit finetune photos                        train; on a CPU: --freeze
  keras-vit predict --model runs/finetune CAT.jpg  classify images
  keras-vit inspect runs/finetune                  show where the model looks
  keras-vit export runs/finetune exported          export for TensorFlow Serving
  keras-vit serve exported                         start a server

Look up the paper:
  keras-vit recipes                                training recipes
  keras-vit costs ViT-B/16                         parameters and operations
  keras-vit paper table5                           results

Check the installation:
  keras-vit doctor

All commands: keras-vit --help; options of a command: keras-vit COMMAND --help"""


def page(runs: Path = Path("runs")) -> str:
    """Returns the page, with the next command for the newest run."""
    return _PAGE.format(version=__version__, here=_here(runs))


def _here(runs: Path) -> str:
    """The next command for the newest run; "" without one."""
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
            f"\n{folder} is not finished. To resume it, run its command again; to see "
            f"its progress:\n  keras-vit runs show {name}\n"
        )
    if objective == "masked-patches":
        command = f"keras-vit finetune --model {name} --data photos"
    else:
        command = f"keras-vit predict --model {name} IMAGE.jpg"
    return f"\n{folder} is finished:\n  {command}\n"
