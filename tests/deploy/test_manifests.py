"""The manifests are valid, agree with one another, and say nothing that the server does not do."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import jsonschema
import kubernetes_validate
import pytest
import yaml
from deploy_files import (
    COMPOSE,
    KUBERNETES,
    ROOT,
    Launch,
    compose_server,
    dockerfile,
    documents,
    launches,
    manifest,
    manifests,
)

from tests.support.servers.in_process import ROW, TIMEOUT
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until
from tfs_lite import __version__
from tfs_lite.cli.flag_parser import FlagValues, parse_flags
from tfs_lite.cli.flags import FLAGS
from tfs_lite.cli.main import COMMANDS
from tfs_lite.cli.output import UsageError
from tfs_lite.cli.serve import server_options
from tfs_lite.client import Client
from tfs_lite.core.publish import publish
from tfs_lite.server.server import Server

OF_OTHERS = ("ClusterServingRuntime",)
KUBERNETES_VERSIONS = ("1.25", "1.29", "1.37")
LAUNCHES = dict(launches())
UNLOAD_SECONDS = 10
"""That a stop has after its delay and its drain."""
PAGE = (ROOT / "docs" / "deploy.md").read_text()
OF_A_CLUSTER = ("--worker=ray", "--cluster", "--replica_port_range")
"""Flags of a server that has a cluster, which is not here."""
LABELS = {"app.kubernetes.io/name": "tfs-lite"}


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_kubernetes_takes_every_manifest(version: str) -> None:
    for document in manifests():
        if document["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_field_would_be_noticed() -> None:
    wrong = manifest("Deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(wrong, KUBERNETES_VERSIONS[-1], strict=True)


def test_kserve_takes_its_runtime() -> None:
    """Its containers are Kubernetes' own; the fields around them are in a schema beside the tests."""
    runtime = manifest("ClusterServingRuntime")
    jsonschema.validate(runtime, yaml.safe_load((Path(__file__).parent / "serving_runtime.schema.yaml").read_text()))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    pod |= {"spec": {"containers": runtime["spec"]["containers"]}}
    kubernetes_validate.validate(pod, KUBERNETES_VERSIONS[-1], strict=True)


def test_compose_takes_its_file() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_kustomization_names_every_file_but_kserves() -> None:
    (found,) = documents(KUBERNETES / "kustomization.yaml")
    here = {path.name for path in KUBERNETES.iterdir()} - {"kustomization.yaml", "kserve.yaml"}
    assert {*found["resources"], *found["configMapGenerator"][0]["files"]} == here
    assert found["images"] == [{"name": "tfs-lite", "newTag": __version__}]


def test_every_image_is_of_this_version() -> None:
    kserve = manifest("ClusterServingRuntime")["spec"]["containers"][0]
    assert kserve["image"] == compose_server()["image"] == f"tfs-lite:{__version__}"


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_the_server_takes_the_arguments(launch: Launch) -> None:
    settings = parsed(launch)
    server_options(settings)
    for name, port in launch.ports.items():
        assert port == settings["port" if name == "grpc" else "rest_api_port"]


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_a_stop_ends_before_it_is_cut_off(launch: Launch) -> None:
    settings = parsed(launch)
    needed = settings["shutdown_delay_seconds"] + settings["drain_timeout_seconds"] + UNLOAD_SECONDS
    assert needed <= launch.grace_seconds


def test_endpoints_hear_of_a_stop_before_the_server_refuses() -> None:
    """Readiness is asked often enough for two failures within the delay."""
    probe = manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]
    seconds = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert seconds < parsed(LAUNCHES["kubernetes"])["shutdown_delay_seconds"]


class Served:
    """A server with the arguments of one file; its paths and ports are those of the test, and its models are in it."""

    def __init__(self, launch: Launch, root: Path) -> None:
        config = (KUBERNETES / "models.config").read_text().replace('"/models/', f'"{root}/models/')
        (root / "models.config").write_text(config)
        paths = {
            launch.models: f"{root}/models/ranker" if launch.models == "/mnt/models" else f"{root}/models",
            "/config/models.config": f"{root}/models.config",
        }
        said = [word for word in launch.arguments if not word.startswith(OF_A_CLUSTER)]
        words = [_replaced(word.replace("{{.Name}}", "ranker"), paths) for word in said]
        options = server_options(parse_flags([*words, "--host=127.0.0.1"], image_environment()))
        self.server = Server(replace(options, port=0, rest_api_port=0, shutdown_delay_seconds=0)).start()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.server.rest_api_port}", timeout=TIMEOUT)
        self.client = Client(f"127.0.0.1:{self.server.port}", timeout=TIMEOUT)

    def close(self) -> None:
        self.client.close()
        self.http.close()
        self.server.stop(0)


