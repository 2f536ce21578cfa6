"""Every example of the pages runs and shows what it says; links, files, names and terms on them exist."""

from __future__ import annotations

import ast
import csv
import dataclasses
import doctest
import importlib
import importlib.util
import re
import statistics
from pathlib import Path

import pytest

import prismm
from tests import judge

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
ALL_PAGES = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/NOTES.md"))]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
GENERATED = ROOT / "docs/gpu_figures.md"
OTHER_WORDS = (
    r"\broads?\b", r"\bceremony\b", r"\bsettled?\b", r"\bscratch\b", r"\bin place of\b", r"\border \d",
    r"\bopen entr", r"\b(?:second|careful|quick) (?:look|join)s?\b", r"\bquarters\b", r"\bpaces?\b", r"\d before\)",
)  # fmt: skip
"""Words for which the glossary has others."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them, and those that are written out."""
    headings = re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text_of(page)))


def first_cells(section: str) -> list[str]:
    """The names in the first cells of a section's tables, of which a cell may have several."""
    cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)(?:\(.*?\))?`", cell)]


def section_of(page: str, heading: str) -> str:
    found = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text_of(ROOT / page), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no section {heading}"
    return found[1]


def timed(page: Path) -> object:
    """The page; slow, where it probes an engine, and for a GPU, where its tensors live on one."""
    marks = [pytest.mark.slow] if "probe(" in text_of(page) else []
    marks += [pytest.mark.gpu] if '"cuda"' in text_of(page) else []
    return pytest.param(page, marks=marks)


@pytest.mark.parametrize("page", map(timed, PAGES), ids=map(name_of, PAGES))
def test_examples(page: Path) -> None:
    """All examples of a page in one session, as a reader would type them."""
    found = re.findall(r"^```python\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(found), {}, name_of(page), str(page), 0)
    words: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(example, out=words.append)
    assert not words, "".join(words)


def test_python_blocks_are_examples() -> None:
    """A block without a prompt would not run."""
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL):
            assert block.startswith(">>> "), f"{name_of(page)}: {block}"


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text_of(page)):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors_of(found), f"{target}#{anchor}"


def test_the_index_leads_to_every_page() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", text_of(ROOT / "docs/index.md"))
    reached = {(ROOT / "docs" / target).resolve() for target in targets}
    assert not {page.resolve() for page in PAGES} - reached - {(ROOT / "docs/index.md").resolve()}


def test_names_exist() -> None:
    """Names such as `prismm.numerics.probe`, as a module or an attribute of one."""

    def check(case: tuple[str, str]) -> None:
        found: object = prismm
        path = "prismm"
        for part in case[1].split("."):
            path = f"{path}.{part}"
            if not hasattr(found, part):
                assert hasattr(found, "__path__") and importlib.util.find_spec(path) is not None, path
                importlib.import_module(path)
            found = getattr(found, part)

    names = {page: re.findall(r"`prismm\.([A-Za-z_.]*\w)", text_of(page)) for page in ALL_PAGES}
    judge.assert_each(check, sorted({(name_of(page), name) for page, found in names.items() for name in found}))


def test_files_exist() -> None:
    """Paths such as `core/plan.py`, from wherever they are counted."""
    roots = [ROOT / "src", ROOT / "tests", ROOT / "benchmarks", ROOT / "tools"]
    known = [path.as_posix() for root in roots for path in root.rglob("*") if "__pycache__" not in path.parts]
    of_code = "architecture.md", "CONTRIBUTING.md", "guarantees.md", "NOTES.md"
    for page in (page for page in ALL_PAGES if page.parent.name == "internals" or page.name in of_code):
        for name in re.findall(r"`([\w./-]+(?:\.(?:py|csv|txt|json)|/))`", prose_of(page)):
            ending = f"/{name.rstrip('/')}"
            found = (ROOT / name).exists() or any(path.endswith(ending) for path in known)
            assert found, f"{name_of(page)}: {name}"


