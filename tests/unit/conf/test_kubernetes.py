"""The SparkApplication and what goes with it fit together, and its job has options that exist.

The names and types of the fields are those of the operator's definition of v1beta2; the whole
definition is Kubeflow's, and no cluster is asked here.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
import yaml
from tidy.tree import ROOT

from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options

DOCUMENTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "conf/kubernetes/shouter.yaml").read_text(encoding="utf-8"))
)
NAMED = {(each["kind"], each["metadata"]["name"]): each for each in DOCUMENTS}
APPLICATION = NAMED["SparkApplication", "shouter"]
SPEC = APPLICATION["spec"]
(JOB,) = NAMED["ConfigMap", "shouter-job"]["data"].values()
PODS = {role: SPEC[role] for role in ("driver", "executor")}

SIZE = re.compile(r"\d+[kmgt]")
"""Memory in Spark's spelling; Spark does not accept Kubernetes' own 1Gi."""
POD_FIELDS = {
    "cores": int, "memory": SIZE, "memoryOverhead": SIZE, "labels": dict, "envFrom": list,
    "secrets": list, "volumeMounts": list,
}  # fmt: skip
DRIVER_FIELDS = {**POD_FIELDS, "serviceAccount": str}
EXECUTOR_FIELDS = {**POD_FIELDS, "instances": int}
RETRIES = ("onFailureRetries", "onFailureRetryInterval")
SUBMISSIONS = ("onSubmissionFailureRetries", "onSubmissionFailureRetryInterval")
FIELDS = {
    "type": "Python", "pythonVersion": "3", "mode": "cluster",
    "sparkVersion": re.compile(r"\d+\.\d+\.\d+"), "image": str, "mainApplicationFile": str,
    "restartPolicy": {"type": "OnFailure", **dict.fromkeys((*RETRIES, *SUBMISSIONS), int)},
    "volumes": list, "sparkConf": dict, "driver": DRIVER_FIELDS, "executor": EXECUTOR_FIELDS,
}  # fmt: skip
REQUIRED = {"type", "sparkVersion", "mainApplicationFile", "driver", "executor"}


def misfits(value: Any, expected: Any, where: str = "spec") -> list[str]:
    """Return the places where a value differs from the expected type, text, pattern or fields."""
    if isinstance(expected, dict):
        unknown = [f"{where}.{name}" for name in value if name not in expected]
        known = (name for name in value if name in expected)
        return unknown + [
            found
            for name in known
            for found in misfits(value[name], expected[name], f"{where}.{name}")
        ]
    if isinstance(expected, re.Pattern):
        fits = isinstance(value, str) and expected.fullmatch(value) is not None
    else:
        fits = isinstance(value, expected) if isinstance(expected, type) else value == expected
    return [] if fits else [where]


def test_the_application_has_fields_and_types_of_the_operators_definition() -> None:
    assert APPLICATION["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert SPEC.keys() >= REQUIRED
    assert misfits(SPEC, FIELDS) == []
    values = SPEC["sparkConf"].values()
    assert [value for value in values if not isinstance(value, str)] == []


@pytest.mark.parametrize(
    ("planted", "where"),
    [
        ({"driver": {"memoryoverhead": "1g"}}, "spec.driver.memoryoverhead"),
        ({"executor": {"memory": "2Gi"}}, "spec.executor.memory"),
        ({"restartPolicy": {"type": "Always"}}, "spec.restartPolicy.type"),
        ({"stagingPort": 7080}, "spec.stagingPort"),
    ],
)
def test_a_planted_mistake_is_found(planted: dict[str, Any], where: str) -> None:
    assert misfits(planted, FIELDS) == [where]


def set_in_the_job(variable: str) -> dict[str, str]:
    """Options by name that the job gives to the reader or to the writer that it calls so."""
    tree = ast.parse(JOB)
    (shared,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "kafka"
    ]
    assert isinstance(shared, ast.Dict)
    found = dict(zip(map(_text, shared.keys), map(_text, shared.values), strict=True))
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == variable:
            for call in ast.walk(statement.value):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".option"):
                    found[_text(call.args[0])] = _text(call.args[1])
    return found


def _text(node: ast.expr | None) -> str:
    """A literal; what the job reads from its environment is the secret's."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert node is not None
    assert ast.unparse(node) == "os.environ['KAFKA_SASL_JAAS_CONFIG']"
    return str(NAMED["Secret", "shouter-kafka"]["stringData"]["KAFKA_SASL_JAAS_CONFIG"])


@pytest.mark.parametrize(
    ("variable", "use", "some"),
    [
        ("orders", Use.READ_STREAM, {"subscribe", "startingOffsets"}),
        ("query", Use.WRITE_STREAM, {"checkpointLocation", "stagingHost", "stagingPort"}),
    ],
)
def test_the_options_of_the_job_are_options_of_the_connector(
    variable: str, use: Use, some: set[str]
) -> None:
    """A name that is not declared, or a wrong value, raises here."""
    given = set_in_the_job(variable)
    assert some < set(given)
    taken = parse_options(given, use)
    assert {"kafka.group.id" if name == "group.id" else name for name in given} <= set(taken)


def test_executors_find_the_staging_server_where_the_job_says() -> None:
    options = set_in_the_job("query")
    service = NAMED["Service", options["stagingHost"]]["spec"]
    assert service["clusterIP"] == "None"
    opened = {port["name"]: port["port"] for port in service["ports"]}
    assert opened == {"staging": int(options["stagingPort"]), "metrics": 9405}
    assert f"port={opened['metrics']}," in JOB
    # Spark itself labels the pods with their role.
    driver = {**PODS["driver"]["labels"], "spark-role": "driver"}
    assert service["selector"] == driver
    policy = NAMED["NetworkPolicy", "shouter-driver"]["spec"]
    assert policy["podSelector"]["matchLabels"] == driver
    inside, outside = policy["ingress"]
    (executors,) = inside["from"]
    allowed = {**PODS["executor"]["labels"], "spark-role": "executor"}
    assert executors["podSelector"]["matchLabels"] == allowed
    sparks = {int(value) for name, value in SPEC["sparkConf"].items() if name.endswith(".port")}
    assert {each["port"] for each in inside["ports"]} == {*sparks, opened["staging"]}
    assert {each["port"] for each in outside["ports"]} == {opened["metrics"]}


def test_secrets_and_files_are_where_the_job_reads_them() -> None:
    options = set_in_the_job("orders")
    for pod in PODS.values():
        places = {
            f"{secret['path']}/{name}"
            for secret in pod["secrets"]
            for name in NAMED["Secret", secret["name"]]["stringData"]
        }
        assert options["kafka.ssl.truststore.location"] in places
    variables = {
        role: {
            name
            for source in pod["envFrom"]
            for name in NAMED["Secret", source["secretRef"]["name"]]["stringData"]
        }
        for role, pod in PODS.items()
    }
    for role in PODS:
        assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= variables[role]
    assert set(re.findall(r'os\.environ\["(\w+)"\]', JOB)) <= variables["driver"]
    mounts = {each["name"]: each["mountPath"] for each in PODS["driver"]["volumeMounts"]}
    assert mounts.keys() == {each["name"] for each in SPEC["volumes"]}
    assert SPEC["mainApplicationFile"] == f"local://{mounts['job']}/job.py"
    assert any(name.startswith("spark-local-dir-") for name in mounts)


def test_the_job_keeps_its_checkpoint_in_an_object_store() -> None:
    """A pod's disk goes with the pod."""
    assert set_in_the_job("query")["checkpointLocation"].startswith("s3a://")