def _replaced(word: str, paths: dict[str, str]) -> str:
    name, equals, value = word.partition("=")
    return name + equals + paths.get(value, value)


def image_environment() -> dict[str, str]:
    return dockerfile()[1][-1].environment()


def parsed(launch: Launch) -> FlagValues:
    return parse_flags(launch.arguments, image_environment())


@pytest.fixture(scope="module", params=LAUNCHES)
def served(
    request: pytest.FixtureRequest, archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Launch, Served]]:
    root = tmp_path_factory.mktemp("deployed")
    launch = LAUNCHES[request.param]
    if request.param == "kserve":
        archives.write_version(1, root / "models" / "ranker")
    else:
        publish(str(archives.write(1, root / "model.pt2")), str(root / "models" / "ranker"))
    found = Served(launch, root)
    found.server.wait_ready(TIMEOUT)
    yield launch, found
    found.close()


def test_every_probe_finds_a_server_that_is_ready(served: tuple[Launch, Served]) -> None:
    launch, found = served
    asked = {(probe["port"], probe["path"]) for probe in launch.probes.values()}
    assert {port for port, _ in asked} <= {"http", launch.ports.get("http")}
    for _, path in asked:
        assert found.http.get(path).status_code == 200, path


def test_the_model_answers_in_every_protocol(served: tuple[Launch, Served]) -> None:
    _, found = served
    row = ROW.tolist()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": row[0]}
    assert found.client.predict("ranker", {"x": ROW}).version == 1
    assert found.http.post("/v1/models/ranker:predict", json={"instances": row}).status_code == 200
    assert found.http.post("/v2/models/ranker/infer", json={"inputs": [tensor]}).status_code == 200


def test_the_metrics_that_are_named_are_there(served: tuple[Launch, Served]) -> None:
    """The autoscaler's metric has a value for every model, where batching is on."""
    launch, found = served
    (metric,) = manifest("HorizontalPodAutoscaler")["spec"]["metrics"]
    pod = manifest("Deployment")["spec"]["template"]["metadata"]["annotations"]
    page = found.http.get(pod["prometheus.io/path"])
    assert page.status_code == 200
    sample = re.search(rf'^{metric["pods"]["metric"]["name"]}{{model="ranker",version="1"}} 0', page.text, re.MULTILINE)
    assert sample or not parsed(launch)["enable_batching"]


