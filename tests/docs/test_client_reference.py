"""docs/client-reference.md is what the source says."""

import onelog.client
from docs.client_reference import BETWEEN_MODULES, CHAPTERS, PAGE, PARTS, Source, page
from tests.docs.markdown import DOCS

SAMPLE = '''
class Lamp:
    """Gives light."""

    colour: str = "white"
    """Of the light."""
    _hidden: int = 0

    def __init__(self, *watts: "list[Literal['high']]", **more: "Queue | None") -> None: ...

    @property
    def is_on(self) -> bool:
        """Whether it does."""

    async def dim(self, percent: float = HALF, *, slowly: bool = True) -> None:
        """Give less.

        Not nothing.
        """
'''


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python docs/client_reference.py"


def test_every_public_name_is_there_once() -> None:
    names = [name for chapter in CHAPTERS.values() for name in chapter]
    assert sorted(names) == sorted([*onelog.client.__all__, *PARTS])


def test_everything_shown_is_explained() -> None:
    lines = PAGE.read_text().splitlines()
    methods = [line for line in lines if line.startswith("- `") and "(" in line.split(":")[0]]
    assert len(methods) > 60
    assert [line for line in methods if line.endswith("`")] == []


def test_what_an_entry_says() -> None:
    assert Source(SAMPLE, {"HALF": 50}).entry("Lamp") == (
        "### `Lamp(*watts: list[Literal['high']], **more: Queue | None)`\n\n"
        "Gives light.\n\n"
        "- `colour: str`: Of the light.\n"
        "- `is_on: bool`: Whether it does.\n"
        "- `async dim(percent: float = 50, *, slowly: bool = True) -> None`: Give less.\n"
        "\n"
        "  Not nothing.\n"
    )


def test_what_is_left_out_exists() -> None:
    methods = {*dir(onelog.client.Producer), *dir(onelog.client.AsyncProducer)}
    assert methods >= BETWEEN_MODULES


def test_the_guide_leads_here() -> None:
    assert f"({PAGE.name})" in (DOCS / "client.md").read_text()
