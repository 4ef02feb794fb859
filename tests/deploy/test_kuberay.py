"""The files for a Ray cluster that KubeRay runs are valid, agree with one another, and say nothing that the server does
not do. ``test_manifests`` starts their server's command, without its cluster, among those of the other files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from deploy_files import CONSTRAINTS, KUBERAY, dockerfile, documents, launches, manifest, manifests

from tfs_lite import __version__
from tfs_lite.cli.flag_parser import FlagValues, parse_flags

OF_OTHERS = ("RayCluster", "Certificate")
KUBERNETES_VERSIONS = ("1.25", "1.29", "1.37")
SCHEMA = yaml.safe_load((Path(__file__).parent / "ray_cluster.schema.yaml").read_text())


def cluster() -> dict[str, Any]:
    spec: dict[str, Any] = manifest("RayCluster", directory=KUBERAY)["spec"]
    return spec


def pods() -> dict[str, dict[str, Any]]:
    """The specs of all pods, by a name for people."""
    (workers,) = cluster()["workerGroupSpecs"]
    return {
        "head": cluster()["headGroupSpec"]["template"]["spec"],
        "nodes": workers["template"]["spec"],
        "server": manifest("Deployment", directory=KUBERAY)["spec"]["template"]["spec"],
        "redis": manifest("StatefulSet", "tfs-lite-redis", KUBERAY)["spec"]["template"]["spec"],
    }


def settings() -> FlagValues:
    return parse_flags(dict(launches())["kuberay"].arguments, dockerfile()[1][-1].environment())


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_kubernetes_takes_every_manifest_and_every_pod_of_the_cluster(version: str) -> None:
    for document in manifests(KUBERAY):
        if document["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(document, version, strict=True)
    for spec in pods().values():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
        kubernetes_validate.validate(pod, version, strict=True)


def test_kuberay_and_cert_manager_take_theirs() -> None:
    found = [document for document in manifests(KUBERAY) if document["kind"] in OF_OTHERS]
    assert {document["kind"] for document in found} == {*OF_OTHERS}
    for document in found:
        jsonschema.validate(document, SCHEMA)


def test_a_misspelt_field_of_theirs_would_be_noticed() -> None:
    wrong = manifest("RayCluster", directory=KUBERAY)
    wrong["spec"]["authOption"] = wrong["spec"].pop("authOptions")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_the_kustomization_names_every_file() -> None:
    (found,) = documents(KUBERAY / "kustomization.yaml")
    here = {path.name for path in KUBERAY.iterdir()} - {"kustomization.yaml"}
    assert {*found["resources"], *found["configMapGenerator"][0]["files"]} == here
    assert found["images"] == [{"name": "tfs-lite", "newTag": f"{__version__}-cluster"}]


def test_server_and_nodes_have_the_same_image_and_its_version_of_ray() -> None:
    images = {container["image"] for name in ("head", "nodes", "server") for container in pods()[name]["containers"]}
    assert images == {"tfs-lite"}
    assert f"ray=={cluster()['rayVersion']}" in CONSTRAINTS.read_text().split()


def test_nothing_is_placed_on_the_head() -> None:
    params = cluster()["headGroupSpec"]["rayStartParams"]
    assert [params[name] for name in ("num-cpus", "num-gpus", "memory")] == ["0", "0", "0"]


def test_every_pod_may_do_no_more_than_it_has_to() -> None:
    for name, spec in pods().items():
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"], name
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"], name
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name


def test_models_are_at_the_same_path_on_the_server_and_the_nodes_and_read_only() -> None:
    found = [
        (mount["mountPath"], mount["readOnly"])
        for name in ("server", "nodes")
        for mount in pods()[name]["containers"][0]["volumeMounts"]
        if mount["name"] == "models"
    ]
    assert found == [("/models", True)] * 2


def test_ray_asks_for_a_token_and_a_certificate_and_the_server_has_both() -> None:
    assert cluster()["authOptions"] == {"mode": "token"}
    assert cluster()["tlsOptions"] == {"enabled": True}
    server = pods()["server"]
    environment = {each["name"]: each.get("value", each.get("valueFrom")) for each in server["containers"][0]["env"]}
    assert environment["RAY_AUTH_MODE"] == "token"
    name = manifest("RayCluster", directory=KUBERAY)["metadata"]["name"]
    assert environment["RAY_AUTH_TOKEN"] == {"secretKeyRef": {"name": name, "key": "auth_token"}}
    certificate = manifest("Certificate", "tfs-lite-ray-client", KUBERAY)["spec"]
    assert certificate["issuerRef"]["name"] == f"ray-ca-issuer-{name}"
    assert {"name": "ray-tls", "secret": {"secretName": certificate["secretName"]}} in server["volumes"]
    mounted = {mount["name"]: mount["mountPath"] for mount in server["containers"][0]["volumeMounts"]}["ray-tls"]
    assert {environment[f"RAY_TLS_{each}"] for each in ("SERVER_CERT", "SERVER_KEY", "CA_CERT")} == {
        f"{mounted}/tls.crt",
        f"{mounted}/tls.key",
        f"{mounted}/ca.crt",
    }


def test_replicas_listen_where_the_server_may_reach_them() -> None:
    first, _, last = settings()["replica_port_range"].partition("-")
    replicas = {"port": int(first), "endPort": int(last)}
    (to_ray, _) = manifest("NetworkPolicy", directory=KUBERAY)["spec"]["egress"]
    assert replicas in to_ray["ports"]
    from_server = manifest("NetworkPolicy", "tfs-lite-ray", KUBERAY)["spec"]["ingress"][1]
    assert replicas in from_server["ports"]
    head = cluster()["headGroupSpec"]["template"]["spec"]["containers"][0]
    (client,) = (port["containerPort"] for port in head["ports"] if port["name"] == "client")
    assert settings()["cluster"].endswith(f":{client}")
    assert {"port": client} in to_ray["ports"]
    assert {"port": client} in from_server["ports"]


def test_a_node_has_time_to_move_its_replicas() -> None:
    nodes = pods()["nodes"]
    environment = {each["name"]: each.get("value") for each in nodes["containers"][0]["env"]}
    assert int(environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]) < nodes["terminationGracePeriodSeconds"]


def test_replicas_are_no_nicer_than_other_processes() -> None:
    environment = {each["name"]: each.get("value") for each in pods()["nodes"]["containers"][0]["env"]}
    assert environment["RAY_worker_niceness"] == "0"


def test_one_server_decides_at_a_time() -> None:
    spec = manifest("Deployment", directory=KUBERAY)["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
