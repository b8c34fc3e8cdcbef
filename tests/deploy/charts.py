"""Renders the chart in `config/deploy/helm`, and checks what it makes against the schemas of Kubernetes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "config/deploy/helm/forge-bridge"
# Folder of the runtime `helm` of tests/runtimes.
TOOLS = Path(os.environ["FORGE_HELM"])
SECRETS = {"BRIDGE_TOKENS": "replace-me", "BRIDGE_SECRET_KEY": "replace-me"}

Resource = dict[str, Any]


def helm(*words: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [TOOLS / "helm/helm", *words, "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True)


def render(**values: Any) -> dict[str, Resource]:
    """Resources of the release `forge-bridge` with these values, by kind; each is checked against its schema."""
    values = {"secret": {"values": SECRETS}, **values}
    done = helm("template", "forge-bridge", str(CHART), values=values)
    assert done.returncode == 0, done.stderr
    resources = list(yaml.safe_load_all(done.stdout))
    for resource in resources:
        validate(resource)
    return by_kind(resources)


def refusal(**values: Any) -> str:
    """Message with which the chart refuses these values."""
    done = helm("template", "forge-bridge", str(CHART), values={"secret": {"values": SECRETS}, **values})
    assert done.returncode != 0, done.stdout
    return done.stderr


def validate(resource: Resource) -> None:
    if resource["kind"] == "ServiceMonitor":
        run_validator(resource)
    else:
        kubernetes_validate.validate(resource, "1.37", strict=True)


def run_validator(resource: Resource) -> None:
    """Checks a ServiceMonitor against the Prometheus operator's definition, which is compiled to JavaScript."""
    name = "ComGithubPrometheusOperatorPrometheusOperatorPkgApisMonitoringV1ServiceMonitor.js"
    schema = TOOLS / "node_modules/@kubernetes-models/prometheus-operator/_schemas" / name
    script = f"""
        const {{ validate }} = await import({json.dumps(str(schema))});
        if (!validate({json.dumps(resource)})) {{
            console.error(validate.errors);
            process.exit(1);
        }}
    """
    node = os.environ.get("FORGE_NODE") or "node"
    done = subprocess.run([node, "--input-type=module", "-e", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def plain(name: str) -> list[Resource]:
    """Resources of a file in `config/deploy`."""
    return list(yaml.safe_load_all((ROOT / "config/deploy" / name).read_text()))


def by_kind(resources: list[Resource]) -> dict[str, Resource]:
    found = {resource["kind"]: resource for resource in resources}
    assert len(found) == len(resources), "two resources of a kind"
    return found


# Set by the chart alone: labels that name the release, and defaults of Kubernetes that it spells out.
OWN = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "checksum/config",
    "checksum/secret",
    "helm.sh/chart",
    "imagePullPolicy",
    "namespace",
}


def substance(value: Any) -> Any:
    """A resource without what only the chart sets."""
    if isinstance(value, list):
        return [substance(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    kept = {key: substance(entry) for key, entry in value.items() if key not in OWN}
    return {key: entry for key, entry in kept.items() if entry != {} or value[key] == {}}


def container(workload: Resource) -> dict[str, Any]:
    return workload["spec"]["template"]["spec"]["containers"][0]


def variables(workload: Resource) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container(workload)["env"]}
