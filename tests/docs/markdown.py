"""The programs in a page of documentation, and what it says that they print."""

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of code, under the heading it stands below."""

    heading: str
    kind: str
    code: str
    printed: str | None


def snippets(page: str) -> list[Snippet]:
    """The blocks of Python in a page. A block of `text` right after one is what it prints."""
    blocks = list(_BLOCK.finditer(page))
    found = []
    for number, block in enumerate(blocks):
        if block["kind"].split()[:1] != ["python"]:
            continue
        follower = blocks[number + 1] if number + 1 < len(blocks) else None
        is_output = follower is not None and follower["kind"] == "text"
        between = page[block.end() : follower.start()] if follower else "?"
        printed = follower["text"] if follower and is_output and not between.strip() else None
        heading = re.findall(r"^#+ (.*)$", page[: block.start()], re.MULTILINE)[-1]
        found.append(Snippet(heading, block["kind"], block["text"], printed))
    return found
