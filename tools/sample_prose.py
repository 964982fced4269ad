"""A random sample of the project's prose, for judging by fresh eyes: `python tools/sample_prose.py --seed 7`.

Draws docstrings and comments of the package (Python, C and CUDA sources), texts of errors, and paragraphs of the
documents, each with its file and line.  The seed is the whole choice: the same tree and seed give the same sample.
Read each text once, without its context, and mark it clear, odd or unclear.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "wholestep"
COUNTS = {"docstring": 24, "comment": 14, "error": 10, "document": 12}
SHORT = 4  # words: what is shorter, such as `# fmt: skip`, says nothing by itself
GENERATED = ("api", "ops.md", "torch-names.md", "test-cuda.md")  # below docs/: written by scripts
NOT_PROSE = re.compile(r"^(noqa|type:|fmt:|pragma|mypy:|!|-- )")
Text = tuple[Path, int, str]


def docstrings(path: Path, tree: ast.Module) -> Iterator[Text]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield path, node.body[0].lineno, text


def comments(path: Path, source: str) -> Iterator[Text]:
    """The comments of a file; whole-line comments on successive lines are one."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, text = token.start[0], token.string.lstrip("# ")
        if NOT_PROSE.match(text):
            continue
        is_alone = token.line.lstrip().startswith("#")
        if block and is_alone and line == last + 1:
            block.append(text)
        else:
            if block:
                yield path, first, "\n".join(block)
            block, first = [text if is_alone else f"{token.line.strip()}"], line
        last = line if is_alone else -1
    if block:
        yield path, first, "\n".join(block)


def native_comments(path: Path, source: str) -> Iterator[Text]:
    """Comments of C, CUDA and headers."""
    for match in re.finditer(r"/\*(.*?)\*/|((?:^[ \t]*//[^\n]*\n)+)|(//[^\n]*)", source, re.S | re.M):
        text = re.sub(r"^\s*(//|\*)\s?", "", match[0].strip("/*\n "), flags=re.M)
        yield path, source[: match.start()].count("\n") + 1, text.strip()


def errors(path: Path, tree: ast.Module) -> Iterator[Text]:
    """Texts in `raise SomeError(...)`; what is put in at run time stands in braces."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            strings = [a for a in node.exc.args if isinstance(a, ast.Constant | ast.JoinedStr | ast.BinOp)]
            text = "".join(_literal(part) for part in strings)
            if text:
                yield path, node.lineno, text


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _literal(v) if isinstance(v, ast.Constant) else f"{{{ast.unparse(v.value)}}}"
            for v in node.values
            if isinstance(v, ast.Constant | ast.FormattedValue)
        )
    if isinstance(node, ast.BinOp):
        return _literal(node.left) + _literal(node.right)
    return f"{{{ast.unparse(node)}}}"


def paragraphs(path: Path) -> Iterator[Text]:
    """Paragraphs, list items and rows of tables, without code blocks and headings."""
    source = re.sub(r"^```.*?^```$", lambda m: "\n" * m[0].count("\n"), path.read_text("utf-8"), flags=re.S | re.M)
    line = 1
    for block in re.split(r"(\n\s*\n|\n(?=[-*|#]|\d+\. ))", source):
        text = block.strip()
        if text and not text.startswith(("#", "|---", "```", "<", "![")):
            yield path, line + (len(block) - len(block.lstrip("\n"))), text
        line += block.count("\n")


def collect() -> dict[str, list[Text]]:
    """All texts of each kind, in the order of files."""
    found: dict[str, list[Text]] = {kind: [] for kind in COUNTS}
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text("utf-8")
        tree = ast.parse(source)
        found["docstring"] += docstrings(path, tree)
        found["comment"] += comments(path, source)
        found["error"] += errors(path, tree)
    for path in sorted(p for suffix in ("*.c", "*.h", "*.cu", "*.cpp") for p in PACKAGE.rglob(suffix)):
        found["comment"] += native_comments(path, path.read_text("utf-8"))
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for path in sorted(pages):
        if not set(path.relative_to(ROOT).parts) & set(GENERATED):
            found["document"] += paragraphs(path)
    return {kind: [t for t in texts if len(t[2].split()) > SHORT] for kind, texts in found.items()}


def sample(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    number = 0
    for kind, texts in collect().items():
        for path, line, text in rng.sample(texts, min(COUNTS[kind], len(texts))):
            number += 1
            yield f"{number}. {kind}  {path.relative_to(ROOT).as_posix()}:{line}\n{textwrap.indent(text, '    ')}\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    print("\n".join(sample(parser.parse_args().seed)))
