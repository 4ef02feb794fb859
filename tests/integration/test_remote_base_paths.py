"""Models in a bucket: what a server does when the storage works, and on each way in which it may fail."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.remote.moto import Moto
from tests.support.remote.proxy import FaultProxy
from tests.support.remote.served import REMOTE, Publisher, ServedBucket, serving_bucket
from tests.support.servers.in_process import ROW, entry
from tests.support.servers.models import TaggedArchives
from tests.support.servers.probe import Traffic
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.core.servable import ModelRef, VersionState
from tfs_lite.core.status import ServingError

CODE = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"] + 1}
"""


@pytest.fixture(scope="module")
def place(moto: Moto, archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBucket]:
    """A server that every test gives a model of its own."""
    with serving_bucket(moto, archives, tmp_path_factory.mktemp("remote")) as found:
        yield found


def serve_first(place: ServedBucket, model: str) -> None:
    place.publish(model, 1)
    place.serve(model)
    assert place.served.version(model) == 1


def test_version_in_a_bucket_is_served_and_a_newer_one_takes_its_place(place: ServedBucket) -> None:
    serve_first(place, "swapped")
    place.publish("swapped", 2)
    with Traffic(place.served.target, "swapped", threads=2) as traffic:
        place.wait_version("swapped", 2)
    assert (traffic.failures, traffic.wrong) == ([], [])
    wait_until(lambda: place.served.states("swapped").get(1) is VersionState.END, "version 1 is gone", 30)