def test_metrics_are_asked_where_they_are() -> None:
    deployment = manifest("Deployment")["spec"]["template"]
    annotations = deployment["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(LAUNCHES["kubernetes"].ports["http"])
    kserve = manifest("ClusterServingRuntime")["spec"]["annotations"]
    assert kserve["prometheus.kserve.io/port"] == str(parsed(LAUNCHES["kserve"])["rest_api_port"])
    assert kserve["prometheus.kserve.io/path"] == annotations["prometheus.io/path"] == "/metrics"


def test_the_health_check_tells_a_ready_server_from_one_that_is_not(served: tuple[Launch, Served]) -> None:
    _, found = served
    checks = [compose_server()["healthcheck"]["test"][1:], dockerfile()[1][-1].one("HEALTHCHECK").words]
    assert checks[0] == checks[1]
    command = [word.replace("127.0.0.1:8501", f"127.0.0.1:{found.server.rest_api_port}") for word in checks[0]]
    assert command[0] == "python"
    wait_until(lambda: exit_code([sys.executable, *command[1:]]) == 0, "the check says yes")
    nobody = [word.replace(f":{found.server.rest_api_port}/", ":1/") for word in command]
    assert exit_code([sys.executable, *nobody[1:]]) == 1


def exit_code(command: list[str]) -> int:
    return subprocess.run(command, timeout=60, check=False, stderr=subprocess.DEVNULL).returncode


def test_everything_that_selects_pods_selects_the_servers() -> None:
    deployment = manifest("Deployment")["spec"]
    assert deployment["template"]["metadata"]["labels"] == LABELS
    selectors = [deployment["selector"], manifest("PodDisruptionBudget")["spec"]["selector"]]
    selectors += [spread["labelSelector"] for spread in deployment["template"]["spec"]["topologySpreadConstraints"]]
    selectors += [manifest("NetworkPolicy")["spec"]["podSelector"]]
    assert all(selector == {"matchLabels": LABELS} for selector in selectors)
    for name in ("tfs-lite", "tfs-lite-pods"):
        assert manifest("Service", name)["spec"]["selector"] == LABELS
    target = manifest("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "tfs-lite")


def test_ports_have_the_names_of_the_container() -> None:
    ports = LAUNCHES["kubernetes"].ports
    for name in ("tfs-lite", "tfs-lite-pods"):
        for port in manifest("Service", name)["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    allowed = [rule["ports"] for rule in manifest("NetworkPolicy")["spec"]["ingress"]]
    assert [port["port"] for rule in allowed for port in rule] == ["http", "grpc", "http"]
    assert all(rule["from"] for rule in manifest("NetworkPolicy")["spec"]["ingress"])


def test_volumes_are_there_and_models_are_read_only() -> None:
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    assert mounts["models"]["readOnly"]
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert manifest("PersistentVolumeClaim", claim)["spec"]["accessModes"] == ["ReadWriteMany"]
    (kustomization,) = documents(KUBERNETES / "kustomization.yaml")
    assert volumes["config"]["configMap"]["name"] == kustomization["configMapGenerator"][0]["name"]


def test_no_container_may_do_more_than_it_has_to() -> None:
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsUser"] == user_of_the_image()
    for container in (*pod["containers"], *manifest("ClusterServingRuntime")["spec"]["containers"]):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
    server = compose_server()
    assert server["read_only"]
    assert server["cap_drop"] == ["ALL"]
    assert server["security_opt"] == ["no-new-privileges:true"]


def user_of_the_image() -> int:
    return int(dockerfile()[1][-1].one("USER").text.partition(":")[0])


def test_compose_opens_its_ports_to_its_own_machine_only() -> None:
    settings = parsed(LAUNCHES["compose"])
    wanted = [f"127.0.0.1:{port}:{port}" for port in (settings["port"], settings["rest_api_port"])]
    assert compose_server()["ports"] == wanted


def test_no_service_of_kubernetes_becomes_a_flag() -> None:
    """A Service called ``tfs-lite`` would give every pod of its namespace ``TFS_LITE_PORT=tcp://...``."""
    with pytest.raises(UsageError, match="TFS_LITE_PORT: expected a whole number"):
        parse_flags([], {"TFS_LITE_PORT": "tcp://10.0.0.1:8501"})
    assert manifest("Deployment")["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_torch_takes_no_more_threads_than_cpus_were_asked_for() -> None:
    for kind, container in (
        ("kubernetes", manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]),
        ("kserve", manifest("ClusterServingRuntime")["spec"]["containers"][0]),
    ):
        cpus = int(container["resources"]["requests"]["cpu"])
        assert parsed(LAUNCHES[kind])["tensorflow_intra_op_parallelism"] == cpus


OF_DOCKER = (
    *("--build", "--build-arg", "--entrypoint", "--file", "--publish", "--read-only", "--rm", "--stop-timeout"),
    *("--tag", "--tmpfs", "--volume", "--wait"),
)
OF_OTHER_COMMANDS = ("--base", "--help", "--servers", "--timeout", "--token_file", "--verbose")


def test_the_page_names_flags_that_exist() -> None:
    known = {f"--{flag.name}" for flag in FLAGS} | {*OF_DOCKER, *OF_OTHER_COMMANDS}
    assert set(re.findall(r"--[a-z][a-z_-]+", PAGE)) - known == set()
    assert set(re.findall(r"tfs-lite ([a-z]+) ", PAGE)) <= set(COMMANDS)


@pytest.mark.parametrize("name", ["Compose", "Kubernetes", "KServe"])
def test_the_page_has_the_times_of_the_files(name: str) -> None:
    launch = LAUNCHES[name.lower()]
    settings = parsed(launch)
    times = (settings["shutdown_delay_seconds"], settings["drain_timeout_seconds"], launch.grace_seconds)
    assert "| ".join([f"| {name} ", *(f"{seconds:g} " for seconds in times)]) + "|" in PAGE


def test_the_page_names_kubernetes_objects_that_exist() -> None:
    (policy,) = [each for each in manifests() if each["kind"] == "NetworkPolicy"]
    labels = {
        label
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
        for label in peer.get("podSelector", {}).get("matchLabels", {})
    }
    assert labels
    assert all(f"`{label}: allow`" in PAGE for label in labels)
    assert "dns:///tfs-lite-pods:8500" in PAGE
