"""Secrets: which names and texts have one, and texts for people without them or what a terminal would obey.

Errors, log lines, plans, reports, notes and the command line show names and addresses through this module alone. It has
one answer to "may this be shown?": a login and a query of an address may not, nor the value of a setting whose name
says that it is secret. Where a text leaves open which of its parts is secret, more is hidden rather than less.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

SECRET_NAMES: Final = re.compile(
    r"passw|passphrase|secret|token(?!provider|_uri)|credential|jaas|signature|(?:^|[._-])sig$|private.?key"
    r"|(?:access|account|api|shared|session|master|customer|service).?key|\.pem$|ssl.key$|ssl\.key\.location$"
    r"|keystore\.key|store\.certificate|(?:^|[._-])sas(?:$|[._-])|connection.?string|user.?info|username|authorization"
    r"|cookie|x-api-key|oauthbearer\.(?:config|extensions)|kinit\.cmd|proxy|x-amz-",
)
"""A pattern in the lower-case names of settings whose values are secret, of all clients and stores."""

_HIDDEN: Final = "***"
_SCHEME: Final = r"[A-Za-z][A-Za-z0-9+.-]{0,30}"
_ADDRESS: Final = re.compile(rf"{_SCHEME}://|(?<!\w)(?:s3[an]?|gs|gcs|abfss?|wasbs?|https?|hdfs|hf):/?(?=[^\s/])")
"""The beginning of an address; of well-known schemes also where slashes were forgotten."""
_PART: Final = re.compile(
    rf"'(?={_SCHEME}:/)[^']*'(?![\w@])|\"(?={_SCHEME}:/)[^\"]*\"(?![\w@])|[^\s]+|\s+", re.IGNORECASE
)
_BARE_LOGIN: Final = re.compile(r"((?:[^\s:@]*[\"'(\[{=,])?)[^\s/:@\"'(\[{=,]+:\S*@(?=[\w\[])")
_CONTAINER: Final = re.compile(r"(?:abfss?|wasbs?)://[a-z0-9$-]{1,63}")
"""Azure has the name of a container before the `@`."""
_MOST_ADDRESSES: Final = 100
"""Without a space between them; what follows is hidden, so that a text of addresses alone takes no long time."""
_SETTING: Final = re.compile(r"(?<![\w.-])([\w.-]{1,100})=(\"[^\"]*\"|'[^']*'|[^\s&,;'\"]+)")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def without_secrets(text: str) -> str:
    """Return a text with the logins and queries of its addresses, and the values of secret settings, as `***`.

    An address alone is one to its end; within a text it ends at a space, or at the quote that it began with. O(n).

    Examples
    --------
    >>> without_secrets("cannot open 's3://KEY:ab/cd@bucket/data'")
    "cannot open 's3://***@bucket/data'"
    >>> without_secrets("abfss://data@account.dfs.core.windows.net/x?sig=abc")
    'abfss://data@account.dfs.core.windows.net/x?***'
    """
    if ":" in text:
        is_address = _ADDRESS.match(text) is not None and re.search("[:;] ", text) is None
        parts = [text] if is_address else _PART.findall(text)
        text = "".join(_without_login(part) if ":" in part else part for part in parts)
    return _SETTING.sub(_without_value, text) if "=" in text else text


def has_secret(text: str) -> bool:
    """Return whether a value has a part that may not be shown."""
    return without_secrets(text) != text


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """Replace each secret in a text by `***`, as a whole word: a user `p` hides no letter of `topics`."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        begin = r"(?<![^\W_])" if secret[0].isalnum() else ""
        end = r"(?![^\W_])" if secret[-1].isalnum() else ""
        text = re.sub(f"{begin}{re.escape(secret)}{end}", _HIDDEN, text)
    return text


def printable(text: str) -> str:
    r"""Return a name in one line, with characters that a terminal or log would obey as Python writes them.

    Examples
    --------
    >>> printable("a\x1b[2J\nERROR b")
    'a\\x1b[2J\\nERROR b'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shown(text: str) -> str:
    """Return a text of several parts in one line, `printable` and `without_secrets`: an error, a line of a log."""
    return without_secrets(printable(" ".join(text.splitlines())))


def log_of(module: str) -> logging.Logger:
    """Return the logger of a module, whose lines are `shown`."""
    log = logging.getLogger(module)
    log.addFilter(_show)
    return log


def _show(record: logging.LogRecord) -> bool:
    record.msg, record.args = shown(record.getMessage()), ()
    return True


def _without_value(found: re.Match[str]) -> str:
    return f"{found[1]}={_HIDDEN}" if SECRET_NAMES.search(found[1].lower()) else found[0]


def _without_login(part: str) -> str:
    """Hide logins and queries of the addresses in a text that has no spaces, or is an address in quotes."""
    if (login := _BARE_LOGIN.match(part)) is not None and _ADDRESS.search(part) is None:
        return f"{login[1]}{_HIDDEN}{part[login.end() - 1 :]}"
    done = ""
    for count in range(_MOST_ADDRESSES + 1):
        if (begun := _ADDRESS.search(part)) is None:
            break
        if count == _MOST_ADDRESSES:
            return done + _HIDDEN
        done, quote, rest = f"{done}{part[: begun.end()]}", part[: begun.start()][-1:], part[begun.end() :]
        authority = re.split("[/?#]", rest, maxsplit=1)[0]
        if ":" in authority and "@" in rest:
            # A password may have any character, as half of the keys of AWS have a slash: it ends at the last `@`.
            done, rest = f"{done}{_HIDDEN}", rest[rest.rindex("@") :]
        elif "@" in authority and not _CONTAINER.fullmatch(f"{begun[0]}{authority.partition('@')[0]}"):
            done, rest = f"{done}{_HIDDEN}", rest[authority.rindex("@") :]
        query, following = re.search("[?#]", rest), _ADDRESS.search(rest)
        if query is not None and (following is None or query.start() < following.start()):
            end = rest.find(quote, query.end()) if quote and quote in "'\"`" else -1
            done, rest = f"{done}{rest[: query.end()]}{_HIDDEN}", rest[end:] if end >= 0 else ""
        part = rest
    return done + part
