"""
Read urls, and names of queues, tables and roles, as users write them.

The modules of wire/ define the notation of each database.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote, urlsplit

from sqlq_spark.errors import BadAddress, BadOption
from sqlq_spark.wire.address import SHOWN, Names, QueueAddress
from sqlq_spark.wire.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

EXAMPLES = " or ".join(names.example_url for names in DIALECTS.values())
STATE = "sqlqueue"  # default schema of the state tables; a domain's schema is sqlqueue_NAME

LIST = "names of queues, separated by commas"
ROLES = "names of roles, separated by commas"

PLAIN_SCHEME = re.compile(r"(?:jdbc:)?[^\W\d_]{1,12}")  # may be the scheme of another database
SCHEMES = {scheme: names for names in DIALECTS.values() for scheme in names.schemes}

# environment variables that only the tools of one kind of database read
PASSWORD_VARIABLES = [
    names.password_variable for names in DIALECTS.values() if names.password_variable is not None
]


def _encoded(word: str) -> str:
    """Return a pattern for a word in a url; each letter may be percent-encoded."""
    return "".join(f"(?:{letter}|%{ord(letter):x}|%{ord(letter.upper()):x})" for letter in word)


# a password in a url, before the host or in the query
OWN_PASSWORD = re.compile(rf"(?i)://[^/?@:]*:[^/?]*@|[?&]{_encoded('password')}=")
# Parameters of a url whose values are secrets. A longer name that ends with such a word counts too.
OWN_SECRETS = [word for names in DIALECTS.values() for word in names.secrets]
SECRET = "|".join(map(_encoded, ["password", "secret", *OWN_SECRETS]))
SECRETS = re.compile(rf"(?i)((?:{SECRET})\s*=)[^&]*")
HIDDEN = "***"
_PART = r"[^:,@/?#;&=\s]*"
_HOST = rf"(?:\[[^\[\]@/?\s]*\]|{_PART})(?::[0-9]*)?"
# A pattern for the text after `://` of a url whose password is at a wrong place and contains an @.
# The text before the @ then looks like user and password, but it has a host in the place of the
# user, or a parameter in the place of the password.
MISPLACED = r"[0-9.]+:[^/]*@|[^/]*[;&](?:password|pwd)=[^/]*@"
PLAIN_URL = re.compile(
    rf"\w+://(?!{MISPLACED})(?:(?P<user>{_PART})(?P<password>:[^@/?\s]*)?@)?"
    rf"(?P<place>{_HOST}(?:,{_HOST})*(?:/{_PART})?)(?P<query>\?.*)?"
)


def names_of(url: str) -> Names:
    """Return the Names of the url's database. Raise BadOption for an unknown scheme."""
    scheme, colon, _ = url.partition("://")
    try:
        return SCHEMES[scheme.lower()]
    except KeyError:
        # The error does not show the rest of the text, which may contain a password.
        found = f"{scheme}://…" if colon and PLAIN_SCHEME.fullmatch(scheme) else "…"
        raise BadOption(option="url", found=found, expected=EXAMPLES) from None


def with_lower_scheme(url: str) -> str:
    """
    Return a url with its scheme in lower case.

    libpq does not accept another scheme, and its error would quote the url.
    """
    scheme, colon, rest = url.partition("://")
    return f"{scheme.lower()}{colon}{rest}"


def other_password_variables(url: str) -> set[str]:
    """Return the environment variables with passwords for other kinds of databases."""
    names = SCHEMES.get(url.partition("://")[0].lower())
    return {*PASSWORD_VARIABLES} - {names.password_variable if names is not None else None}


def with_login(url: str, user: str | None, password: str | None) -> str:
    """Add the options user and password to the url, as parameters."""
    login = {"user": user, "password": password}
    query = "&".join(
        f"{key}={quote(text, safe='')}" for key, text in login.items() if text is not None
    )
    if not query:
        return url
    separator = "&" if "?" in url else "?"
    return f"{url}{separator}{query}"


def with_password(url: str, password: str | None) -> str:
    """Add a password to a url, unless the url has one."""
    return url if OWN_PASSWORD.search(url) else with_login(url, None, password)


