"""The shape of the repository: who may import whom, how large things get, and words that must not appear."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tailrace"
MODULES = sorted(PACKAGE.rglob("*.py"))
BASE = ("frozen", "types", "errors", "clock", "knobs", "policy", "config", "units", "traces", "figures", "options")
LAYERS = (
    BASE,
    ("bench",),
    ("database",),
    ("observe",),
    ("text", "_native"),
    ("protocol",),
    ("engine",),
    ("backends",),
    ("control", "llm", "doctor", "terminal"),
    ("plan",),
    ("api",),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

SOURCE_LINES = 600
TEST_LINES = 700
FUNCTION_LINES = 60
PARAMETERS = 8

MODEL_NAMES = re.compile(r"smol_?lm|llama|gemma|qwen|mistral|mixtral|deepseek", re.IGNORECASE)
# Where a model's name is data: the declarations, the parsers, the default, the catalogue of what can be pulled,
# and the names that model files give to their tokenizers' regular expressions.
MODEL_NAMES_ALLOWED = ("engine/models/", "text/parsers/", "engine/store/", "text/pretokenizers.py", "config.py")
UNWANTED = re.compile("|".join(("TODO", "FIXME", r"\bXXX\b", "/work/", "/tmp/model", "/tmp/peers")))

Function = ast.FunctionDef | ast.AsyncFunctionDef
MUTATORS = {"append", "add", "update", "clear", "pop", "popitem", "extend", "insert", "remove", "discard", "setdefault"}


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def imported(tree: ast.AST, path: Path) -> Iterator[str]:
    """Dotted names of everything of tailrace that a module imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "tailrace")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = ("tailrace", *path.relative_to(PACKAGE).parts[:-1])
                base = ".".join((*package[: len(package) - node.level + 1], *filter(None, (base,))))
            if base == "tailrace":
                yield from (f"tailrace.{alias.name}" for alias in node.names)
            elif base.startswith("tailrace."):
                yield base


def layer(dotted: str) -> int:
    part = dotted.split(".")[1]
    assert part in RANK, f"{dotted} belongs to no layer: add it to LAYERS and to docs/architecture.md"
    return RANK[part]


def offenders(check: Callable[[Path], object]) -> dict[str, object]:
    """What `check` has to say about each module, where it has something to say."""
    return {name_of(path): found for path in MODULES if (found := check(path))}


def test_import_rule() -> None:
    """A package imports only what stands left of it in the order of layers, and itself."""

    def upward(path: Path) -> list[str]:
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        rank = layer("tailrace.llm" if own == "__init__" else f"tailrace.{own}")  # the root names the Python API
        return [name for name in imported(parse(path), path) if layer(name) > rank]

    assert offenders(upward) == {}


def test_the_import_rule_sees_every_form_of_import() -> None:
    code = "import tailrace.api\nfrom tailrace import cli\nimport os\ndef f():\n from ..api import x\n from . import y"
    assert list(imported(ast.parse(code), PACKAGE / "engine" / "loop.py")) == [
        "tailrace.api",
        "tailrace.cli",
        "tailrace.api",
        "tailrace.engine",
    ]


def test_every_module_says_what_it_owns() -> None:
    assert [name_of(path) for path in MODULES if not ast.get_docstring(parse(path))] == []


def test_files_stay_readable() -> None:
    limits = {"src": SOURCE_LINES, "csrc": SOURCE_LINES, "tests": TEST_LINES, "benchmarks": SOURCE_LINES}
    long = {}
    for folder, limit in limits.items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".pyi", ".cpp", ".h", ".hpp", ".inc", ".js", ".css", ".html"}:
                lines = len(path.read_text(encoding="utf-8").splitlines())
                if lines > limit:
                    long[str(path.relative_to(ROOT))] = lines
    assert long == {}


def length(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def parameters(function: Function) -> int:
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def test_functions_stay_small() -> None:
    assert offenders(lambda path: [f.name for f in functions(parse(path)) if length(f) > FUNCTION_LINES]) == {}


def test_functions_take_few_parameters() -> None:
    assert offenders(lambda path: [f.name for f in functions(parse(path)) if parameters(f) > PARAMETERS]) == {}


def docstrings(tree: ast.AST) -> set[int]:
    """ids of the constants that are documentation."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.add(id(node.value))
    return found


def words(tree: ast.AST) -> Iterator[str]:
    """Identifiers and texts of the code, without its documentation."""
    prose = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


def test_model_names_appear_only_where_models_are_declared() -> None:
    def named(path: Path) -> list[str]:
        allowed = name_of(path).startswith(MODEL_NAMES_ALLOWED)
        return [] if allowed else [word for word in words(parse(path)) if MODEL_NAMES.search(word)]

    assert offenders(named) == {}


def test_kernels_know_no_model_names() -> None:
    named = []
    for path in (ROOT / "csrc").rglob("*"):
        if path.is_file():
            code = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            if MODEL_NAMES.search(code):
                named.append(path.name)
    assert named == []


def test_only_config_reads_the_environment() -> None:
    readers = offenders(lambda path: {"environ", "getenv", "environb"} & set(words(parse(path))))
    assert set(readers) == {"config.py"}


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in ("list", "dict", "set", "defaultdict", "deque")
    return isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))


def module_tables(tree: ast.Module) -> set[str]:
    """Names that a module binds to something mutable."""
    found = set()
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and is_mutable(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(target.id for target in targets if isinstance(target, ast.Name))
    return found


def mutated(tree: ast.AST) -> Iterator[str]:
    """Names whose contents a module changes: `x.append()`, `x[...] = `, `del x[...]`, `global x`."""
    for node in ast.walk(tree):
        changed: ast.expr | None = None
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            changed = node.func.value
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            changed = node.value
        if isinstance(changed, ast.Name):
            yield changed.id


def test_no_module_keeps_state() -> None:
    """Module-level tables are constants: named like one, and never written to; nobody says `global`."""

    def state(path: Path) -> set[str]:
        tree = parse(path)
        tables = module_tables(tree)
        unnamed = {name for name in tables if not name.isupper() and name != "__all__"}
        globals_ = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        return unnamed | (tables & set(mutated(tree))) | globals_

    assert offenders(state) == {}


def test_the_state_rule_sees_what_it_should() -> None:
    tree = ast.parse("CACHE = {}\nseen = []\nLIMITS: dict = {}\ndef f():\n  CACHE[1] = 2\n  seen.append(3)")
    assert module_tables(tree) == {"CACHE", "seen", "LIMITS"}
    assert set(mutated(tree)) == {"CACHE", "seen"}


def test_nothing_unfinished_and_no_paths_of_one_machine() -> None:
    found = []
    files = [
        ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "CMakeLists.txt", ".ci/run")
    ]
    for folder in ("src", "csrc", "tests", "docs", "benchmarks"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".pyi", ".cpp", ".h", ".md"}]
    for path in files:
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if UNWANTED.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


def test_the_two_commands_of_the_readme_are_the_ones_that_are_checked() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(make \w+)", readme, flags=re.MULTILINE)
    assert commands[:2] == ["make serve", "make test"]
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {command.split()[1] for command in commands} <= targets
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
