"""Reads the errors of obstore, which tells most of them as text, and says them to people.

The texts hold URLs, keys of objects and answers of the storage, which may repeat key ids. Only the status and the code
of an answer are taken from them, and of a key that no file can have the part below the prefix. They may change with a
minor release of obstore, which is pinned for that reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tfs_lite.core.status import StatusCode
from tfs_lite.storage.store import StorageError
from tfs_lite.storage.url import start_of

NO_ANSWER = "the storage does not answer"
NO_CREDENTIALS = "the service for credentials gives no credentials"
NO_NAME = "an object's name cannot be that of a file"
OTHER_REGION = "the bucket is in another region: set AWS_REGION"
CERTIFICATE = "the storage's certificate is not trusted: SSL_CERT_FILE names the authorities"
NO_ADDRESS = "the name of the storage's host is not known"
SHORTER = "the object is shorter"
UNREADABLE = "the answer of the storage cannot be read"
SETTINGS = "the environment has no valid settings for the storage"

_STATUS = re.compile(r"Error performing [A-Z]+ \S+ in .*? - Server returned non-2xx status code: (\d{3})", re.S)
_CODE = re.compile(r"<Code>((?:[A-Z][a-z]{1,20}){1,10})</Code>|\(code: ((?:[A-Z][a-z]{1,20}){1,10})\)")
"""Words like those of codes. A storage that puts something else there may repeat a key."""
_OF_LISTING = re.compile(
    r"Generic \w+ error: (?:Error performing list request|Error getting list response|Got invalid list)"
)
_OF_CREDENTIALS = re.compile(
    r"Generic \w+ error: (?:Error performing token request|Error getting token response|Failed to read token"
    r"|Error performing (?:PUT \S+/latest/api/token|GET \S+/latest/meta-data/\S*|POST REDACTED) )"
)
_INVALID_PATH = re.compile(r'Path "(.*)"(?:: Encountered illegal| contained empty path segment)', re.S)
MAX_KEY = 120
"""The most characters of a key that a sentence shows."""
_TYPED = frozenset({401, 403, 404, 409, 412})
"""The statuses that have a type of their own in every operation but a listing."""
_REFUSES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AccessDenied"})
_REGION = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"})
_STATUS_OF_KIND = {"FileNotFoundError": 404, "PermissionDeniedError": 403, "UnauthenticatedError": 401}
_VARIABLES = {"Generic GCS": "GOOGLE", "Generic MicrosoftAzure": "AZURE"}
_AGAIN = frozenset({"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable"})
_SETUP = (
    ("Account must be specified", "the environment names no storage account: set AZURE_STORAGE_ACCOUNT_NAME"),
    ("Missing SecretAccessKey", "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not"),
    ("Missing AccessKeyId", "AWS_SECRET_ACCESS_KEY is set, and AWS_ACCESS_KEY_ID is not"),
    ("Invalid Access Key", "AZURE_STORAGE_ACCOUNT_KEY is no key"),
    ("service account", "the key of the Google service account cannot be read"),
)


def error_of(text: str, kind: type[BaseException], *, listing: bool) -> StorageError:
    """The error of a request, from the text and the type of what obstore has raised; ``listing``: of a LIST."""
    text, _, details = text.partition("\n\nDebug source:")
    name = kind.__name__
    if name in ("PanicException", "ValueError", "UnicodeEncodeError", "InvalidPathError", "NotSupportedError"):
        return StorageError(StatusCode.FAILED_PRECONDITION, SETTINGS if name == "PanicException" else NO_NAME)
    found = _STATUS.search(text)
    status = int(found[1]) if found else _STATUS_OF_KIND.get(name, 0)
    code = _code(text[found.end() :] if found else text)
    if _is_of_credentials(text, name, status, listing):
        return StorageError(StatusCode.UNAVAILABLE, NO_CREDENTIALS, is_transient=True)
    if name == "AlreadyExistsError":
        return StorageError(StatusCode.ALREADY_EXISTS, "there is such an object already")
    if name == "PreconditionError":
        return StorageError(StatusCode.ABORTED, "the object was changed")
    if not status and not code:
        return _without_status(text, details)
    return _of_answer(status, code, listing)


@dataclass(frozen=True, slots=True)
class OddKey:
    """A key that no file can have, at which a listing ends: the part below the prefix; empty if it is not known."""

    key: str

    @classmethod
    def of(cls, text: str, prefix: str) -> OddKey:
        """The key in the text of an InvalidPathError of a listing of ``prefix``."""
        found = _INVALID_PATH.search(text.partition("\n\nDebug source:")[0])
        start = start_of(prefix)
        return cls(found[1][len(start) :] if found and found[1].startswith(start) else "")

    @property
    def sorts_first(self) -> bool:
        """Whether it sorts before every name that begins with a digit, because its first part is empty or dots."""
        return bool(self.key) and self.key.partition("/")[0] in ("", ".", "..")

    @property
    def name(self) -> str:
        """The key as a log line or a sentence may show it, in quotes."""
        shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in self.key[:MAX_KEY])
        return f'"{shown}{"..." if len(self.key) > MAX_KEY else ""}"'

    @property
    def error(self) -> StorageError:
        named = f": {self.name} below the prefix" if self.key else ""
        return StorageError(StatusCode.FAILED_PRECONDITION, f"{NO_NAME}{named}")


def setup_error_of(text: str) -> StorageError:
    """The error of a store that could not be made, because of the environment."""
    sentence = next((sentence for part, sentence in _SETUP if part in text), SETTINGS)
    return StorageError(StatusCode.FAILED_PRECONDITION, sentence)


def _code(answer: str) -> str:
    found = _CODE.search(answer)
    return (found[1] or found[2]) if found else ""


def _is_of_credentials(text: str, name: str, status: int, listing: bool) -> bool:
    if _OF_CREDENTIALS.match(text):
        return True
    if listing:
        return not _OF_LISTING.match(text)
    return name == "GenericError" and status in _TYPED


def _without_status(text: str, details: str) -> StorageError:
    if ": Wanted range starting at" in text:
        return StorageError(StatusCode.OUT_OF_RANGE, SHORTER)
    if "redirect without LOCATION" in text:
        return StorageError(StatusCode.FAILED_PRECONDITION, OTHER_REGION)
    if "HTTP error: builder error" in text:
        name = next((name for start, name in _VARIABLES.items() if text.startswith(start)), "AWS")
        return StorageError(
            StatusCode.FAILED_PRECONDITION, f"plain HTTP to the storage is not allowed: set {name}_ALLOW_HTTP=true"
        )
    sentence = NO_ANSWER if "HTTP error" in text else UNREADABLE
    if "InvalidCertificate(" in details:
        sentence = CERTIFICATE
    elif '"dns error"' in details:
        sentence = NO_ADDRESS
    return StorageError(StatusCode.UNAVAILABLE, sentence, is_transient=True)


def _of_answer(status: int, code: str, listing: bool) -> StorageError:
    answer = " ".join(part for part in (str(status or ""), code) if part)
    if status in (401, 403) or code in _REFUSES:
        return StorageError(StatusCode.PERMISSION_DENIED, f"the storage refuses ({answer})")
    if status == 404:
        nothing = "bucket" if listing or code in ("NoSuchBucket", "ContainerNotFound") else "object"
        return StorageError(StatusCode.NOT_FOUND, f"there is no such {nothing}")
    if code in _REGION or status in (301, 307, 308):
        return StorageError(StatusCode.FAILED_PRECONDITION, OTHER_REGION)
    if status == 416:
        return StorageError(StatusCode.OUT_OF_RANGE, SHORTER)
    if code in _AGAIN or status in (408, 409, 425, 429) or (status >= 500 and status != 501):
        return StorageError(StatusCode.UNAVAILABLE, f"the storage answers {answer}", is_transient=True)
    return StorageError(StatusCode.FAILED_PRECONDITION, f"the storage answers {answer}")