def hide_secrets(url: str) -> str:
    """Replace the password and other secrets of a url by HIDDEN."""
    without_password = re.sub(r"(?s)(?<=://)([^/@:?]*):.*@", rf"\1:{HIDDEN}@", url)
    return SECRETS.sub(rf"\1{HIDDEN}", without_password)


def describe_url(url: str) -> str:
    """
    Return a url with HIDDEN for its password and its parameters.

    If the url has an unusual form, nobody knows where its password is. Then only the scheme is
    returned.
    """
    scheme = url.partition("://")[0].lower()
    parts = PLAIN_URL.fullmatch(url)
    if parts is None or scheme not in SCHEMES:
        return f"{scheme}://{HIDDEN}" if scheme in SCHEMES else HIDDEN
    password = f":{HIDDEN}" if parts["password"] else ""
    login = "" if parts["user"] is None else f"{parts['user']}{password}@"
    query = f"?{HIDDEN}" if parts["query"] else ""
    return f"{scheme}://{login}{parts['place']}{query}"


def database_name(url: str) -> str:
    """Return the name of the database in a url, or "" if the url names none or is unusual."""
    parts = PLAIN_URL.fullmatch(url)
    return "" if parts is None else unquote(urlsplit(url).path.strip("/"))


# ----- queues and tables ---------------------------------------------------------------------


def parse_queue(option: str, text: str, naming: Names) -> QueueAddress:
    """Read a queue's name as a user writes it. A BadOption names the option."""
    return _parse(option, text, naming.parse_queue)


def parse_destination(option: str, text: str, naming: Names) -> QueueAddress:
    """Read the destination in a row of a DataFrame: a queue's name, or an address of a message."""
    return _parse(option, text, naming.parse_destination)


def parse_reply_address(
    option: str, text: str, naming: Names, *, in_row: bool = False
) -> QueueAddress:
    """
    Read the queue to which replies go, from an option or a row: a name, or an address of a message.

    This login may not see the queue, so it is not checked whether the queue exists. But a text in
    the notation of another database is refused.
    """
    if naming.is_of_other_database(text):
        example = naming.print_address(QueueAddress("Spark.In"))
        expected = f"an address of this database, for example {example}"
        raise BadOption(option=option, found=text[:SHOWN], expected=expected)
    if naming.is_address_only(text):
        return _parse(option, text, naming.parse_address)
    return (parse_destination if in_row else parse_queue)(option, text, naming)


def parse_table(option: str, text: str, naming: Names) -> QueueAddress:
    """Read the name of an existing table as `parse_queue` does, but allow a longer name."""
    return _parse(option, text, naming.parse_table)


def parse_queues(option: str, text: str, naming: Names) -> tuple[QueueAddress, ...]:
    """Read names of queues, separated by commas. Each is read as `parse_queue` does."""
    names = _parse(option, text, naming.split_list, LIST)
    return tuple(parse_queue(option, name, naming) for name in names)


def parse_tables(option: str, text: str, naming: Names) -> tuple[QueueAddress, ...]:
    """
    Read names of existing tables, separated by commas.

    A name without a schema gets the default one.
    """
    names = _parse(option, text, naming.split_list, LIST)
    return tuple(naming.qualify(parse_table(option, name, naming)) for name in names)


def parse_roles(option: str, text: str, naming: Names) -> tuple[str, ...]:
    """Read names of roles, separated by commas. A name with a comma or a quote must be quoted."""
    parts = _parse(option, text, naming.split_list, ROLES)
    return tuple(map(naming.unquote_name, parts))


def print_roles(roles: Iterable[str], naming: Names) -> str:
    """Write names of roles in the form that `parse_roles` reads."""
    special = {",", naming.opening}

    def print_role(role: str) -> str:
        needs_quotes = special & {*role} or role != role.strip()
        return naming.quote_name(role) if needs_quotes else role

    return ",".join(map(print_role, roles))


def _parse(option: str, text: str, parse: Callable[[str], T], what: str = "a queue's name") -> T:
    try:
        return parse(text)
    except BadAddress as error:
        expected = f"{what} ({error.reason})"
        raise BadOption(option=option, found=text[:SHOWN], expected=expected) from None
