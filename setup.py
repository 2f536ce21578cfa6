"""The description that a wheel carries: the README, without the links and pictures that only a clone can follow."""

import re
from pathlib import Path

from setuptools import setup

_ELSEWHERE = r"(?!https?:)"


def description(readme: str) -> str:
    """The text with pictures of the repository and their captions left out, and names of pages after words.

    >>> description("see [guarantees](docs/guarantees.md#bounds), [FLINT](https://flintlib.org)")
    'see guarantees (`docs/guarantees.md`), [FLINT](https://flintlib.org)'
    """
    text = re.sub(rf"!\[[^]]*\]\({_ELSEWHERE}[^)]*\)\n\n(\*.*?\*\n\n)?", "", readme, flags=re.DOTALL)
    text = re.sub(rf"\(\[[^]]*\]\({_ELSEWHERE}([^)#]*)[^)]*\)\)", r"(`\1`)", text)
    return re.sub(rf"\[([^]]*)\]\({_ELSEWHERE}([^)#]*)[^)]*\)", r"\1 (`\2`)", text)


if __name__ == "__main__":
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(long_description=description(readme), long_description_content_type="text/markdown")
