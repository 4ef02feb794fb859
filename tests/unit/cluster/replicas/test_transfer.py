"""Files of a version on their way to a replica: over real connections, and with every lie that one may tell."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tfs_lite.cluster.replicas import transfer
from tfs_lite.cluster.replicas.connection import Credentials, dial_frames
from tfs_lite.cluster.replicas.generation import has_digest
from tfs_lite.cluster.replicas.transfer import FILE, FILES, FILES_END, FilesReceiver, OfferedFiles, deliver
from tfs_lite.core.publish import publish
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.storage.files_cache import FilesCache
from tfs_lite.workers.channel import ConnectionClosed, ProtocolError
from tfs_lite.workers.request_channel import RequestChannel

if TYPE_CHECKING:
    from tests.support.servers.replicas import HostedReplica

CONTENTS = {
    "a b/ü.bin": bytes(range(256)),
    "data/empty": b"",
    "data/words.txt": b"words",
    "model.pt2": b"weights" * 1000,
}
"""By number, as they are announced."""


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """On the server."""
    made = tmp_path / "m" / "3"
    for name, content in CONTENTS.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The cache of the node."""
    return tmp_path / "cache"


def contents(directory: str | Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()
    }


def versions(root: Path) -> list[str]:
    """What is in the cache, whole or not."""
    return (
        sorted(entry.name for entry in root.iterdir() if entry.name not in ("bases", "locks")) if root.exists() else []
    )


# Over connections.


@pytest.fixture
def connect() -> Iterator[Callable[[HostedReplica], RequestChannel]]:
    from tests.support.servers.replicas import SECRET

    made: list[RequestChannel] = []

    def connect_one(replica: HostedReplica) -> RequestChannel:
        made.append(RequestChannel(dial_frames(replica.address, Credentials(SECRET))))
        return made[-1]

    yield connect_one
    for channel in made:
        channel.close()


def test_replica_gets_the_files_and_the_next_one_of_its_node_finds_them(
    version: Path, root: Path, start: Callable[..., Any], connect: Callable[..., RequestChannel]
) -> None:
    files = OfferedFiles.of(str(version), sends=True)
    first = deliver(connect(start(cache_dir=str(root))), files)
    assert first == str(root / files.digest / "3")
    assert contents(first) == CONTENTS
    written = os.stat(os.path.join(first, "model.pt2")).st_mtime_ns
    assert deliver(connect(start(cache_dir=str(root))), files) == first
    assert os.stat(os.path.join(first, "model.pt2")).st_mtime_ns == written


