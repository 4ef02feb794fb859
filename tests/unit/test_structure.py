"""The shape of the package, and of what its tests share: what a newcomer relies on when looking for something.

The floors themselves are contracts of import-linter in ``pyproject.toml``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tfs_lite"
MOST_FILES = 22
SUPPORT = ROOT / "tests" / "support"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in (PACKAGE, SUPPORT)
    for path in folder.rglob("*.py")
}
TEST_TOOLS = {"hypothesis", "httpx", "pytest"}
"""Some of what only the development environment has."""
IMPORTS: dict[str, list[tuple[str, str]]] = {}
"""Of the modules that were read already."""


def imports_of(module: str) -> list[tuple[str, str]]:
    """The modules of the package that ``module`` imports, anywhere in its text, with the names that it takes."""
    if module not in IMPORTS:
        IMPORTS[module] = list(_read_imports(module))
    return IMPORTS[module]


def _read_imports(module: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in MODULES:
                    yield inner, ""
                elif node.module in MODULES:
                    yield node.module, alias.name
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name in MODULES)


def test_no_folder_has_more_files_than_a_reader_takes_in() -> None:
    folders: dict[Path, int] = {}
    for path in MODULES.values():
        folders[path.parent] = folders.get(path.parent, 0) + 1
    crowded = {str(folder): count for folder, count in folders.items() if count > MOST_FILES}
    assert crowded == {}


def test_nothing_that_users_get_imports_what_only_a_clone_has() -> None:
    """The wheel has the package, and the examples say ``pip install``."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (*PACKAGE.rglob("*.py"), *ROOT.glob("examples/**/*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _names_of(node)
        if name.split(".")[0] in {"tests", "benchmarks", *TEST_TOOLS}
    ]
    assert found == []


def _names_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_every_folder_names_its_files() -> None:
    """In its docstring, in reading order. ``testing`` has its page; what tests share is named by what they import."""
    missing = [
        str(path.relative_to(ROOT))
        for path in MODULES.values()
        if path.name != "__init__.py"
        and path.parent != PACKAGE
        and not path.is_relative_to(SUPPORT)
        and "testing" not in path.parts
        and not re.search(
            rf"\b{path.stem}\b", ast.get_docstring(ast.parse((path.parent / "__init__.py").read_text())) or ""
        )
    ]
    assert missing == []


