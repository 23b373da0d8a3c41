"""
The language of the documents: words to avoid, and the length of sentences.

    python -m tests.pages.language

prints, for each page, how many sentences it has, how many of them are above 25 words, and the
longest.
"""

from __future__ import annotations

import re
import sys

from .page import PAGES, ROW_ID, cells, read

DOCUMENTS = ["README.md", "CONTRIBUTING.md", *PAGES]
AIM = 25  # words in a sentence
LONGEST = 35  # words, from which on a test fails

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
    r"outbox": "staging",
    r"ledgers?": "dispatch log",
    r"peers?(?!-)": "transport, endpoint",
    r"knows? (a |the )?batch(es)? again": "idempotent sink",
    r"forg[eo]ts? (the |its )?receipts?": "acknowledge",
}
AVOID = re.compile(r"\b(?:" + "|".join(WORDS) + r")\b", flags=re.IGNORECASE)


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


def report() -> str:
    """Sentences, those above AIM, and the longest, by page."""
    lines = []
    every: list[int] = []
    for page in DOCUMENTS:
        lengths = [words(each) for each in sentences(page)]
        every += lengths
        long = sum(each > AIM for each in lengths)
        lines.append(f"{page:24} {len(lengths):5} {long:4} {max(lengths):4}")
    share = 100 * sum(each > AIM for each in every) / len(every)
    return "\n".join([*lines, f"{share:.1f} % of {len(every)} have more than {AIM} words", ""])


if __name__ == "__main__":
    sys.stdout.write(report())
