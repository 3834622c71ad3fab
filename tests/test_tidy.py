"""The house rules, as tests. Each rule is also shown a sample that breaks it."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 60
PART_LINES, PARTS_MAX = 130, 15
"""A file under so many lines that one other imports is mostly a part of that one; so many may be
concepts all the same: a program's entry, a format of somebody else's, a job."""
CONSTRUCTOR_ARGUMENTS_MAX = 8
BANNED_WORDS = frozenset(
    form
    for word in ("util", "helper", "common", "misc", "manager", "base", "impl", "service")
    for form in (word, word + "s")
)
TESTS_WITHOUT_MODULE = (
    "tests/benchmarks/",
    "tests/e2e/",
    "tests/security/",
    "tests/simulation/",
    "tests/docs/",
    "tests/examples/",
    "tests/client/test_failures.py",
    "tests/client/test_types.py",
    "tests/store/test_kill_rounds.py",
    "tests/spark/test_clusters.py",
    "tests/spark/test_million.py",
    "tests/spark/test_under_fire.py",
    "tests/test_run_record.py",
    "tests/test_tidy.py",
)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
NamedNode = FunctionNode | ast.ClassDef


def tracked_files() -> list[Path]:
    """What git tracks or would track; every file below the root if this is no git checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    names = listing.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


TRACKED = tracked_files()
PYTHON_FILES = [path for path in TRACKED if path.suffix == ".py"]
INSTALLED = ("src/", "examples/", "benchmarks/command/")
SOURCE_FILES = [path for path in PYTHON_FILES if relative(path).startswith(INSTALLED)]
TEST_FILES = [path for path in PYTHON_FILES if re.match(r"tests/(.*/)?test_", relative(path))]


def text_of(path: Path) -> str | None:
    """The file's text, or None if it is binary."""
    content = path.read_bytes()
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


# The rules: each takes a text or a name and yields complaints.


def too_long_file(text: str) -> Iterator[str]:
    lines = text.count("\n") + 1
    if lines > FILE_LINES_MAX + 1:
        yield f"has {lines - 1} lines; the limit is {FILE_LINES_MAX}"


def too_long_functions(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, FunctionNode):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} has {lines} lines; the limit is {FUNCTION_LINES_MAX}"


def too_many_arguments(text: str) -> Iterator[str]:
    """Of constructors. Values may have more: frozen dataclasses and named tuples, whose fields are
    named where they are made, and what has a default in a dataclass."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef) or node.name == "GatewayContext":
            continue  # All that gateways are given, in one value.
        marks = " ".join(map(ast.unparse, node.decorator_list))
        is_part = "dataclass" in marks and "frozen=True" not in marks
        count = 0
        for each in node.body:
            if isinstance(each, FunctionNode) and each.name == "__init__":
                count += len(each.args.args) - 1 + len(each.args.kwonlyargs)
            elif is_part and isinstance(each, ast.AnnAssign) and each.value is None:
                count += ast.unparse(each.annotation) != "KW_ONLY"
        if count > CONSTRUCTOR_ARGUMENTS_MAX:
            yield f"{node.name} takes {count} arguments; the limit is {CONSTRUCTOR_ARGUMENTS_MAX}"


def public_nodes(body: list[ast.stmt]) -> Iterator[NamedNode]:
    """Public classes and functions, and the public methods of public classes."""
    for node in body:
        if isinstance(node, NamedNode) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_nodes(node.body)


def missing_docstrings(text: str) -> Iterator[str]:
    module = ast.parse(text)
    if not ast.get_docstring(module):
        yield "the module has no docstring"
    for node in public_nodes(module.body):
        if isinstance(node, ast.ClassDef) and not ast.get_docstring(node):
            yield f"{node.name} has no docstring"


def words_of(name: str) -> list[str]:
    """`BodyBytesMax`, `body_bytes_max`, `HTTPBase`: the words in lower case."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_\W]", " ", name)
    return spaced.lower().split()


def banned_file_name(name: str) -> Iterator[str]:
    for part in Path(name).with_suffix("").parts:
        for word in BANNED_WORDS.intersection(words_of(part)):
            yield f"{part!r} says {word!r}, which says nothing"