def test_no_files_import_one_another_in_a_circle() -> None:
    """Imports for types and inside functions count. Only the package itself looks its public names up on demand."""
    graph = {
        module: {other for other, _ in imports_of(module)} - {module, "tfs_lite"}
        for module in MODULES
        if module != "tfs_lite"
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


def test_no_file_imports_a_private_name_of_another() -> None:
    found = [
        f"{module}: {other}.{name}"
        for module in MODULES
        for other, name in imports_of(module)
        if name.startswith("_") and name != "__version__"
    ]
    assert found == []


def test_no_two_classes_share_a_name() -> None:
    """So a name that a reader meets says which class it is. Private classes stay within their file."""
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        if path.is_relative_to(PACKAGE):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


MOST_LINES, MOST_METHODS = 330, 15
"""Of the file of the core, and of its public methods and properties."""
FEATURES = [
    *sorted(path for path in (PACKAGE / "operations").iterdir() if (path / "__init__.py").is_file()),
    PACKAGE / "cluster",
]


def test_the_core_is_one_screen_of_verbs_and_no_list_of_features() -> None:
    text = (PACKAGE / "serving" / "server_core.py").read_text()
    (core,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    methods = [node.name for node in core.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    assert len(text.splitlines()) <= MOST_LINES
    assert len(methods) <= MOST_METHODS, methods


@pytest.mark.parametrize("room", ["serving", "server"])
def test_what_serves_names_no_feature(room: str) -> None:
    """Not even inside of functions or for types. One file has the list."""
    found = [
        f"{module} imports {other}"
        for module in MODULES
        if module.startswith(f"tfs_lite.{room}.") and module != "tfs_lite.server.features"
        for other, _ in imports_of(module)
        if other.startswith(("tfs_lite.operations", "tfs_lite.cluster"))
    ]
    assert found == []


def test_what_serves_names_its_features_in_one_list() -> None:
    """So a feature costs it one line."""
    named = {
        other.rpartition(".")[0] for other, _ in imports_of("tfs_lite.server.features") if ".serving." not in other
    }
    assert named == {".".join(folder.relative_to(ROOT).parts) for folder in FEATURES}


@pytest.mark.parametrize("folder", FEATURES, ids=[folder.name for folder in FEATURES])
def test_a_feature_is_a_folder_whose_way_in_is_feature_py(folder: Path) -> None:
    tree = ast.parse((folder / "feature.py").read_text())
    bases = [ast.unparse(base) for node in tree.body if isinstance(node, ast.ClassDef) for base in node.bases]
    assert any(base in ("Feature", "ServerFeature") for base in bases)


PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")))
NOT_OURS = {"model.py", "net.py"}
"""Files of users."""
PLACES = (ROOT, PACKAGE, ROOT / "tests")
"""What a path of a page may begin at."""
CODE = re.compile(r"^```\w*\n(?P<block>.*?)^```$|(?P<ticks>`+)(?P<line>.+?)(?P=ticks)", re.DOTALL | re.MULTILINE)
PATH = re.compile(r"(?<![\w.'/-])(?>\w[\w-]*/[\w./*-]*)(?![{<])")
FILE = re.compile(r"(?<![\w.'/{-])[\w/]+\.py\b")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
FILES = [
    f"/{path.relative_to(ROOT)}"
    for folder in ("tfs_lite", "tests", "benchmarks", "examples")
    for path in ROOT.glob(f"{folder}/**/*.py")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_pages_name_only_files_that_are_there(page: Path) -> None:
    """Links lead to files, as the docs site has no page for a folder. In code, paths that begin with a folder of the
    repository, the package or the tests, of which files may lack their ``.py``. Python files in backticks, and
    everywhere in DESIGN.md, by the end of their path."""
    text = page.read_text()
    found = list(CODE.finditer(text))
    code = "\n".join(each["block"] or each["line"] for each in found)
    named = text if page.name == "DESIGN.md" else "\n".join(each["line"] or "" for each in found)
    missing = [link for link in LINK.findall(text) if not (page.parent / link).is_file()]
    missing += [path for path in PATH.findall(code) if begins_here(path) and not is_there(path)]
    files = (name for name in FILE.findall(named) if name not in NOT_OURS)
    missing += [name for name in files if not any(file.endswith(f"/{name}") for file in FILES)]
    assert missing == []


def begins_here(path: str) -> bool:
    return not path.endswith("...") and any((place / path.partition("/")[0]).is_dir() for place in PLACES)


def is_there(path: str) -> bool:
    return any(any(place.glob(name)) for place in PLACES for name in (path.rstrip("/"), f"{path}.py"))


def test_nothing_maps_a_file_of_a_version() -> None:
    """A mapped file that somebody truncates ends the process: with SIGBUS, all models at once."""
    maps = re.compile(
        r"\bmemmap\b|mmap_mode|mmap=True|\bsafe_open\b|\bload_file\b|mmap\.mmap\((?!-1\b|self\.descriptor\b)"
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if maps.search(line)
    ]
    assert found == []


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page; headings inside of code are none."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title).lower()).strip().replace(" ", "-")
        for title in re.findall(r"(?m)^#+ (.*)$", text)
    }


def test_links_lead_to_headings_that_are_there() -> None:
    missing = []
    for page in PAGES:
        for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
            target = page.parent / file if file else page
            if target.suffix == ".md" and anchor not in headings(target):
                missing.append(f"{page.name}: {file}#{anchor}")
    assert missing == []


def test_the_index_of_pages_has_every_page_once() -> None:
    linked = re.findall(r"\]\((\w[\w-]*\.md)\)", (ROOT / "docs" / "README.md").read_text())
    pages = sorted(page.name for page in (ROOT / "docs").glob("*.md") if page.name not in ("README.md", "index.md"))
    assert sorted(linked) == pages


@pytest.mark.parametrize("picture", sorted(ROOT.glob("docs/images/*.svg")), ids=lambda picture: picture.name)
def test_a_drawn_picture_tells_what_it_shows_and_has_a_light_and_a_dark_form(picture: Path) -> None:
    """It is text that stands for itself: code hosts show no picture that loads or runs something."""
    svg = ElementTree.parse(picture).getroot()
    space = "{http://www.w3.org/2000/svg}"
    told = {name: svg.findtext(f"{space}{name}") for name in ("title", "desc")}
    assert all(told.values())
    assert svg.get("aria-labelledby") == "title desc"
    light, dark = (svg.findtext(f"{space}style") or "").split("@media (prefers-color-scheme: dark)")
    coloured = re.compile(r"\.([a-z]\w*)(?=[^{]*\{[^}]*#)")
    assert set(coloured.findall(dark)) == set(coloured.findall(light))
    used = {name for shape in svg.iter() for name in shape.get("class", "").split()}
    assert set(coloured.findall(light)) <= used
    assert not re.search(r"href|url\(|<script|<foreignObject", picture.read_text())


def test_the_pictures_are_on_pages() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [picture.name for picture in ROOT.glob("docs/images/*") if f"images/{picture.name}" not in text] == []
