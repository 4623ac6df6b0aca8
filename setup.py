import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
REPOSITORY = "keras-vit/keras-vit"
VERSION_FILE = (ROOT / "keras_vit/_version.py").read_text(encoding="utf-8")
VERSION = re.search('__version__ = "(.*)"', VERSION_FILE)[1]


def readme():
    """With links that an index's page can follow, to the files of this version."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    raw = f"https://raw.githubusercontent.com/{REPOSITORY}/v{VERSION}/"
    blob = f"https://github.com/{REPOSITORY}/blob/v{VERSION}/"
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\g<1>{raw}", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\g<1>{blob}", text)


setup(long_description=readme(), long_description_content_type="text/markdown")
