"""The examples in deploy/ are valid, and fit the configuration that they start and one another."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rti.config.load import load
from rti.config.schema import Config
from rti.control.model_shape import shape_of
from rti.control.placement import Machines, plan

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads(Path(__file__).with_name("rayjob.schema.json").read_text())


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy/rayjob.yaml").read_text())


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy/cluster.yaml").read_text())


def groups(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {g["groupName"]: g for g in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]}


def asks(group: dict[str, Any], what: str) -> int:
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    return int(container["resources"]["requests"].get(what, 0))


def config_of(command: str) -> Config:
    """What `python launch/rti.py --config NAME words` would load, with a user's endpoint."""
    words = shlex.split(command)
    script = next(i for i, word in enumerate(words) if word.endswith("launch/rti.py"))
    assert (ROOT / "launch/rti.py").is_file() and words[script + 1] == "--config"
    endpoint = ["env.tau2.user_endpoint.base_url=http://user:8000/v1", "env.tau2.user_endpoint.model=user"]
    return load(words[script + 2], [*words[script + 3:], *endpoint])


def test_the_ray_job_is_valid(job):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(job)


@pytest.mark.parametrize("spoil", [
    lambda job: job["spec"].update(entryPoint="x"),
    lambda job: job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0].pop("groupName"),
    lambda job: job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 4}),
])
def test_a_spoilt_ray_job_is_not(job, spoil):
    spoilt = json.loads(json.dumps(job))
    spoil(spoilt)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(spoilt)


def test_the_cluster_file_is_valid_by_rays_own_schema(cluster):
    from ray.autoscaler._private.util import prepare_config, validate_config
    validate_config(prepare_config(cluster))


def test_the_ray_job_asks_for_the_ray_that_setup_py_does(job):
    (low,) = re.findall(r'"ray\[default\]>=([\d.]+)', (ROOT / "setup.py").read_text())
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == low


def test_both_have_the_gpus_and_cpus_that_the_configuration_needs(job, cluster):
    config = config_of(job["spec"]["entrypoint"])
    assert config.run_dir == "/runs/telecom"
    kinds = groups(job)
    nodes = cluster["available_node_types"]
    for learner, generator in ((asks(kinds["learner"], "nvidia.com/gpu"), asks(kinds["generators"], "nvidia.com/gpu")),
                               (nodes["learner"]["resources"]["GPU"], nodes["generators"]["resources"]["GPU"])):
        # raises where it does not fit
        plan(config, Machines((learner, generator), gpu_bytes=80e9), shape_of(config.model.path))
    for cpus in (asks(kinds["episodes"], "cpu"), nodes["episodes"]["resources"]["CPU"]):
        assert cpus >= config.env_workers.cpus + config.interveners.cpus


def test_preemptible_nodes_hold_neither_head_nor_learner(job, cluster):
    kinds = groups(job)
    assert "nodeSelector" not in kinds["learner"]["template"]["spec"]
    assert "nodeSelector" not in job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert all("nodeSelector" in kinds[name]["template"]["spec"] for name in ("generators", "episodes"))
    spot = {name for name, node in cluster["available_node_types"].items() if "InstanceMarketOptions" in node["node_config"]}
    assert spot == {"generators", "episodes"}


def test_only_nodes_that_stay_have_the_resource_that_the_learner_asks_for(job, cluster):
    stable = config_of(job["spec"]["entrypoint"]).ray.stable_resource
    assert stable
    spec = job["spec"]["rayClusterSpec"]
    starts = {"head": spec["headGroupSpec"]["rayStartParams"]} | {n: g["rayStartParams"] for n, g in groups(job).items()}
    have = {name for name, start in starts.items() if stable in json.loads(json.loads(start.get("resources", '"{}"')))}
    assert have == {"head", "learner"}
    nodes = cluster["available_node_types"]
    assert {name for name, node in nodes.items() if stable in node["resources"]} == {"head", "learner"}
    assert f"ray.stable_resource={stable}" in (ROOT / "deploy/cluster.yaml").read_text()


def test_a_stopped_job_is_given_the_time_that_its_checkpoint_takes(job, cluster):
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    env = {e["name"]: e["value"] for e in head["containers"][0]["env"]}
    wait = int(env["RAY_JOB_STOP_WAIT_TIME_S"])
    assert 60 <= wait < head["terminationGracePeriodSeconds"]
    assert f"RAY_JOB_STOP_WAIT_TIME_S={wait}" in " ".join(cluster["head_start_ray_commands"])


def test_all_pods_see_the_run_directory(job):
    spec = job["spec"]["rayClusterSpec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert {"name": "runs", "mountPath": "/runs"} in pod["containers"][0]["volumeMounts"]
        assert "persistentVolumeClaim" in next(v for v in pod["volumes"] if v["name"] == "runs")
