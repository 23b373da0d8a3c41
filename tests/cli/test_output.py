"""What commands print where the encoding of standard output lacks a character."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

import pytest

from sqlq_spark.admin import formats
from sqlq_spark.cli import endpoints, main

from .calls import CALLS, filled, prepare
from .commands import COMMANDS
from .database import count, own_database, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Place

CITY = "łódź"  # a schema, and so in each address
IN_CP1252 = r"\u0142ód\u017a"
# commands that print no name of a queue
NAMELESS = {
    "text": {"install", "selftest", "report", "receipts show", "streams remove"},
    "--json": {"install", "selftest", "receipts return", "receipts drop", "receipts show"}
    | {"streams remove", "unsubscribe"},
}


@pytest.fixture(scope="module", params=["text", "--json"])
def kind(request: pytest.FixtureRequest) -> str:
    """Give the form in which commands print: text or JSON."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def place(server: str, kind: str) -> Iterator[Place]:
    """Give one database to the commands that print text, and another to those with `--json`."""
    assert kind
    with own_database(server, CITY) as made:
        yield made


@pytest.fixture(scope="module")
def prepared(place: Place) -> dict[str, str]:
    """Make what the calls work on."""
    words = prepare(place)
    put(place, words["QUEUE"], f'{{"{CITY}":"{CITY}"}}', CITY.encode())
    return words


@pytest.fixture
def ready(
    place: Place, prepared: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Name the database in the environment, where the commands find it."""
    monkeypatch.setenv("SQLQUEUE_URL", place.url)
    return prepared


def written(
    monkeypatch: pytest.MonkeyPatch, encoding: str, *words: str, stdin: bytes = b""
) -> tuple[int, bytes, bytes]:
    """Run a command with streams of an encoding. Return its exit code and what it wrote."""
    out, err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding))
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


@pytest.mark.parametrize("name", CALLS)
def test_no_character_ends_a_command(
    kind: str, ready: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A file on Windows is in cp1252. Text has escapes for other characters, and JSON is UTF-8."""
    monkeypatch.setattr(endpoints, "SUBSCRIBERS_KEPT", 0)
    words = [*name.split(), *filled(CALLS[name], ready)]
    if kind == "--json":
        words.append(kind)
    elif name == "report":
        words += ["--html", str(tmp_path / "page")]

    code, out, err = written(monkeypatch, "cp1252", *words, stdin=f'{{"body": "{CITY}"}}'.encode())

    assert code == (1 if name == "doctor" else 0), err
    is_utf_8 = kind == "--json" or name == "script"
    text = out.decode("utf-8" if is_utf_8 else "cp1252")
    shown = CITY if is_utf_8 else IN_CP1252
    assert (shown in text) == (name not in NAMELESS[kind]), text
    if kind == "--json":
        assert [*map(json.loads, text.splitlines())]
    if name == "script" and kind == "text":
        assert "cp1252" in err.decode("cp1252")
        assert "UTF-8" in err.decode("cp1252")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437"])
def test_no_help_and_no_error_ends_by_a_character(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """They have escapes for characters that the encoding lacks. Help shows types in words."""
    for words in ([], *([*name.split(), "--help"] for name in COMMANDS)):
        code, out, _ = written(monkeypatch, encoding, *words)
        assert (code in {0, 2}, bool(out)) == (True, True), words
        assert b"<" not in out, out

    for words in (["łódź"], ["send", "q", "--łódź"], ["stats", "q", "--url", "łódź://"]):
        code, _, err = written(monkeypatch, encoding, *words)
        assert code == 2
        assert r"\u0142" in err.decode(encoding)


def test_an_answer_of_any_bytes_is_no_yes(
    place: Place, ready: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the command, as any answer but yes does."""
    before = count(place, ready["QUEUE"])

    code, _, err = written(monkeypatch, "utf-8", "purge", ready["QUEUE"], stdin=b"\xff\n")

    assert (code, b"nothing was done" in err) == (1, True)
    assert count(place, ready["QUEUE"]) == before > 0


def test_a_page_for_prometheus_is_utf_8(
    ready: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenMetrics is UTF-8 by definition, also on a standard output with another encoding."""
    words = ("stats", ready["QUEUE"], "--openmetrics", "-")

    code, out, _ = written(monkeypatch, "cp1252", *words)

    assert (code, CITY in out.decode()) == (0, True)


def test_a_script_stays_in_an_encoding_that_has_its_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The terminal's encoding is the one in which psql reads the script there."""
    words = ("script", "Müller", "--domain", "x")

    code, out, err = written(monkeypatch, "cp1252", *words)

    assert (code, "Müller" in out.decode("cp1252"), err) == (0, True, b"")


def test_a_stream_without_an_encoding_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook replaces standard output by such a stream."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)

    formats.escape_unencodable()
    formats.write_utf_8()
    sys.stdout.write(CITY)

    assert out.getvalue() == CITY