def test_large_files_come_in_pieces(
    version: Path,
    root: Path,
    start: Callable[..., Any],
    connect: Callable[..., RequestChannel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer, "CHUNK", 1000)
    directory = deliver(connect(start(cache_dir=str(root))), OfferedFiles.of(str(version), sends=True))
    assert contents(directory) == CONTENTS


def test_published_version_keeps_its_manifest_and_its_digest(
    version: Path, tmp_path: Path, root: Path, start: Callable[..., Any], connect: Callable[..., RequestChannel]
) -> None:
    published = publish(str(version), str(tmp_path / "published"), 3).path
    files = OfferedFiles.of(published, sends=True)
    assert contents(deliver(connect(start(cache_dir=str(root))), files)) == contents(published)


def test_on_a_shared_path_nothing_is_sent_and_other_files_are_refused(
    version: Path, tmp_path: Path, start: Callable[..., Any], connect: Callable[..., RequestChannel]
) -> None:
    files = OfferedFiles.of(str(version), sends=False)
    assert deliver(connect(start()), files) == str(version)
    replica = start(facts={"host": "gpu-b"})
    (version / "data" / "words.txt").write_bytes(b"other")
    with pytest.raises(ServingError, match="node gpu-b has other files") as caught:
        deliver(connect(replica), files)
    assert caught.value.code is StatusCode.FAILED_PRECONDITION
    shutil.rmtree(version)
    with pytest.raises(ServingError, match="node gpu-b does not have its files; is their path shared") as caught:
        deliver(connect(replica), files)
    assert caught.value.code is StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("sends", [False, True])
def test_replica_that_has_looked_goes_on_with_what_it_has(
    version: Path, root: Path, start: Callable[..., Any], connect: Callable[..., RequestChannel], sends: bool
) -> None:
    replica, files = start(cache_dir=str(root)), OfferedFiles.of(str(version), sends)
    directory = deliver(connect(replica), files)
    (version / "model.pt2").write_bytes(b"other")  # in place, while the version is served
    assert deliver(connect(replica), files) == directory


def test_replica_without_room_says_so_and_goes_on(
    version: Path, root: Path, start: Callable[..., Any], connect: Callable[..., RequestChannel]
) -> None:
    channel = connect(start(cache_dir=str(root), cache_bytes=1000))
    with pytest.raises(ServingError) as caught:
        deliver(channel, OfferedFiles.of(str(version), sends=True))
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    assert versions(root) == []
    channel.ask("describe")


def test_server_that_goes_in_the_middle_leaves_nothing(
    version: Path, root: Path, start: Callable[..., Any], connect: Callable[..., RequestChannel]
) -> None:
    replica, files = start(cache_dir=str(root)), OfferedFiles.of(str(version), sends=True)
    first = connect(replica)
    assert first.ask(FILES, [files.digest, files.directory, [["model.pt2", 7000]]]) is None
    first.ask(FILE, [0, 0, b"wei"])
    assert versions(root) == [f"{files.digest}.partial"]
    first.close()
    assert contents(deliver(connect(replica), files)) == CONTENTS  # waits until the first one has given up


def test_replica_that_dies_in_the_middle_leaves_the_files_to_the_next_one(
    version: Path, root: Path, start: Callable[..., Any], connect: Callable[..., RequestChannel]
) -> None:
    replica, files = start(cache_dir=str(root)), OfferedFiles.of(str(version), sends=True)
    first = connect(replica)
    first.ask(FILES, [files.digest, files.directory, [["model.pt2", 7000]]])
    first.ask(FILE, [0, 0, b"wei"])
    replica.signal(signal.SIGKILL)
    replica.wait()
    with pytest.raises(ConnectionClosed):
        first.ask(FILE, [0, 3, b"ghts"])
    assert contents(deliver(connect(start(cache_dir=str(root))), files)) == CONTENTS


def test_file_that_changes_while_it_is_sent_fails_the_transfer(
    version: Path, root: Path, start: Callable[..., Any], connect: Callable[..., RequestChannel]
) -> None:
    replica = start(cache_dir=str(root))
    files = OfferedFiles.of(str(version), sends=True)
    (version / "data" / "words.txt").write_bytes(b"other")
    with pytest.raises(ServingError, match="other files"):
        deliver(connect(replica), files)
    assert versions(root) == []


class Answers:
    """A replica that answers what it likes."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def ask(self, what: str, extra: object = None) -> object:
        self.asked.append(what)
        return self._answers.pop(0)


@pytest.mark.parametrize("answer", [None, 7, ["/"], b"/"])
def test_replica_that_names_no_directory_is_not_understood(version: Path, answer: object) -> None:
    channel: Any = Answers(answer, *[None] * 10)
    with pytest.raises(ProtocolError):
        deliver(channel, OfferedFiles.of(str(version), sends=False))
    assert channel.asked == [FILES]


@pytest.mark.parametrize("change", ["longer", "shorter"])
def test_server_notices_that_a_file_has_changed_while_it_reads_it(version: Path, change: str) -> None:
    class Changing(Answers):
        def ask(self, what: str, extra: object = None) -> object:
            if what == FILE and len(self.asked) == 1:
                (version / "model.pt2").write_bytes(b"w" * (7001 if change == "longer" else 6999))
            return super().ask(what, extra)

    channel: Any = Changing(*[None] * 20)
    with pytest.raises(ServingError, match="was changed while it was sent"):
        deliver(channel, OfferedFiles.of(str(version), sends=True))


# Lies.


class Node:
    """A replica's receiver, as a connection uses it."""

    def __init__(self, root: Path, version: Path) -> None:
        self.root, self.version = root, version
        self.digest = OfferedFiles.of(str(version), sends=True).digest
        self.receiver = FilesReceiver(FilesCache(str(root), 1 << 20, has_digest), {}, "gpu-b")

    def offer(self, listed: Any = None, digest: str | None = None, directory: str | None = None) -> str | None:
        """Those of the version, unless others are given."""
        listed = [[name, len(content)] for name, content in CONTENTS.items()] if listed is None else listed
        directory = str(self.version) if directory is None else directory
        return self.receiver.answer(FILES, [digest or self.digest, directory, listed])

    def send(self, changed: dict[str, bytes] | None = None) -> list[str]:
        """All files, some of them with other contents; returns their digests."""
        digests = []
        for number, content in enumerate((CONTENTS | (changed or {})).values()):
            if content:
                self.receiver.answer(FILE, [number, 0, content])
            digests.append(hashlib.sha256(content).hexdigest())
        return digests

    def refuses(self, what: str, extra: object, code: StatusCode = StatusCode.INVALID_ARGUMENT) -> str:
        """The message of the refusal, after which nothing of the transfer is left."""
        with pytest.raises(ServingError) as caught:
            self.receiver.answer(what, extra)
        assert caught.value.code is code
        assert versions(self.root) == []
        return str(caught.value)


@pytest.fixture
def node(root: Path, version: Path) -> Iterator[Node]:
    made = Node(root, version)
    with closing(made.receiver):
        yield made


def test_whole_files_are_kept(node: Node) -> None:
    assert node.offer() is None
    directory = node.receiver.answer(FILES_END, node.send())
    assert directory is not None
    assert contents(directory) == CONTENTS


@pytest.mark.parametrize(
    "name",
    [
        *("../model.pt2", "data/../../model.pt2", "/etc/passwd", "data//x", "./x", "data/.", "..", ".", ""),
        *("data/", "/", "a\0b", "x" * 256, "x/" * 2100 + "x", "\ud800x" * 200, "data/../x"),
    ],
)
def test_path_that_leaves_the_version_or_is_none_is_refused(node: Node, name: str) -> None:
    listed = [["model.pt2", 7], [name, 7]]
    node.refuses(FILES, [node.digest, str(node.version), listed])
    assert not (node.root / node.digest).exists()


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b/c", "a/b"), ("a/b", "a")])
def test_file_that_comes_twice_or_is_a_directory_too_is_refused(node: Node, names: tuple[str, str]) -> None:
    node.refuses(FILES, [node.digest, str(node.version), [[name, 1] for name in names]])


@pytest.mark.parametrize("directory", ["/models/m/..", "/models/m/.", "", "/", "m/\0", "/models/" + "3" * 300])
def test_directory_whose_name_is_none_is_refused(node: Node, directory: str) -> None:
    node.refuses(FILES, [node.digest, directory, [["model.pt2", 7]]])


@pytest.mark.parametrize(
    ("what", "extra"),
    [
        (FILES, None),
        (FILES, []),
        (FILES, ["0" * 32, "/m/3"]),
        (FILES, ["0" * 31, "/m/3", []]),
        (FILES, ["../" + "0" * 29, "/m/3", []]),
        (FILES, ["A" * 32, "/m/3", []]),
        (FILES, [7, "/m/3", []]),
        (FILES, ["0" * 32, 3, []]),
        (FILES, ["0" * 32, "/m/3", {}]),
        (FILES, ["0" * 32, "/m/3", ["a"]]),
        (FILES, ["0" * 32, "/m/3", [["a"]]]),
        (FILES, ["0" * 32, "/m/3", [["a", -1]]]),
        (FILES, ["0" * 32, "/m/3", [["a", 1.5]]]),
        (FILES, ["0" * 32, "/m/3", [["a", True]]]),
        (FILES, ["0" * 32, "/m/3", [[b"a", 1]]]),
        (FILE, None),
        (FILE, [0, 0]),
        (FILE, [0, 0, "text"]),
        (FILE, [0, 0, b""]),
        (FILE, [-1, 0, b"x"]),
        (FILE, [0, -1, b"x"]),
        (FILE, [4, 0, b"x"]),
        (FILE, [True, 0, b"x"]),
        (FILES_END, None),
        (FILES_END, "x"),
        (FILES_END, [7]),
        (FILES_END, []),
    ],
)
def test_message_that_is_none_ends_the_connection(node: Node, what: str, extra: object) -> None:
    node.offer()
    with pytest.raises(ProtocolError):
        node.receiver.answer(what, extra)
    assert versions(node.root) == []


@pytest.mark.parametrize("what", [FILE, FILES_END])
def test_files_that_were_not_announced_are_not_understood(node: Node, what: str) -> None:
    with pytest.raises(ProtocolError):
        node.receiver.answer(what, [0, 0, b"x"] if what == FILE else [])


def test_list_of_too_many_files_is_not_understood(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MAX_FILES", 3)
    with pytest.raises(ProtocolError):
        node.offer()


def test_more_than_was_announced_is_refused(node: Node) -> None:
    node.offer()
    assert "larger than was announced" in node.refuses(FILE, [1, 0, b"x"])  # data/empty


@pytest.mark.parametrize("offset", [1, 6999])
def test_piece_that_does_not_follow_is_refused(node: Node, offset: int) -> None:
    node.offer()
    assert "do not come in order" in node.refuses(FILE, [3, offset, b"x"])


def test_piece_that_comes_twice_is_refused(node: Node) -> None:
    node.offer()
    node.receiver.answer(FILE, [3, 0, b"weights"])
    assert "do not come in order" in node.refuses(FILE, [3, 0, b"weights"])


def test_half_files_are_refused(node: Node) -> None:
    node.offer()
    node.receiver.answer(FILE, [0, 0, CONTENTS["a b/ü.bin"]])
    digests = [hashlib.sha256(content).hexdigest() for content in CONTENTS.values()]
    assert "is not whole" in node.refuses(FILES_END, digests)


def test_wrong_digest_of_a_file_is_refused(node: Node) -> None:
    node.offer()
    digests = node.send()
    digests[3] = hashlib.sha256(b"other").hexdigest()
    assert "another digest" in node.refuses(FILES_END, digests, StatusCode.FAILED_PRECONDITION)


def test_other_files_than_were_promised_are_refused(node: Node) -> None:
    node.offer()
    digests = node.send({"data/words.txt": b"WORDS"})
    assert "other files" in node.refuses(FILES_END, digests, StatusCode.FAILED_PRECONDITION)


def test_other_files_under_a_digest_that_is_another_versions_are_refused(node: Node) -> None:
    node.offer(digest="0" * 32)
    assert "other files" in node.refuses(FILES_END, node.send(), StatusCode.FAILED_PRECONDITION)


def test_contents_that_the_manifest_does_not_list_are_refused(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.pt2").write_bytes(b"weights")
    published = Path(publish(str(source), str(tmp_path / "published"), 3).path)
    (published / "model.pt2").write_bytes(b"WEIGHTS")  # as large as before, and the manifest stands for it
    node = Node(root, published)
    found = sorted(contents(published).items())
    node.offer([[name, len(content)] for name, content in found])
    for number, (_, content) in enumerate(found):
        node.receiver.answer(FILE, [number, 0, content])
    digests = [hashlib.sha256(content).hexdigest() for _, content in found]
    assert "not what its manifest says" in node.refuses(FILES_END, digests, StatusCode.FAILED_PRECONDITION)


def test_disk_that_refuses_is_told_with_the_nodes_name(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.offer()

    def full(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ServingError) as caught:
        node.receiver.answer(FILE, [3, 0, b"weights"])
    monkeypatch.undo()
    assert (caught.value.code, str(caught.value)) == (
        StatusCode.RESOURCE_EXHAUSTED,
        "node gpu-b: No space left on device",
    )
    assert versions(node.root) == []


def test_transfer_that_begins_anew_gives_up_the_one_before(node: Node) -> None:
    node.offer(digest="0" * 32)
    assert node.offer() is None
    directory = node.receiver.answer(FILES_END, node.send())
    assert directory is not None
    assert versions(node.root) == [node.digest]


def test_disk_that_fails_at_the_very_end_leaves_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.offer()
    digests = node.send()

    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    assert "gpu-b: Input/output error" in node.refuses(FILES_END, digests, StatusCode.FAILED_PRECONDITION)
    monkeypatch.undo()
    assert node.offer() is None  # nothing is locked
