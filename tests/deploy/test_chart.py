"""The helm chart: `helm lint`, each of its values, and the plain manifests, which its defaults have to equal.

    FORGE_BRIDGE=target/debug/forge-bridge FORGE_HELM=$(tests/runtimes/install.py helm) python -m pytest tests/deploy

`tests/e2e/deploy.rs` runs it with the Python of the runtime `deploy`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts import CHART, ROOT, SECRETS, by_kind, container, helm, plain, refusal, render, substance, variables

DATABASE = {"store": {"urlSecret": "database"}, "replicas": 2}


@pytest.mark.parametrize("values", [{}, DATABASE], ids=["sqlite", "postgresql"])
def test_helm_has_no_warning(values: dict[str, Any]) -> None:
    done = helm("lint", "--strict", str(CHART), values={"secret": {"values": SECRETS}, **values})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout and "[ERROR]" not in done.stdout, done.stdout


def test_the_defaults_equal_the_plain_manifests() -> None:
    assert substance(render()) == substance(by_kind(plain("kubernetes.yaml")))


def test_with_postgresql_it_equals_its_plain_manifests() -> None:
    resources = plain("kubernetes.postgres.yaml")
    (store,) = (resource for resource in resources if resource.get("stringData", {}).keys() == {"url"})
    resources.remove(store)
    found = render(store={"urlSecret": store["metadata"]["name"]}, replicas=2)
    assert substance(found) == substance(by_kind(resources))


def test_versions_are_those_of_the_program() -> None:
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == workspace


def test_every_value_has_a_default_and_a_schema() -> None:
    def compare(schema: dict[str, Any], values: dict[str, Any], at: str) -> None:
        assert schema["properties"].keys() == values.keys(), at
        for name, inner in schema["properties"].items():
            if "properties" in inner:
                compare(inner, values[name], f"{at}.{name}")

    schema = json.loads((CHART / "values.schema.json").read_text())
    # Helm adds it for charts that depend on this one.
    del schema["properties"]["global"]
    compare(schema, yaml.safe_load((CHART / "values.yaml").read_text()), "values")
    assert "additional properties 'adaptors' not allowed" in refusal(adaptors=["echo"])


def test_a_secret_is_required() -> None:
    assert "set secret.values.BRIDGE_TOKENS, or secret.existing" in refusal(secret={"values": {}})
    only = {"values": {"BRIDGE_TOKENS": "t"}}
    assert "set secret.values.BRIDGE_SECRET_KEY, or secret.existing" in refusal(secret=only)
    existing = render(secret={"existing": "mine"})
    assert "Secret" not in existing
    assert container(existing["StatefulSet"])["envFrom"] == [{"secretRef": {"name": "mine"}}]


def test_several_pods_need_a_database() -> None:
    assert "more than one replica needs store.urlSecret" in refusal(replicas=2)


def test_with_postgresql_it_is_a_deployment() -> None:
    found = render(**DATABASE)
    assert "StatefulSet" not in found
    deployment = found["Deployment"]
    assert deployment["spec"]["replicas"] == 2
    wanted = {"secretKeyRef": {"name": "database", "key": "url"}}
    assert variables(deployment)["BRIDGE_STORE"] == wanted
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert {"name": "store", "emptyDir": {}} in volumes
    budget = found["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == deployment["spec"]["selector"]
    # A budget of a single pod would block its node.
    assert "PodDisruptionBudget" not in render(store={"urlSecret": "database"})
    assert "PodDisruptionBudget" not in render(**DATABASE, podDisruptionBudget={"enabled": False})


def test_the_selectors_name_the_pods() -> None:
    for values in ({}, DATABASE):
        found = render(**values, serviceMonitor={"enabled": True}, metrics={"public": True})
        workload = found.get("StatefulSet") or found["Deployment"]
        pods = workload["spec"]["template"]["metadata"]["labels"]
        service = found["Service"]
        for selector in (
            workload["spec"]["selector"]["matchLabels"],
            service["spec"]["selector"],
            found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        ):
            assert selector.items() <= pods.items()
        monitored = found["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
        assert monitored.items() <= service["metadata"]["labels"].items()


def test_settings_and_addresses_reach_the_program() -> None:
    config = '[dispatch]\ndefault_timeout = "30m"\n'
    found = render(config=config, callbackAllow=["10.0.0.0/8", "hooks.internal"], adapters=["echo", "command"])
    workload = found["StatefulSet"]
    settings = found["ConfigMap"]["data"]["forge-bridge.toml"]
    assert tomllib.loads(settings) == tomllib.loads(config)
    mount = next(entry for entry in container(workload)["volumeMounts"] if entry["name"] == "config")
    assert mount["mountPath"] == variables(workload)["BRIDGE_CONFIG"]
    assert variables(workload)["BRIDGE_CALLBACK_ALLOW"] == "10.0.0.0/8,hooks.internal"
    assert variables(workload)["BRIDGE_ADAPTERS"] == "echo,command"
    before = render()["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
    assert workload["spec"]["template"]["metadata"]["annotations"] != before


def test_a_certificate_makes_the_probes_use_tls() -> None:
    found = render(tls={"secret": "certificate"}, serviceMonitor={"enabled": True}, metrics={"public": True})
    workload = found["StatefulSet"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container(workload)[probe]["httpGet"]["scheme"] == "HTTPS"
    mount = next(entry for entry in container(workload)["volumeMounts"] if entry["name"] == "tls")
    for name in ("BRIDGE_TLS_CERT", "BRIDGE_TLS_KEY"):
        assert Path(variables(workload)[name]).parent == Path(mount["mountPath"])
    endpoint = found["ServiceMonitor"]["spec"]["endpoints"][0]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {"serverName": "forge-bridge.default.svc"}


def test_a_monitor_can_read_the_metrics() -> None:
    assert "ServiceMonitor" not in render()
    assert "serviceMonitor.tokenSecret.name" in refusal(serviceMonitor={"enabled": True})
    token = {"name": "prometheus", "key": "read"}
    with_token = render(serviceMonitor={"enabled": True, "tokenSecret": token, "labels": {"release": "main"}})
    monitor = with_token["ServiceMonitor"]
    assert monitor["metadata"]["labels"]["release"] == "main"
    assert monitor["spec"]["endpoints"][0]["authorization"] == {"credentials": token}
    public = render(serviceMonitor={"enabled": True}, metrics={"public": True})
    assert variables(public["StatefulSet"])["BRIDGE_METRICS_PUBLIC"] == "true"
    assert "authorization" not in public["ServiceMonitor"]["spec"]["endpoints"][0]


def test_values_of_the_pod_are_passed_through() -> None:
    pod = {
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "agents", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "terminationGracePeriodSeconds": 90,
    }
    volume = {"name": "work", "emptyDir": {}}
    found = render(
        **pod,
        image={"repository": "registry.example/bridge", "tag": "7", "pullPolicy": "Always"},
        env=[{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        resources={"limits": {"memory": "4Gi"}},
        persistence={"size": "50Gi", "storageClass": "fast", "accessMode": "ReadWriteOnce"},
        podLabels={"team": "a"},
        podAnnotations={"note": "b"},
        service={"type": "LoadBalancer", "port": 80, "annotations": {"pool": "c"}},
        networkPolicy={"enabled": False},
        volumes=[volume],
        volumeMounts=[{"name": "work", "mountPath": "/srv/work"}],
    )
    assert "NetworkPolicy" not in found
    template = found["StatefulSet"]["spec"]["template"]
    assert {key: template["spec"][key] for key in pod} == pod
    assert volume in template["spec"]["volumes"]
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"]["note"] == "b"
    bridge = container(found["StatefulSet"])
    assert bridge["image"] == "registry.example/bridge:7"
    assert bridge["resources"]["limits"] == {"memory": "4Gi"}
    assert {"name": "work", "mountPath": "/srv/work"} in bridge["volumeMounts"]
    assert variables(found["StatefulSet"])["HTTPS_PROXY"] == "http://proxy:3128"
    claim = found["StatefulSet"]["spec"]["volumeClaimTemplates"][0]["spec"]
    assert claim["storageClassName"] == "fast" and claim["accessModes"] == ["ReadWriteOnce"]
    assert claim["resources"]["requests"]["storage"] == "50Gi"
    service = found["Service"]
    assert service["spec"]["type"] == "LoadBalancer" and service["spec"]["ports"][0]["port"] == 80
    assert service["metadata"]["annotations"] == {"pool": "c"}


def test_every_variable_is_a_setting(tmp_path: Path) -> None:
    every = {"callbackAllow": ["loopback"], "metrics": {"public": True}, "tls": {"secret": "c"}}
    names = {*variables(render(**every)["StatefulSet"]), *SECRETS}
    environment = {name: "1" for name in names if name.startswith("BRIDGE_")}
    program = Path(os.environ["FORGE_BRIDGE"]).resolve()
    done = subprocess.run([program, "check", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert json.loads(done.stdout)["warnings"] == [], names
