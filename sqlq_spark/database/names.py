"""Which database a url names, and how that one writes names: see wire/address.py."""

from __future__ import annotations

from sqlq_spark.errors import BadOption
from sqlq_spark.wire.address import POSTGRESQL, SQLSERVER, Names

EXAMPLES = "postgresql://user@host:5432/database or sqlserver://user@host:1433/database"
STATE = "sqlqueue"  # default schema of the state tables; that of a domain is sqlqueue_NAME

# by the dialect's name; the statements of the first are the model for the others
DIALECTS = {names.dialect: names for names in (POSTGRESQL, SQLSERVER)}
SCHEMES = {"postgresql": POSTGRESQL, "postgres": POSTGRESQL, "sqlserver": SQLSERVER}


def names_of(url: str) -> Names:
    """
    Return how the database of a url writes names.

    Raises:
        BadOption: no dialect has this scheme.
    """
    scheme, colon, _ = url.partition("://")
    try:
        return SCHEMES[scheme.lower()]
    except KeyError:
        found = f"{scheme}://…" if colon else "…"  # the text may hold a password
        raise BadOption(option="url", found=found, expected=EXAMPLES) from None


def other_password_variables(url: str) -> set[str]:
    """Return the environment variables whose password is for other databases than the url's."""
    own = SCHEMES.get(url.partition("://")[0].lower())
    return {
        each.password_variable
        for each in DIALECTS.values()
        if each.password_variable is not None and each is not own
    }
