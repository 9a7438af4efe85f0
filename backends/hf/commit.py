"""Makes one commit of all files that are written to a repository of the Hub; makes the repository if it is not there.

Guarantees: readers see nothing before the commit, which the Hub makes only if the branch is still at the commit that
was looked at. After an answer that is lost, the branch shows whether the commit was made; if it cannot be asked, the
error says so. After the commit, its listing must have all files with the sizes and hashes that were sent.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Mapping
from json import JSONDecodeError
from time import sleep
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from streamer.backends.client.answer_values import FOREIGN
from streamer.backends.hf.cache import is_offline
from streamer.backends.hf.client import NOT_OF_THE_HUB, HubClient, of_the_hub, refusal, refuse_ignored
from streamer.backends.hf.paths import COMMIT, DEFAULT_REVISION, HfPath
from streamer.core.causes import with_causes
from streamer.core.errors import (
    ChangedError,
    ConnectError,
    CredentialsError,
    ObjectNotFoundError,
    StorageError,
    StreamerError,
    UsageError,
)
from streamer.core.quoting import printable, quoted
from streamer.core.secrets.redact import redact
from streamer.core.store.own_objects import FEW_LOOKS, PAUSES_S
from streamer.core.store.part_sender import SenderClosedError

# The rules of a `.gitignore` are for `git add`: here, each file that was named is committed.
NOT_IGNORED = "# nothing is left out\n"
SHOWN_CHARACTERS = 300  # of the Hub's reason for a refusal
_COMMITTED = "somebody else has committed to the branch meanwhile"
_AGAIN = "Nothing was committed. Look at what is there now, and save again"


def is_absent(hub: HubClient, place: HfPath, options: Mapping[str, Any], look: Callable[[], str]) -> bool:
    """Check that a place can be written; say whether the repository is still to be made. `look` finds the commit."""
    uri = redact(f"hf://{place.root}")
    if is_offline():
        raise UsageError("HF_HUB_OFFLINE=1 forbids requests to the Hub", uri=uri, hint="Unset it")
    if COMMIT.fullmatch(place.revision):
        raise UsageError("a commit stays as it is", uri=uri, hint="Name a branch: hf://owner/name@branch")
    refuse_ignored(options)
    if hub.token is None:
        hint = "Set HF_TOKEN, or storage_options={'token': …}, or run `hf auth login`"
        raise CredentialsError("Writing to the Hub needs a token", uri=uri, hint=hint)
    try:
        look()
    except ObjectNotFoundError as error:
        is_missing = error.code == "RepoNotFound"
        if is_missing and place.kind != "space" and place.revision == DEFAULT_REVISION:
            return True
        if is_missing or error.code == "RevisionNotFound":
            error.hint = "Make it first, with `hf repos create` and `hf repos branch create`, and check the names"
            if place.path and not is_missing:
                error.hint += ". A slash in the name of a branch is written %2F: hf://owner/name@feature%2Fone/folder"
        raise
    if place.revision != DEFAULT_REVISION and not place.revision.startswith("refs/"):
        _check_branch(hub, place, uri)
    return False


def _check_branch(hub: HubClient, place: HfPath, uri: str) -> None:
    """Refuse a tag, which names one commit for ever."""
    try:
        refs = HfApi(endpoint=hub.endpoint, token=hub.token).list_repo_refs(place.repository, repo_type=place.kind)
    except Exception as error:
        raise _failure(error, uri) from None
    if place.revision not in {each.name for each in refs.branches}:
        raise UsageError(f"{quoted(place.revision)} is no branch", uri=uri, hint="Name a branch: a tag stays as it is")


def make_repository(hub: HubClient, place: HfPath, *, is_private: bool) -> None:
    """Make an empty repository."""
    try:
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        api.create_repo(place.repository, repo_type=place.kind, private=is_private, exist_ok=True)
    except Exception as error:
        raise _failure(error, redact(f"hf://{place.prefix}")) from None


class HubCommit:
    """Files to add and to remove, for one commit."""

    def __init__(self, hub: HubClient, place: HfPath, parent: str, uri: str) -> None:
        self._hub, self._place, self._parent, self._uri = hub, place, parent, uri
        self._api = HfApi(endpoint=hub.endpoint, token=hub.token or False)  # False: no other login
        self._where: dict[str, Any] = {"repo_type": place.kind, "revision": place.revision}
        self._guard = threading.Lock()
        self._added: dict[str, Any] = {}  # by path
        self._blobs: dict[str, str] = {}  # Git's own hashes of files that are held in memory
        self._removed: set[str] = set()
        self._is_tried = False
        self.is_unknown = False  # whether it is made

    def send(self, path: str, file: io.BufferedIOBase, uri: str) -> Any:
        """Send the bytes of a file; return the operation that adds it."""
        try:
            addition = CommitOperationAdd(path, file)  # type: ignore[arg-type]  # it takes every buffered file
            how = {**self._where, "num_threads": 1, "gitignore_content": NOT_IGNORED}
            self._api.preupload_lfs_files(self._place.repository, [addition], **how)
        except Exception as error:
            raise _failure(error, uri) from None
        return addition

    def add(self, path: str, addition: Any, blob: str | None) -> None:
        """Add a file whose bytes were sent."""
        with self._guard:
            self._added[path] = addition
            if blob is not None:
                self._blobs[path] = blob

    def leave_out(self, path: str) -> None:
        """Add a file no more."""
        with self._guard:
            self._added.pop(path, None)

    def remove(self, path: str) -> None:
        """Remove a file, unless it is added."""
        with self._guard:
            self._removed.add(path)

    def make(self) -> str:
        """Make the commit, if there is anything to commit; return the commit that the branch is at then."""
        removed = sorted(self._removed - self._added.keys())
        operations = [*self._added.values(), *(CommitOperationDelete(each, is_folder=False) for each in removed)]
        if not operations:
            return self._parent
        message = f"Add {len(self._added)} and remove {len(removed)} files with streamer"
        try:
            if self._is_tried and (commit := self._made()):
                return commit
            self._is_tried = True
            how: dict[str, Any] = {**self._where, "parent_commit": self._parent, "commit_message": message}
            commit = str(self._api.create_commit(self._place.repository, operations, **how).oid)
        except Exception as error:
            failure = _failure(error, self._uri)
            if failure.status is not None and failure.status < 500 and failure.status not in (408, 409, 412):
                raise failure from None
            return self._made_after(failure)
        if faults := self._faults(commit):
            what = f"the Hub made commit {commit[:12]}, which differs from what was sent: {', '.join(faults)}"
            raise StorageError(what, uri=self._uri, hint="Look at it on the repository's page, and save again")
        return commit

    def _made_after(self, failure: StorageError) -> str:
        """Ask the branch whether the commit was made although there was no answer, or one that says it failed."""
        self.is_unknown = True
        try:
            for pause_s in PAUSES_S[:FEW_LOOKS] if failure.status is None else PAUSES_S[:1]:
                if commit := self._made():
                    self.is_unknown = False
                    return commit
                sleep(pause_s)
        except ChangedError:
            self.is_unknown = False
            raise
        except StorageError as error:
            failure.hint = "The Hub does not say whether it has made the commit: look at the repository's page"
            raise failure from error
        self.is_unknown = False
        raise failure

    def _made(self) -> str | None:
        """Return the commit of the branch if it has all that was sent; None if nobody has committed."""
        commit = self._hub.commit(self._uri)
        if commit == self._parent:
            return None
        if self._faults(commit):
            raise ChangedError(_COMMITTED, uri=self._uri, hint=_AGAIN)
        return commit

    def _faults(self, commit: str) -> list[str]:
        """Return how a commit differs from what was sent: a few names, with what is wrong."""
        paths = [*self._added, *self._removed]
        folders = dict.fromkeys(path.rpartition("/")[0] for path in paths)
        there = {
            f"{folder}/{file.name}".lstrip("/"): file
            for folder in folders
            for file in self._hub.files(commit, folder, self._uri)
        }
        wrong = [f"{quoted(path)} is there" for path in sorted(self._removed - self._added.keys()) if path in there]
        for path, addition in self._added.items():
            file, sent = there.get(path), addition.upload_info
            if file is None:
                wrong.append(f"{quoted(path)} is missing")
                continue
            is_sent = file.hash in (None, self._blobs.get(path, file.hash))
            is_sent = is_sent if file.sha256 is None else file.sha256 == sent.sha256.hex()
            if file.size_bytes != sent.size or not is_sent:
                wrong.append(f"{quoted(path)} is another file")
        return wrong[:3]


def _failure(error: BaseException, uri: str) -> StorageError:
    """Make an error of what huggingface_hub raised: its own texts may have signed URLs."""
    cause = error
    for each in with_causes(error):
        if isinstance(each, StreamerError):
            each.uri = each.uri or uri
        if isinstance(each, (StreamerError, SenderClosedError)):
            raise each
        response = getattr(each, "response", None)
        if response is not None and getattr(response, "status_code", None):
            return _refused(response, uri)
        cause = cause.__cause__ or cause
    text = printable(redact(str(error)))[:SHOWN_CHARACTERS]
    if isinstance(error, JSONDecodeError):  # an answer with the status of success
        return StorageError(NOT_OF_THE_HUB, uri=uri, hint=f"{FOREIGN}: check the endpoint")
    if isinstance(error, ValueError):  # a refusal of the Hub for single files, or of huggingface_hub itself
        hint = "Nothing was committed. Change what its message names, and save again"
        return StorageError(f"huggingface_hub refuses the upload: {text}", uri=uri, hint=hint)
    if isinstance(error, OSError) and error.filename is not None:
        hint = "Mend that file or folder of this machine, and save again"
        return StorageError(f"{error.strerror}: {quoted(os.fsdecode(error.filename))}", uri=uri, hint=hint)
    what = f"the connection failed during the upload ({type(cause).__name__})"
    return ConnectError(what, uri=uri, hint="Check the network; files that were sent are not sent again")


def _refused(response: Any, uri: str) -> StorageError:
    """Make an error of an answer of the Hub, or of the store behind it, to a request that writes."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    error = of_the_hub(refusal(response.status_code, headers, b"", uri, has_token=True))
    reason = printable(redact(headers.get("x-error-message", "")))[:SHOWN_CHARACTERS]
    if response.status_code == 412:
        return ChangedError(_COMMITTED, uri=uri, hint=_AGAIN, status=412)
    if response.status_code == 403 and "x-error-code" not in headers:
        error.hint = "Give a token that may write to this repository (HF_TOKEN, or storage_options={'token': …})"
    if reason and response.status_code in (400, 403, 409, 413, 422):  # a limit, or a rule, which only the text names
        error.message = f"{error.message}: {reason}"
    return error