FAULTS = {
    "a storm of 503": ({"kind": "status", "status": 503, "code": "SlowDown"}, "answers 503 SlowDown"),
    "429": ({"kind": "status", "status": 429, "code": "TooManyRequests"}, "answers 429 TooManyRequests"),
    "resets": ({"kind": "reset"}, "the storage does not answer"),
    "403": ({"kind": "status", "status": 403, "code": "AccessDenied"}, "the storage refuses (403 AccessDenied)"),
    "401": ({"kind": "status", "status": 401, "code": "Unauthorized"}, "the storage refuses (401 Unauthorized)"),
    "an expired token": ({"kind": "status", "status": 400, "code": "ExpiredToken"}, "refuses (400 ExpiredToken)"),
    "no bucket": ({"kind": "status", "status": 404, "code": "NoSuchBucket"}, "there is no such bucket"),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_what_serves_goes_on_through_a_fault_and_the_next_version_comes_after_it(
    place: ServedBucket, fault: str
) -> None:
    (fields, words), model = FAULTS[fault], f"through-{fault.replace(' ', '-')}"
    serve_first(place, model)
    place.proxy.fail(path=model, **fields)
    place.publish(model, 2)
    with Traffic(place.served.target, model, threads=1) as traffic:
        text = place.wait_problem(model, words)
        assert traffic.answers.keys() == {1}
        place.proxy.heal()
        place.wait_version(model, 2)
    assert (traffic.failures, traffic.wrong) == ([], [])
    assert text.startswith(f"model {model}: ")
    assert place.bucket.name not in text
    assert place.served.problem(model) == ""


def test_prefix_that_is_emptied_withdraws_nothing(place: ServedBucket) -> None:
    serve_first(place, "emptied")
    place.remove("emptied")
    assert "holds no version" in place.wait_problem("emptied", "holds no version")
    assert place.served.version("emptied") == 1
    place.publish("emptied", 2)
    place.wait_version("emptied", 2)


def test_body_that_is_cut_again_and_again_is_resumed(place: ServedBucket) -> None:
    serve_first(place, "cut")
    place.proxy.fail("cut", times=3, after=1000, operation="get", path="cut/2/model.pt2")
    place.publish("cut", 2)
    place.wait_version("cut", 2)


def test_version_whose_digest_is_wrong_waits_and_says_so(place: ServedBucket) -> None:
    serve_first(place, "wrong")
    good = place.publish("wrong", 2) / "model.pt2"
    data = good.read_bytes()
    place.bucket.set("wrong/2/model.pt2", bytes(reversed(data)))
    text = place.wait_reason("wrong", 2, "sha256")
    assert text == "model.pt2 does not have the sha256 digest that the manifest lists"
    assert place.served.version("wrong") == 1
    place.bucket.set("wrong/2/model.pt2", data)
    place.wait_version("wrong", 2)


def test_object_that_is_replaced_while_it_is_fetched_is_listed_and_fetched_again(place: ServedBucket) -> None:
    serve_first(place, "replaced")
    slow = place.proxy.fail("stall", times=1, after=100, operation="get", path="replaced/2/model.pt2")
    directory = place.publish("replaced", 2)
    wait_until(lambda: slow.broken, "the fetch has begun", 30)
    place.bucket.set("replaced/2/model.pt2", (directory / "model.pt2").read_bytes() + b"\0")
    shutil.copy(directory / "model.pt2", place.root / "again.pt2")
    source = place.root / "again"
    source.mkdir()
    shutil.copy(directory / "model.pt2", source / "model.pt2")
    (source / "README.md").write_text("another upload of the same number")
    place.upload("replaced", 2, source)
    place.proxy.heal()
    place.wait_version("replaced", 2)


def test_config_that_changes_in_the_bucket_is_followed_in_place(place: ServedBucket) -> None:
    serve_first(place, "configured")

    def instances() -> int:
        core = place.served.server.core
        with core.handle(ModelRef("configured")) as handle:
            settings = core.renewal.settings_of(handle.servable)
        return sum(group.count for group in settings.instance_group)

    assert instances() == 0
    place.bucket.set("configured/config.pbtxt", b"instance_group { count: 2 kind: KIND_CPU }")
    wait_until(lambda: instances() == 2, "there are two instances", 60)
    place.bucket.set("configured/config.pbtxt", b"dynamic_batching { max_queue_delay_microseconds: 100 }")
    wait_until(lambda: instances() == 0, "it was loaded anew with a third config", 60)
    assert place.served.version("configured") == 1
    assert place.proxy.count("get", "configured/1/model.pt2") == 1


def test_base_path_that_moves_between_a_disk_and_a_bucket_keeps_serving(
    place: ServedBucket, archives: TaggedArchives
) -> None:
    archives.write_version(1, place.root / "moved")
    place.serve("moved", "ROOT/moved")
    assert place.served.version("moved") == 1
    place.publish("moved", 1)
    place.publish("moved", 2)
    with Traffic(place.served.target, "moved", threads=2) as traffic:
        place.serve("moved")
        place.wait_version("moved", 2)
        place.serve("moved", "ROOT/moved")
        place.wait_version("moved", 1)
        place.serve("moved", rest="model_version_policy { specific { versions: 1 } }")
        wait_until(lambda: place.proxy.count("get", "moved/1/model.pt2"), "version 1 of the bucket is fetched", 30)
    assert (traffic.failures, traffic.wrong) == ([], [])


def test_bucket_that_hangs_holds_up_no_disk_and_no_other_bucket(
    place: ServedBucket, moto: Moto, archives: TaggedArchives
) -> None:
    serve_first(place, "hanging")
    other = Publisher(moto.make_bucket(), archives, place.root / "other")
    other.publish("elsewhere", 1)
    place.serve("elsewhere", f"{other.bucket.url}/elsewhere")
    archives.write_version(1, place.root / "here")
    place.serve("here", "ROOT/here")
    hang = place.proxy.fail("hang", path=place.bucket.name)
    wait_until(lambda: hang.broken, "a request hangs", 30)
    other.publish("elsewhere", 2)
    archives.write_version(2, place.root / "here")
    place.wait_version("elsewhere", 2)
    place.wait_version("here", 2)
    assert place.served.version("hanging") == 1
    place.proxy.heal()


def test_model_that_leaves_the_config_is_unloaded_and_its_files_lose_their_lease(place: ServedBucket) -> None:
    serve_first(place, "leaving")
    place._entries.pop("leaving")
    place.serve("staying", "ROOT/staying", wait=False)
    wait_until(lambda: place.served.states("leaving") in ({}, {1: VersionState.END}), "it is unloaded", 30)


def test_url_that_cannot_be_is_refused_and_changes_nothing(place: ServedBucket) -> None:
    serve_first(place, "before")
    with pytest.raises(ServingError, match="base_path: the URL has another scheme"):
        place.serve("after", "http://host/after")
    place._entries.pop("after")
    assert place.served.version("before") == 1


def test_clients_see_neither_the_bucket_nor_the_path_in_the_cache(place: ServedBucket) -> None:
    serve_first(place, "hidden")
    place.bucket.set("hidden/2/model.pt2", b"PK no archive")
    place.bucket.set("hidden/3/model.pt2", b"PK no archive")
    place.wait_reason("hidden", 3, "")
    place.proxy.fail("status", path="hidden", status=403, code="AccessDenied")
    place.wait_problem("hidden", "refuses")
    core = place.served.server.core
    told = [
        core.states.report("hidden"),
        place.served.status("hidden"),
        place.served.client.predict("hidden", {"x": ROW}),
    ]
    paths = ("/v1/models/hidden", "/v2/models/hidden", "/v2/models/hidden/ready", "/v1/models/hidden/metadata")
    told.extend(httpx.get(f"{place.served.url}{path}").text for path in paths)
    told.append(httpx.post(f"{place.served.url}/v2/repository/index", json={}).text)
    told.append(httpx.get(f"{place.served.url}/metrics").text)
    place.proxy.heal()
    for text in map(str, told):
        assert place.bucket.name not in text
        assert str(place.root) not in text


# Servers of their own.


def test_code_from_a_bucket_is_trusted_by_its_url_alone(moto: Moto, archives: TaggedArchives, tmp_path: Path) -> None:
    trusted = (f"{tmp_path}/*", "s3://*/trusted*")
    with serving_bucket(moto, archives, tmp_path, trusted_model_base_paths=trusted) as place:
        place.publish_code("other", 1, CODE)
        place.publish_code("trusted", 1, CODE)
        with pytest.raises(ServingError, match="trusted_model_base_paths") as refused:
            place.serve("other")
        place.serve("trusted")
        assert place.served.predict("trusted").version == 1
        assert str(tmp_path) not in str(refused.value)
        assert place.bucket.name not in str(refused.value)


def test_reload_of_the_same_config_looks_at_the_bucket_at_once(
    moto: Moto, archives: TaggedArchives, tmp_path: Path
) -> None:
    with serving_bucket(moto, archives, tmp_path, remote_poll_wait_seconds=600) as place:
        place.publish("m", 1)
        place.serve("m")
        wait_until(lambda: place.served.states("m") == {1: VersionState.AVAILABLE}, "version 1 serves", 30)
        place.publish("m", 2)
        place.serve("m")
        place.wait_version("m", 2)


def test_server_is_not_ready_while_its_first_version_is_fetched(
    moto: Moto, archives: TaggedArchives, tmp_path: Path
) -> None:
    bucket = moto.make_bucket()
    model = entry("m", path=f"{bucket.url}/m")
    Publisher(bucket, archives, tmp_path / "publisher").publish("m", 1)
    with FaultProxy(moto.port) as proxy:
        proxy.fail("stall", after=100, operation="get", path="m/1/model.pt2")
        with starting(server_process(moto, tmp_path, proxy, model)) as server:
            server.wait_status("/livez", 200)
            wait_until(lambda: b"fetching" in server.get("/v1/models/m")[1], "it says that it fetches", 60)
            assert server.get("/readyz")[0] == 503
            proxy.heal()
            server.wait_ready()


@contextlib.contextmanager
def starting(server: ServerProcess) -> Iterator[ServerProcess]:
    """The server is started, and need not become ready."""
    server.start()
    try:
        yield server
    finally:
        server.stop()


def server_process(moto: Moto, root: Path, proxy: FaultProxy, *entries: str, **flags: object) -> ServerProcess:
    """A server of its own process with the default flags and a fast poll."""
    file = root / "models.config"
    file.write_text("model_config_list { %s }" % " ".join(entries))  # noqa: UP031 - braces
    given = {**REMOTE, "model_config_file": file, "model_cache_dir": root / "cache", **flags}
    return ServerProcess(*(f"--{name}={value}" for name, value in given.items()), env=moto.environment(proxy.port))


def test_server_starts_again_without_its_storage_and_takes_new_versions_when_it_is_back(
    moto: Moto, archives: TaggedArchives, tmp_path: Path
) -> None:
    bucket = moto.make_bucket()
    publisher = Publisher(bucket, archives, tmp_path / "publisher")
    publisher.publish("m", 1)
    model = entry("m", path=f"{bucket.url}/m")
    with FaultProxy(moto.port) as proxy:
        with server_process(moto, tmp_path, proxy, model) as server:
            server.wait_ready()
        assert server.exit_code == 0
        proxy.fail("reset")
        publisher.publish("m", 2)
        with server_process(moto, tmp_path, proxy, model) as server:
            server.wait_ready()
            assert b'"state": "AVAILABLE"' in server.get("/v1/models/m/versions/1")[1]
            proxy.heal()
            wait_until(lambda: b'"AVAILABLE"' in server.get("/v1/models/m/versions/2")[1], "version 2 serves", 60)
        assert server.exit_code == 0


def test_server_stops_at_once_while_its_storage_hangs(moto: Moto, archives: TaggedArchives, tmp_path: Path) -> None:
    bucket = moto.make_bucket()
    with FaultProxy(moto.port) as proxy:
        hang = proxy.fail("hang")
        with starting(server_process(moto, tmp_path, proxy, entry("m", path=f"{bucket.url}/m"))) as server:
            server.wait_status("/livez", 200)
            wait_until(lambda: hang.broken, "a request hangs", 60)
            server.terminate()
            assert server.wait(8) == 0, server.log()


def test_server_with_nothing_cached_stays_up_while_its_storage_refuses(
    moto: Moto, archives: TaggedArchives, tmp_path: Path
) -> None:
    bucket = moto.make_bucket()
    with FaultProxy(moto.port) as proxy:
        proxy.fail("status", status=403, code="AccessDenied")
        Publisher(bucket, archives, tmp_path / "publisher").publish("m", 1)
        with starting(server_process(moto, tmp_path, proxy, entry("m", path=f"{bucket.url}/m"))) as server:
            server.wait_status("/livez", 200)
            wait_until(lambda: proxy.count("list"), "the bucket was asked", 60)
            proxy.heal()
            wait_until(lambda: b'"AVAILABLE"' in server.get("/v1/models/m")[1], "version 1 serves", 60)


def test_process_of_a_model_that_dies_while_the_storage_is_down_comes_back_from_the_cache(
    moto: Moto, archives: TaggedArchives, tmp_path: Path
) -> None:
    options = {"worker": "process", "trusted_model_base_paths": ("s3://*/*",)}
    source = f"import os\n{CODE}".replace("+ 1}", "* 0 + os.getpid() % 1000003}")
    with serving_bucket(moto, archives, tmp_path, **options) as place:
        place.publish_code("m", 1, source)
        place.serve("m")
        place.proxy.fail("reset")
        pid = int(place.served.predict("m").outputs["y"][0][0])
        os.kill(pid, signal.SIGKILL)

        def comes_back() -> bool:
            try:
                return int(place.served.predict("m").outputs["y"][0][0]) != pid
            except ServingError:
                return False

        wait_until(comes_back, "another process answers", 60)


def test_server_without_a_url_imports_neither_obstore_nor_tenacity(archives: TaggedArchives, tmp_path: Path) -> None:
    archives.write_version(1, tmp_path / "m")
    program = f"""
import sys
from tfs_lite import Server

with Server(model_name="m", model_base_path={str(tmp_path / "m")!r}, version_quiet_period_seconds=0.0) as server:
    server.wait_ready(60)
print(sorted({{"obstore", "tenacity"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model_base_path=http://host/m"], "the URL has another scheme than s3://"),
        (["--model_base_path=s3://bucket/m", "--model_control_mode=explicit"], "directories of this machine only"),
        (["--model_repository=s3://bucket"], "a repository is a directory of this machine"),
    ],
)
def test_command_line_refuses_urls_with_a_sentence(flags: list[str], words: str) -> None:
    with starting(ServerProcess(*flags)) as server:
        assert server.wait() != 0
        assert words in server.log()


def test_url_on_the_command_line_reaches_the_storage(moto: Moto, archives: TaggedArchives, tmp_path: Path) -> None:
    bucket = moto.make_bucket()
    Publisher(bucket, archives, tmp_path).publish("m", 1)
    flags = (f"--model_base_path={bucket.url}/m/", "--model_name=m", f"--model_cache_dir={tmp_path}/cache")
    with ServerProcess(*flags, env=moto.environment(), directory=tmp_path) as server:
        server.wait_ready()
        assert b'"AVAILABLE"' in server.get("/v1/models/m")[1]
        assert server.log().count(str(tmp_path / "cache")) == 0
    assert server.exit_code == 0