def banned_names(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        # A test's name is a sentence, and sentences need all words.
        if isinstance(node, NamedNode) and not node.name.startswith("test_"):
            for word in BANNED_WORDS.intersection(words_of(node.name)):
                yield f"{node.name!r} says {word!r}, which says nothing"


def unfinished_work(text: str) -> Iterator[str]:
    # Spelled in two halves: this file is checked by its own rule.
    for found in re.finditer(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b", text):
        line = text.count("\n", 0, found.start()) + 1
        yield f"line {line} leaves work for later: {found.group()}"


def machine_paths(text: str) -> Iterator[str]:
    for found in re.finditer(r"(?<![\w./~-])/(?:work|root)(?:/|\b)", text):
        line = text.count("\n", 0, found.start()) + 1
        yield f"line {line} names a path of one machine: {found.group()}"


def unpinned_requirement(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!]+", line):
            yield f"{line!r} is not of the form name==version"


def lonely_test_file(name: str, modules: frozenset[str]) -> Iterator[str]:
    """`tests/store/test_damage.py` is about the package `src/onelog/store`, or a module of it."""
    if name.startswith(TESTS_WITHOUT_MODULE):
        return
    package = Path("src/onelog", *Path(name).parts[1:-1]).as_posix()
    if f"{package}/__init__.py" not in modules and f"{package}.py" not in modules:
        yield f"is about {package}, which does not exist"


def importers(texts: dict[str, str]) -> dict[str, set[str]]:
    """Of each module those that import it, or something from it."""
    found: dict[str, set[str]] = {name: set() for name in texts}
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            named: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                named = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            elif isinstance(node, ast.Import):
                named = [each.name for each in node.names]
            for each in found.keys() & set(named):
                found[each].add(name)
    return found


def lonely_parts(texts: dict[str, str]) -> list[str]:
    """Small modules with a single importer."""
    return sorted(
        name
        for name, by in importers(texts).items()
        if len(by) == 1 and texts[name].count("\n") < PART_LINES
    )


def complaints(paths: list[Path], rule: str) -> list[str]:
    found = []
    for path in paths:
        text = text_of(path)
        if text is not None:
            found += [f"{relative(path)}: {complaint}" for complaint in globals()[rule](text)]
    return found


@pytest.mark.parametrize(
    ("rule", "paths"),
    [
        ("too_long_file", PYTHON_FILES),
        ("too_long_functions", PYTHON_FILES),
        ("too_many_arguments", SOURCE_FILES),
        ("missing_docstrings", SOURCE_FILES),
        ("banned_names", PYTHON_FILES),
        ("unfinished_work", PYTHON_FILES),
        ("machine_paths", TRACKED),
        ("unpinned_requirement", [ROOT / "requirements-dev.lock"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_file_keeps_the_rule(rule: str, paths: list[Path]) -> None:
    assert paths
    assert complaints(paths, rule) == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    names = [relative(path) for path in PYTHON_FILES]
    assert [f"{name}: {said}" for name in names for said in banned_file_name(name)] == []


def test_tests_are_a_mirror_of_the_packages() -> None:
    modules = frozenset(relative(path) for path in SOURCE_FILES)
    names = [relative(path) for path in TEST_FILES]
    assert names
    assert [f"{name} {said}" for name in names for said in lonely_test_file(name, modules)] == []


def test_a_file_is_a_concept_and_not_a_part_of_its_only_importer() -> None:
    root = ROOT / "src"
    package = root / "onelog"
    files = [path for path in PYTHON_FILES if path.is_relative_to(package)]
    texts = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): (
            path.read_text("utf-8")
        )
        for path in files
    }
    packages = {".".join(path.relative_to(root).parts[:-1]) for path in files}
    parts = [name for name in lonely_parts(texts) if name not in packages]
    assert len(parts) <= PARTS_MAX, f"{len(parts)} small files with one importer: {parts}"


def test_the_rule_on_parts_finds_small_modules_with_one_importer() -> None:
    large = "x = 1\n" * PART_LINES
    assert lonely_parts({"a": "from b import c\nimport d\n", "b.c": "", "d": large}) == ["b.c"]
    assert not lonely_parts({"a": "import b\n", "b": "", "c": "from b import x\n"})


def test_the_rule_on_file_length_finds_line_801() -> None:
    assert not list(too_long_file("x = 1\n" * 800))
    assert list(too_long_file("x = 1\n" * 801))


def test_the_rule_on_function_length_finds_line_61() -> None:
    assert not list(too_long_functions("def f():\n" + "    x = 1\n" * 59))
    assert list(too_long_functions("def f():\n" + "    x = 1\n" * 60))
    assert list(too_long_functions("class A:\n  async def f():\n" + "    x = 1\n" * 60))


def test_the_rule_on_constructors_finds_the_ninth_argument() -> None:
    eight = ", ".join(f"a{n}" for n in range(8))
    assert not list(too_many_arguments(f"class A:\n    def __init__(self, {eight}): ..."))
    assert list(too_many_arguments(f"class A:\n    def __init__(self, {eight}, *, b=1): ..."))
    fields = "".join(f"    a{n}: int\n" for n in range(8))
    assert not list(too_many_arguments(f"@dataclass\nclass A:\n{fields}    b: int = 1"))
    assert list(too_many_arguments(f"@dataclass\nclass A:\n{fields}    b: int"))
    assert not list(too_many_arguments(f"@dataclass(frozen=True)\nclass A:\n{fields}    b: int"))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"""Doc."""\n', 0),
        ("x = 1\n", 1),
        ('"""Doc."""\ndef f(): ...\n', 0),
        ('"""Doc."""\nclass A:\n    def f(self): ...\n', 1),
        ('"""Doc."""\ndef _f(): ...\nclass _A:\n    def f(self): ...\n', 0),
    ],
)
def test_the_rule_on_docstrings_counts_what_lacks_one(text: str, count: int) -> None:
    assert len(list(missing_docstrings(text))) == count


@pytest.mark.parametrize(
    "name",
    ["OffsetManager", "MessageServiceHTTP", "HTTPBase", "IOUtils", "_parse_helper", "misc"],
)
def test_the_rule_on_names_finds(name: str) -> None:
    assert list(banned_names(f"class {name}: ..."))
    assert list(banned_names(f"def {name}(): ..."))
    assert list(banned_file_name(f"src/onelog/{name}.py"))
    assert list(banned_file_name(f"src/{name}/x.py"))


@pytest.mark.parametrize(
    "name", ["Database", "utility", "simple", "Serviceable", "basic", "imply", "commonality"]
)
def test_the_rule_on_names_looks_at_whole_words(name: str) -> None:
    assert not list(banned_names(f"def {name}(): ..."))
    assert not list(banned_file_name(f"src/{name}.py"))


def test_the_rule_on_unfinished_work_names_the_line() -> None:
    assert list(unfinished_work("x = 1\n# TO" + "DO later\n")) == [
        "line 2 leaves work for later: TO" + "DO"
    ]
    assert not list(unfinished_work("all mastodons"))


@pytest.mark.parametrize("path", ["/wo" + "rk/x", "/ro" + "ot/.m2", "'/ro" + "ot'"])
def test_the_rule_on_paths_finds(path: str) -> None:
    assert list(machine_paths(f"see {path}"))


@pytest.mark.parametrize("path", ["https://example.org/work/", "./root/a", "store/root", "/worker"])
def test_the_rule_on_paths_lets_pass(path: str) -> None:
    assert not list(machine_paths(f"see {path}"))


def test_the_rule_on_the_lock_refuses_hosts_and_ranges() -> None:
    assert not list(unpinned_requirement("numpy==2.0.1\nmypy_extensions==1.2.0"))
    assert list(unpinned_requirement("numpy>=2"))
    assert list(unpinned_requirement("--index-url https://example.org/simple"))
    assert list(unpinned_requirement("onelog @ file:///somewhere"))


def test_the_rule_on_test_files_wants_a_package() -> None:
    modules = frozenset({"src/onelog/store/__init__.py", "src/onelog/wire/kafka/__init__.py"})
    assert not list(lonely_test_file("tests/store/test_damage.py", modules))
    assert not list(lonely_test_file("tests/wire/kafka/test_frames.py", modules))
    assert not list(lonely_test_file("tests/e2e/test_java.py", modules))
    assert list(lonely_test_file("tests/shop/test_orders.py", modules))
