"""Documents and source are in plain English: no words to avoid, no endless sentences."""

from __future__ import annotations

import re

import pytest

from .page import PAGES, ROOT, ROW_ID, cells, without_code

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES]
LONGEST = 35  # words in a sentence
# what to write instead: fix, record, report, again, alone, untrusted, expected, is unaffected,
# results in, the state, is allowed, what is right, likely typo, chunk, staging, dispatch log,
# transport, idempotent, acknowledge
WORDS = r"""
mend(s|ed|ing)?|heed(s|ed|ing)?|(tells?|told)(?![(=])|anew|by\ (it|them)sel(f|ves)|strangers?
|what\ would\ do|notices?\ nothing|comes?\ to\ (?=\d|nothing|all)|is\ so|(is|are)\ welcome
|nothing\ is\ wrong|so\ to\ speak|near\ miss(es)?|parcels?|(?-i:outbox)|ledgers?
|(?<!reset\ by\ )peers?(?!-)|knows?\ (a\ |the\ )?batch(es)?\ again
|forg[eo]ts?\ (the\ |its\ )?receipts?
"""
AVOID = re.compile(rf"\b(?:{WORDS})\b", flags=re.IGNORECASE | re.VERBOSE)
CLEAN = ["conf", "sqlq_spark", "tests/bench", "tests/faults", "tests/hostile"]


def passages(page: str) -> list[str]:
    """
    The text of a page by paragraphs, list items, headings and cells.

    Code, comments and what is generated are left out; a code span and a link's target are one word.
    """
    text = re.sub(r"<!-- locks -->.*?<!-- /locks -->", "", without_code(page), flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "\n", ROW_ID.sub("", text), flags=re.DOTALL)
    text = re.sub(r"!\[.*?\]\(.*?\)", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]+`", "CODE", text))
    found = []
    for line in re.sub(r"\n(?=[^\s|#*-])(?!\d+\. )", " ", text).splitlines():
        found += cells(line) if line.startswith("|") else [line]
    return [re.sub(r"^\s*([-#*]+|\d+\.)\s", "", line) for line in found]


@pytest.mark.parametrize("page", DOCUMENTS)
def test_no_page_uses_a_word_to_avoid_or_an_endless_sentence(page: str) -> None:
    """A sentence above the limit may become a list."""
    lines = passages(page)
    sentences = [
        each for line in lines for each in re.split(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z*(\[`])", line)
    ]

    assert [(word[0], line) for line in lines for word in AVOID.finditer(line)] == []
    assert [x for x in sentences if len(re.findall(r"[\w'.,/%-]*\w[\w'%]*", x)) > LONGEST] == []


@pytest.mark.parametrize("place", CLEAN)
def test_no_source_uses_a_word_to_avoid(place: str) -> None:
    """Code, comments, docstrings and texts are searched."""
    files = [each for each in (ROOT / place).rglob("*.*") if "__pycache__" not in each.parts]
    texts = {each: re.sub(r"\s+", " ", each.read_text(encoding="utf-8")) for each in files}

    assert files
    found = [(str(file), word[0]) for file, text in texts.items() for word in AVOID.finditer(text)]
    assert found == []