@pytest.mark.parametrize("page", [page for page in ALL_PAGES if page != GENERATED], ids=name_of)
def test_words_are_those_of_the_glossary(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", prose_of(page))
    for word in OTHER_WORDS:
        found = re.search(word, prose)
        assert found is None, f"{name_of(page)} says {found[0]!r}"


def test_a_term_has_one_line() -> None:
    lines = re.findall(r"^\| (?!term|---)(.*?) \| ", text_of(ROOT / "docs/glossary.md"), re.MULTILINE)
    terms = [term for line in lines for term in line.split(", ")]
    assert len(terms) > 60 and len(terms) == len(set(terms))


@pytest.mark.parametrize("kind", ["Report", "Plan"])
def test_every_field_is_described(kind: str) -> None:
    made = getattr(prismm, kind)
    attributes = {name for name in vars(made) if not name.startswith("_")}
    fields = {field.name for field in dataclasses.fields(made)}
    deprecated = {"roads"}
    described = first_cells(section_of("docs/report.md", kind))
    assert sorted(described) == sorted((attributes | fields) - deprecated)


def fields_of(source: ast.ClassDef) -> set[str]:
    """Fields of a dataclass or named tuple, private ones apart; none of another class."""
    heads = {ast.unparse(x).split("(")[0] for x in (*source.decorator_list, *source.bases)}
    if not heads & {"dataclass", "NamedTuple"}:
        return set()
    own = [x for x in source.body if isinstance(x, ast.AnnAssign) and "ClassVar" not in ast.unparse(x.annotation)]
    return {name for x in own if not (name := ast.unparse(x.target)).startswith("_")}


def described_in(docstring: str) -> set[str]:
    """The names that sections "Args" and "Attributes" begin their lines with."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?)*)", docstring, re.MULTILINE)
    lines = re.findall(r"^    ([\w, ]+)(?: \(.*?\))?:", "".join(sections), re.MULTILINE)
    return {name for line in lines for name in line.split(", ")}


@pytest.mark.slow
def test_every_field_of_what_users_meet_is_described_where_it_is_defined() -> None:
    """Of public classes outside of `cuda`, and of all in `core`."""
    missing, count = [], 0
    for path in sorted(x for x in (ROOT / "src/prismm").rglob("*.py") if "cuda" not in x.parts):
        module = ast.parse(text_of(path))
        lists = [x.value for x in module.body if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "__all__"]
        public = {*prismm.__all__, *(ast.literal_eval(lists[0]) if lists and isinstance(lists[0], ast.List) else ())}
        for made in (x for x in module.body if isinstance(x, ast.ClassDef)):
            if made.name in public or (path.parent.name == "core" and not made.name.startswith("_")):
                fields = fields_of(made)
                count += len(fields)
                left = fields - described_in(ast.get_docstring(made) or "")
                missing += [f"{name_of(path)} {made.name}: {', '.join(sorted(left))}"] if left else []
    assert not missing and count > 200, "\n".join(missing)


def test_every_error_is_described() -> None:
    errors = {
        name for name, kind in vars(prismm.errors).items()
        if isinstance(kind, type) and issubclass(kind, prismm.errors.PrismmError)
    }  # fmt: skip
    assert set(first_cells(section_of("docs/report.md", "Errors"))) == errors - {"PrismmError"}


def test_every_path_is_described() -> None:
    """The paths that code counts, by what it passes to `Outcome.count`."""
    described = set(re.findall(r'^\| "([^"]+)" \|', section_of("docs/report.md", "Report"), re.MULTILINE))
    source = "".join(text_of(path) for path in (ROOT / "src").rglob("*.py"))
    counted = set(re.findall(r'\.count\(\s*"([a-z -]+)",', source))
    assert counted <= described and "certified" in counted


def test_every_guarantee_names_its_test() -> None:
    page = ROOT / "docs/guarantees.md"
    assert len(set(re.findall(r"`(tests/[\w/]+\.py)`", text_of(page)))) > 20
    for name in re.findall(r"^## (.*)$", text_of(page), re.MULTILINE):
        assert "`tests/" in section_of("docs/guarantees.md", name), name


def test_speeds_on_a_gpu_are_those_measured() -> None:
    def rows_of(name: str) -> list[dict[str, str]]:
        with (ROOT / "benchmarks/results" / name).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    section = section_of("docs/gpu.md", "Speed")
    measured = {(row["dtype"], row["call"], row["n"]): row for row in rows_of("gpu_gemm.csv")}
    sizes = re.findall(r"n = (\d+)", section)
    table = re.findall(r"^\| (float\d+), (\S+) \| (.*) \|$", section, re.MULTILINE)
    for dtype, call, cells in table:
        for n, cell in zip(sizes, cells.split(" | "), strict=True):
            row = measured[dtype, call, n]
            assert abs(float(row["ratio"]) - float(cell)) < 0.0051, (dtype, call, n)
            assert float(row["error"]) < float(row["native_error"])
    sweeps = re.findall(r"^\| \w+ \(`(.*?)`\) \| (.*) \| (.*) \|$", section, re.MULTILINE)
    for name, median, slowest in sweeps:
        ratios = [float(row["ratio"]) for row in rows_of(name)]
        assert abs(statistics.median(ratios) - float(median)) < 0.0051 and abs(min(ratios) - float(slowest)) < 0.0051
    assert len(table) == 4 and len(sweeps) == 2


def test_the_page_of_gpus_stays_short() -> None:
    assert len(text_of(ROOT / "docs/gpu.md").splitlines()) <= 150


def test_every_scheme_has_its_section() -> None:
    sections = re.findall(r"^## (\w+)$", text_of(ROOT / "docs/schemes.md"), re.MULTILINE)
    schemes = {"Residues", "Native", *prismm.schemes.COMPOSITE}
    assert schemes - {"Native"} <= set(sections)


def test_every_verdict_is_explained() -> None:
    text = text_of(ROOT / "docs/reproduce/README.md")
    for verdict in ("holds", "DIFFERS", "ours alone", "no data", "not here"):
        assert f"| {verdict} |" in text


def test_every_paper_has_its_results() -> None:
    from prismm.reproduce import PAPERS

    for name in PAPERS:
        for ending in (".csv", ".txt"):
            assert (ROOT / "docs/reproduce" / (name + ending)).stat().st_size > 0
