"""
Print how much there is to read. No size fails a test.

    python -m tests.budget

Tokens are Python's own, without comments, line ends and docstrings. An f-string is one token. Each
word of any other text of several lines is one token. So every version of Python counts the same.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path
from pprint import pformat

CORE = {"errors", "wire", "options", "database", "receive", "send", "datasource"}
ROOT = Path(__file__).parents[1]
SKIPPED = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
F_STRING = re.compile("(?i)[a-z]*f")  # before Python 3.12 its token is STRING


def docstrings(text: str) -> set[tuple[int, int]]:
    """Where docstrings begin: line and column."""
    nodes = [each for each in ast.walk(ast.parse(text)) if isinstance(each, DOCUMENTED)]
    firsts = [each.body[0] for each in nodes if ast.get_docstring(each) is not None]
    return {(each.lineno, each.col_offset) for each in firsts}


def tokens(text: str) -> int:
    """Count the tokens of a Python file."""
    places, count, depth = docstrings(text), 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind in {"FSTRING_START", "FSTRING_END"}:
            count += kind == "FSTRING_START" and depth == 0
            depth += 1 if kind == "FSTRING_START" else -1
        elif not depth and kind not in SKIPPED and not (kind == "STRING" and token.start in places):
            words = kind == "STRING" and "\n" in token.string and not F_STRING.match(token.string)
            count += len(token.string.split()) if words else 1
    return count


def figures() -> dict[str, dict[str, int]]:
    """Count the files that git knows."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name in listed.stdout.decode().split("\n"):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink():
            for what, its in weigh(name, path.read_bytes().decode("utf-8", "replace")).items():
                found[what].update(its)
    return {what: dict(its) for what, its in sorted(found.items())}


def weigh(name: str, text: str) -> dict[str, dict[str, int]]:
    """What a file adds to each group."""
    top, _, rest = name.partition("/")
    lines = {"files": 1, "lines": text.count("\n")}
    if name.endswith(".py"):
        its = lines | {"tokens": tokens(text)}
        if top == "tests":
            return {"tests": its}
        part = rest.partition("/")[0].removesuffix(".py")
        core = top == "sqlq_spark" and (part in CORE or (part == rest[:-3] and part != "demo"))
        return {"package": its, "core" if core else "everything else": its}
    if name.endswith(".sql") and top == "sqlq_spark":
        bare = [line.strip() for line in text.splitlines()]
        return {"sql": {"statement lines": sum(not line.startswith("--") for line in bare if line)}}
    if name.endswith(".md") and top in {"README.md", "CONTRIBUTING.md", "docs"}:
        return {"words": {"words": len(text.split())}}
    if name.endswith(".ipynb"):
        cells = [each for each in json.loads(text)["cells"] if each["cell_type"] == "markdown"]
        return {"words": {"words": sum(len("".join(each["source"]).split()) for each in cells)}}
    return {f"other files in {top}": lines} if top in {"sqlq_spark", "tests"} else {}


if __name__ == "__main__":
    sys.stdout.write(pformat(figures(), width=100) + "\n")
