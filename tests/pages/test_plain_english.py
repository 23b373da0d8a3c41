"""Documents and source are in plain English: no words to avoid, no endless sentences."""

from __future__ import annotations

import pytest

from .language import AVOID, CLEAN, DOCUMENTS, LONGEST, passages, refused, sentences, words


@pytest.mark.parametrize("page", DOCUMENTS)
def test_no_page_uses_a_word_to_avoid(page: str) -> None:
    """`WORDS` of language.py says what to write instead."""
    found = [(word[0], text) for text in passages(page) for word in AVOID.finditer(text)]

    assert found == []


@pytest.mark.parametrize("place", CLEAN)
def test_no_source_uses_a_word_to_avoid(place: str) -> None:
    """In comments, docstrings and strings; `WORDS` of language.py says what to write instead."""
    assert refused(place) == []


@pytest.mark.parametrize("page", DOCUMENTS)
def test_no_sentence_is_too_long(page: str) -> None:
    """A sentence above the limit is to be split; a list may help."""
    found = [(words(each), each) for each in sentences(page) if words(each) > LONGEST]

    assert found == []


def test_what_is_refused_is_found() -> None:
    """The words in their forms, and not where they are part of others."""
    refused = ["what mends it", "it was told", "made anew", "a near miss is refused", "3 parcels"]
    allowed = ["recommended", "the transport", "amended", "renewed", "installed"]

    assert [each for each in refused if not AVOID.search(each)] == []
    assert [each for each in allowed if AVOID.search(each)] == []
