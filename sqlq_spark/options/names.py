"""
What users write as a url and as the name of a queue or a table, in the notation of its database.

wire/ has the notation of each database.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from sqlq_spark.errors import BadAddress, BadOption
from sqlq_spark.wire.address import SHOWN, Names, QueueAddress
from sqlq_spark.wire.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

EXAMPLES = " or ".join(names.example_url for names in DIALECTS.values())
STATE = "sqlqueue"  # default schema of the state tables; that of a domain is sqlqueue_NAME

LIST = "names of queues, separated by commas"
ROLES = "names of roles, separated by commas"

PLAIN_SCHEME = re.compile(r"(?:jdbc:)?[^\W\d_]{1,12}")  # as of another database
SCHEMES = {scheme: names for names in DIALECTS.values() for scheme in names.schemes}

# environment variables with a password that only one database's tools read
PASSWORD_VARIABLES = [
    names.password_variable for names in DIALECTS.values() if names.password_variable is not None
]


def _encoded(word: str) -> str:
    """Return a pattern of a word of which a url may percent-encode each letter, in any case."""
    return "".join(f"(?:{each}|%{ord(each):x}|%{ord(each.upper()):x})" for each in word)


# a password in a url, before the host or in the query
OWN_PASSWORD = re.compile(rf"(?i)://[^/?@:]*:[^/?]*@|[?&]{_encoded('password')}=")
# parameters of a url whose values are secrets, also as part of a longer name
OWN_SECRETS = [word for names in DIALECTS.values() for word in names.secrets]
SECRET = "|".join(map(_encoded, ["password", "secret", *OWN_SECRETS]))
SECRETS = re.compile(rf"(?i)((?:{SECRET})\s*=)[^&]*")
HIDDEN = "***"
_PART = r"[^:,@/?#;&=\s]*"
_HOST = rf"(?:\[[^\[\]@/?\s]*\]|{_PART})(?::[0-9]*)?"
# A host in the place of the user, or a parameter in that of the password: the user information ends
# at an @ of a password that stands elsewhere. Stands behind the :// of a url.
MISPLACED = r"[0-9.]+:[^/]*@|[^/]*[;&](?:password|pwd)=[^/]*@"
PLAIN_URL = re.compile(
    rf"\w+://(?!{MISPLACED})(?:(?P<user>{_PART})(?P<password>:[^@/?\s]*)?@)?"
    rf"(?P<place>{_HOST}(?:,{_HOST})*(?:/{_PART})?)(?P<query>\?.*)?"
)


def names_of(url: str) -> Names:
    """Return how the database of a url writes names; raise BadOption for an unknown scheme."""
    scheme, colon, _ = url.partition("://")
    try:
        return SCHEMES[scheme.lower()]
    except KeyError:
        # the text may hold a password
        found = f"{scheme}://…" if colon and PLAIN_SCHEME.fullmatch(scheme) else "…"
        raise BadOption(option="url", found=found, expected=EXAMPLES) from None


def with_lower_scheme(url: str) -> str:
    """Return a url with its scheme in lower case: libpq reads no other, and quotes the url."""
    scheme, colon, rest = url.partition("://")
    return f"{scheme.lower()}{colon}{rest}"


def other_password_variables(url: str) -> set[str]:
    """Return the environment variables whose password is for other databases than the url's."""
    own = SCHEMES.get(url.partition("://")[0].lower())
    return {*PASSWORD_VARIABLES} - {own.password_variable if own is not None else None}


def with_login(url: str, user: str | None, password: str | None) -> str:
    """Put the options user and password into the url."""
    login = {"user": user, "password": password}
    query = "&".join(
        f"{key}={quote(text, safe='')}" for key, text in login.items() if text is not None
    )
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url


def with_password(url: str, password: str | None) -> str:
    """Put a password of the environment into a url that has none of its own."""
    return url if OWN_PASSWORD.search(url) else with_login(url, None, password)


def hide_secrets(url: str) -> str:
    """Replace the password and other secrets of a url by HIDDEN."""
    without_password = re.sub(r"(?s)(?<=://)([^/@:?]*):.*@", rf"\1:{HIDDEN}@", url)
    return SECRETS.sub(rf"\1{HIDDEN}", without_password)


def describe_url(url: str) -> str:
    """Return a url without password and parameters; of one that is not plain, only the scheme."""
    scheme = url.partition("://")[0].lower()
    found = PLAIN_URL.fullmatch(url)
    if found is None or scheme not in SCHEMES:
        return f"{scheme}://{HIDDEN}" if scheme in SCHEMES else HIDDEN
    password = f":{HIDDEN}" if found["password"] else ""
    login = "" if found["user"] is None else f"{found['user']}{password}@"
    return f"{scheme}://{login}{found['place']}{f'?{HIDDEN}' if found['query'] else ''}"


# ----- queues and tables ---------------------------------------------------------------------


def parse_queue(option: str, text: str, naming: Names) -> QueueAddress:
    """Read a queue's name as a user wrote it; BadOption names the option or flag."""
    return _parse(option, text, naming.parse_queue)


def parse_destination(option: str, text: str, naming: Names) -> QueueAddress:
    """Read where a row of a frame goes: a queue's name, or an address that a message holds."""
    return _parse(option, text, naming.parse_destination)


def parse_reply_address(
    option: str, text: str, naming: Names, *, in_row: bool = False
) -> QueueAddress:
    """
    Read where replies go, in an option or a row: a queue's name, or an address in a message.

    Nobody checks whether this queue exists, because it may be in another endpoint's hands. So a
    text in the notation of another database is refused.
    """
    if naming.is_of_other_database(text):
        example = naming.print_address(QueueAddress("Spark.In"))
        expected = f"an address of this database, for example {example}"
        raise BadOption(option=option, found=text[:SHOWN], expected=expected)
    if naming.is_address_only(text):
        return _parse(option, text, naming.parse_address)
    return (parse_destination if in_row else parse_queue)(option, text, naming)


def parse_table(option: str, text: str, naming: Names) -> QueueAddress:
    """Read the name of an existing table, as `parse_queue`; it may be longer than a queue's."""
    return _parse(option, text, naming.parse_table)


def parse_queues(option: str, text: str, naming: Names) -> tuple[QueueAddress, ...]:
    """Read the names of queues that commas separate, as `parse_queue`."""
    names = _parse(option, text, naming.split_list, LIST)
    return tuple(parse_queue(option, name, naming) for name in names)


def parse_tables(option: str, text: str, naming: Names) -> tuple[QueueAddress, ...]:
    """Read the names of existing tables that commas separate; each result has its schema."""
    names = _parse(option, text, naming.split_list, LIST)
    return tuple(naming.qualify(parse_table(option, name, naming)) for name in names)


def parse_roles(option: str, text: str, naming: Names) -> tuple[str, ...]:
    """Read the names of roles that commas separate; one with a comma or a quote is in quotes."""
    parts = _parse(option, text, naming.split_list, ROLES)
    return tuple(map(naming.unquote_name, parts))


def print_roles(roles: Iterable[str], naming: Names) -> str:
    """Write names of roles as `parse_roles` reads them."""
    special = {",", naming.opening}
    return ",".join(
        naming.quote_name(role) if special & {*role} or role != role.strip() else role
        for role in roles
    )


def _parse(option: str, text: str, parse: Callable[[str], T], what: str = "a queue's name") -> T:
    try:
        return parse(text)
    except BadAddress as error:
        expected = f"{what} ({error.reason})"
        raise BadOption(option=option, found=text[:SHOWN], expected=expected) from None
