"""Documents and source are in plain English: no words to avoid, no endless sentences."""

from __future__ import annotations

import io
import re
import tokenize

import pytest

from .page import PAGES, ROOT, ROW_ID, cells, without_code

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
# folders whose comments, docstrings and strings use none of the words
CLEAN = ["conf", "sqlq_spark", "tests/bench", "tests/faults", "tests/hostile"]
COMMENT = {".sql": "--", ".toml": "#", ".yml": "#", ".yaml": "#", ".conf": "#"}
STRINGS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def texts(suffix: str, source: str) -> list[str]:
    """The comments and quoted texts of a source file."""
    if suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        return [each.string for each in tokens if each.type in STRINGS]
    mark = COMMENT[suffix]
    comments = [line.partition(mark)[2] for line in source.splitlines() if mark in line]
    return ["\n".join(comments), *re.findall(r"'[^'\n]*'", source)]


def passages(page: str) -> list[str]:
    """
    The text of a page by paragraphs, list items, headings and cells.

    Code, comments and what is generated are left out; a code span and a link's target are one word.
    """
    text = re.sub(
        r"^<!-- locks -->$.*?^<!-- /locks -->$",
        "",
        without_code(page),
        flags=re.MULTILINE | re.DOTALL,
    )
    text = re.sub(r"<!--.*?-->", "\n", ROW_ID.sub("", text), flags=re.DOTALL)
    text = re.sub(r"!\[.*?\]\(.*?\)", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]+`", "CODE", text))
    found = []
    for line in re.sub(r"\n(?=[^\s|#*-])(?!\d+\. )", " ", text).splitlines():
        found += cells(line) if line.startswith("|") else [line]
    return [each for line in found if (each := re.sub(r"^\s*([-#*]+|\d+\.)\s", "", line).strip())]


@pytest.mark.parametrize("page", DOCUMENTS)
def test_no_page_uses_a_word_to_avoid_or_an_endless_sentence(page: str) -> None:
    """`WORDS` says what to write instead; a sentence above the limit may become a list."""
    lines = passages(page)
    sentences = [
        each for line in lines for each in re.split(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z*(\[`])", line)
    ]

    assert [(word[0], line) for line in lines for word in AVOID.finditer(line)] == []
    assert [x for x in sentences if len(re.findall(r"[\w'.,/%-]*\w[\w'%]*", x)) > LONGEST] == []


@pytest.mark.parametrize("place", CLEAN)
def test_no_source_uses_a_word_to_avoid(place: str) -> None:
    """In comments, docstrings and strings."""
    files = [each for each in (ROOT / place).rglob("*") if each.suffix in {".py", *COMMENT}]
    found = [
        (str(file), word[0])
        for file in files
        for text in texts(file.suffix, file.read_text(encoding="utf-8"))
        for word in AVOID.finditer(re.sub(r"\s+", " ", text))
    ]

    assert files
    assert found == []


def test_what_is_refused_is_found() -> None:
    """The words in their forms, and not where they are part of others."""
    refused = ["what mends it", "it was told", "made anew", "a near miss is refused", "3 parcels"]
    allowed = ["recommended", "the transport", "amended", "renewed", "installed"]

    assert [each for each in refused if not AVOID.search(each)] == []
    assert [each for each in allowed if AVOID.search(each)] == []
