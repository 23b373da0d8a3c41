"""The language of the documents and of the source: words to avoid, and the length of sentences."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

from .page import PAGES, ROW_ID, cells, read

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES]
LONGEST = 35  # words in a sentence

# what to avoid → what to write
WORDS = {
    r"mend(s|ed|ing)?": "fix",
    r"heed(s|ed|ing)?": "use, record",
    r"tells?|told": "report, log, raise, say",
    r"anew": "again, new",
    r"by (it|them)sel(f|ves)": "alone, automatically",
    r"strangers?": "untrusted",
    r"what would do": "expected …",
    r"notices? nothing": "is unaffected",
    r"comes? to (?=\d|nothing|all)": "results in",
    r"is so": "name the state",
    r"(is|are) welcome": "is allowed",
    r"nothing is wrong": "say what is right",
    r"so to speak": "leave it out",
    r"near miss(es)?": "likely typo",
    r"parcels?": "chunk",
    r"(?-i:outbox)": "staging",  # Outbox is the name of a feature of NServiceBus
    r"ledgers?": "dispatch log",
    r"(?<!reset by )peers?(?!-)": "transport, endpoint",
    r"knows? (a |the )?batch(es)? again": "idempotent sink",
    r"forg[eo]ts? (the |its )?receipts?": "acknowledge",
}
AVOID = re.compile(r"\b(?:" + "|".join(WORDS) + r")\b", flags=re.IGNORECASE)


ROOT = Path(__file__).parent.parent.parent
# folders whose comments, docstrings and strings use none of the words
CLEAN = ["conf", "sqlq_spark", "tests/bench", "tests/faults", "tests/hostile"]
COMMENT = {".sql": "--", ".toml": "#", ".yml": "#", ".yaml": "#", ".conf": "#"}
STRINGS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def sources(place: str) -> list[Path]:
    """The source files of a folder, or the one file."""
    path = ROOT / place
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return [each for each in files if each.suffix in {".py", *COMMENT}]


def texts(file: Path) -> list[str]:
    """
    The texts of a source file: comments, docstrings and strings.

    Of SQL and of settings it takes the comments, and the quoted texts.
    """
    source = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        return [each.string for each in tokens if each.type in STRINGS]
    mark = COMMENT[file.suffix]
    comments = [line.partition(mark)[2] for line in source.splitlines() if mark in line]
    return ["\n".join(comments), *re.findall(r"'[^'\n]*'", source)]


def refused(place: str) -> list[tuple[str, str]]:
    """The words to avoid in a folder or file of the source, each with its file."""
    return [
        (str(file.relative_to(ROOT)), word[0])
        for file in sources(place)
        for text in texts(file)
        for word in AVOID.finditer(re.sub(r"\s+", " ", text))
    ]


def passages(page: str) -> list[str]:
    """
    The text of a page by paragraphs, list items, headings and cells.

    Code, comments and what is generated are left out; a code span and a link's target are one word.
    """
    text = re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^<!-- locks -->$.*?^<!-- /locks -->$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = ROW_ID.sub("", text)
    text = re.sub(r"<!--.*?-->", "\n", text, flags=re.DOTALL)
    text = re.sub(r"!\[.*?\]\(.*?\)", "", text)
    text = re.sub(r"`[^`\n]+`", "CODE", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    found = []
    for line in re.sub(r"\n(?=[^\s|#*-])(?!\d+\. )", " ", text).splitlines():
        found += cells(line) if line.startswith("|") else [line]
    return [each for line in found if (each := re.sub(r"^\s*([-#*]+|\d+\.)\s", "", line).strip())]


def sentences(page: str) -> list[str]:
    """The sentences of a page; a colon at the end of a paragraph ends one, too."""
    return [
        each
        for text in passages(page)
        for each in re.split(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z*(\[`])", text)
    ]


def words(sentence: str) -> int:
    """How many words a sentence has."""
    return len(re.findall(r"[\w'.,/%-]*\w[\w'%]*", sentence))
