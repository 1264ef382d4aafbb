"""The manifests of examples/kubernetes: what Kubernetes would make of them, and what is wrong with them.

A schema says which fields there are. What a schema does not say, whether names, ports, files and numbers fit together, is
looked at here. ``problems`` is what a test expects to be empty.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import subprocess
import sys
from collections.abc import Iterator

import jsonschema
import kubernetes_validate
import yaml
from kubeflow_trainer_api import models
from support import ROOT

FOLDER = ROOT / "examples/kubernetes"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
# The oldest release that the manifests name, and the newest that the schemas are there for.
RELEASES = ("1.31", kubernetes_validate.latest_version())
# Of kinds that are no part of Kubernetes. Kubeflow's package has JobSet's types too.
MODELS = {
    "JobSet": models.JobsetV1alpha2JobSet,
    "ClusterTrainingRuntime": models.TrainerV1alpha1ClusterTrainingRuntime,
    "TrainJob": models.TrainerV1alpha1TrainJob,
}
VERSIONS = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "ClusterTrainingRuntime": "trainer.kubeflow.org/v1alpha1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
}
# The port that Trainer gives to node 0.
TRAINER_PORT = 29500


def read(name: str) -> list[dict]:
    """The objects of a file."""
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def comments(name: str) -> str:
    """What a file says at its beginning, as one line."""
    lines = (FOLDER / name).read_text().splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return " ".join(line.strip("# \\") for line in lines[:end])


@functools.cache
def help_of(command: str) -> str:
    asked = [sys.executable, "-m", "rallypoint", command, "--help"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout


@functools.cache
def strict_schema(kind: str) -> dict:
    """The JSON schema of a kind, in which a field that is not there is a mistake."""
    schema = copy.deepcopy(MODELS[kind].model_json_schema(by_alias=True))

    def close(part: object) -> None:
        if isinstance(part, dict):
            # "This or null" is how these types say that a field may be left out.
            others = [one for one in part.get("anyOf", []) if one != {"type": "null"}]
            if len(others) == 1:
                del part["anyOf"]
                part |= others[0]
            # Those without properties are maps: labels, quantities.
            if part.get("type") == "object" and "properties" in part:
                part.setdefault("additionalProperties", False)
            for below in part.values():
                close(below)
        elif isinstance(part, list):
            for below in part:
                close(below)

    close(schema)
    # Quantities, and what may be a number or a text, are texts in these types. The job inside is checked by Kubernetes'
    # own schema as well, which knows better.
    for name, part in schema["$defs"].items():
        if name.endswith(("Quantity", "IntOrString")):
            part.clear()
    return schema


def wrong_by_schema(thing: dict, releases: tuple[str, ...]) -> Iterator[str]:
    kind = thing["kind"]
    if kind in MODELS:
        for error in jsonschema.Draft202012Validator(strict_schema(kind)).iter_errors(thing):
            yield f"{kind}: {error.json_path}: {error.message}"
        if thing["apiVersion"] != VERSIONS[kind]:
            yield f"{kind}: apiVersion is {VERSIONS[kind]}"
        for job in jobs_within(thing):
            yield from wrong_by_schema(job, releases)
        return
    for release in releases:
        try:
            kubernetes_validate.validate(thing, release, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{kind}, Kubernetes {release}: {error.json_path}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield error.message


def jobs_within(thing: dict) -> list[dict]:
    """The Jobs of a set, or of a runtime, as objects of their own."""
    spec = thing["spec"]["template"]["spec"] if thing["kind"] == "ClusterTrainingRuntime" else thing["spec"]
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, **part["template"]} for part in spec.get("replicatedJobs", [])]


@dataclasses.dataclass
class Pod:
    """One that Kubernetes would start."""

    name: str
    spec: dict
    labels: dict[str, str]
    annotations: dict[str, str]
    # The object that it is of: a Job, a StatefulSet.
    owner: dict

    @property
    def dns(self) -> str:
        return f"{self.name}.{self.spec['subdomain']}" if "subdomain" in self.spec else self.name

    @property
    def containers(self) -> list[dict]:
        return self.spec.get("initContainers", []) + self.spec["containers"]

    def environment(self, container: dict) -> dict[str, str]:
        """What is set by the manifest, and by Kubernetes for an Indexed Job."""
        found: dict[str, str] = {}
        for variable in container.get("env", []):
            if "value" in variable:
                found[variable["name"]] = expanded(variable["value"], found)
            else:
                found[variable["name"]] = self.field(variable["valueFrom"]["fieldRef"]["fieldPath"])
        if index := self.annotations.get("batch.kubernetes.io/job-completion-index"):
            found["JOB_COMPLETION_INDEX"] = index
        return found

    def field(self, path: str) -> str:
        if path == "metadata.name":
            return self.name
        if path == "spec.nodeName":
            return f"machine-of-{self.name}"
        kind, key = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path).groups()
        return getattr(self, kind).get(key, "")

    def command(self, container: dict) -> list[str]:
        words = container.get("command", []) + container.get("args", [])
        return [expanded(word, self.environment(container)) for word in words]


def expanded(text: str, variables: dict[str, str]) -> str:
    """As Kubernetes does it: what is not known stays."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), text)


def pods(things: list[dict]) -> list[Pod]:
    """All that would run."""
    found = []
    for thing in things:
        match thing["kind"]:
            case "Job":
                found += pods_of_job(thing, thing["metadata"]["name"])
            case "JobSet":
                found += pods_of_set(thing)
            case "TrainJob":
                (runtime,) = [one for one in things if one["kind"] == "ClusterTrainingRuntime"]
                found += pods_of_set(set_of_trainer(runtime, thing))
            case "StatefulSet":
                template, spec = thing["spec"]["template"], thing["spec"]
                labels = template["metadata"]["labels"]
                pod = {**template["spec"], "subdomain": spec["serviceName"]}
                name = thing["metadata"]["name"]
                found += [Pod(f"{name}-{i}", pod, labels, {}, thing) for i in range(spec["replicas"])]
    return found


def pods_of_job(job: dict, name: str, more: dict[str, str] | None = None) -> list[Pod]:
    template, more = job["spec"]["template"], more or {}
    found = []
    for i in range(job["spec"].get("completions", 1)):
        index = {"batch.kubernetes.io/job-completion-index": str(i)} if job["spec"].get("completionMode") == "Indexed" else {}
        labels = {"batch.kubernetes.io/job-name": name, "batch.kubernetes.io/controller-uid": f"uid-of-{name}", **index, **more}
        labels |= template.get("metadata", {}).get("labels", {})
        found.append(Pod(f"{name}-{i}", template["spec"], labels, {**index, **more}, job))
    return found


def pods_of_set(jobset: dict) -> list[Pod]:
    name, found = jobset["metadata"]["name"], []
    for part in jobset["spec"]["replicatedJobs"]:
        job = copy.deepcopy({"kind": "Job", "metadata": {}, **part["template"]})
        # JobSet makes them so.
        job["spec"].setdefault("completionMode", "Indexed")
        job["spec"]["template"]["spec"]["subdomain"] = jobset["spec"].get("network", {}).get("subdomain", name)
        for i in range(part.get("replicas", 1)):
            keys = {"jobset-name": name, "replicatedjob-name": part["name"], "job-index": str(i), "restart-attempt": "0"}
            more = {f"jobset.sigs.k8s.io/{key}": value for key, value in keys.items()}
            found += pods_of_job(job, f"{name}-{part['name']}-{i}", more)
    return found


def set_of_trainer(runtime: dict, job: dict) -> dict:
    """The JobSet that Kubeflow Trainer makes of a runtime and a job, with the variables that it sets for torch."""
    made = copy.deepcopy(runtime["spec"]["template"])
    made["metadata"], made["kind"] = {"name": job["metadata"]["name"]}, "JobSet"
    trainer, name = job["spec"].get("trainer", {}), job["metadata"]["name"]
    nodes = trainer.get("numNodes", runtime["spec"]["mlPolicy"]["numNodes"])
    for part in made["spec"]["replicatedJobs"]:
        if part["template"]["metadata"]["labels"].get("trainer.kubeflow.org/trainjob-ancestor-step") != "trainer":
            continue
        part["template"]["spec"] |= {"completions": nodes, "parallelism": nodes}
        (container,) = [one for one in part["template"]["spec"]["template"]["spec"]["containers"] if one["name"] == "node"]
        for key in ("image", "command", "args"):
            if key in trainer:
                container[key] = trainer[key]
        index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
        container["env"] = container.get("env", []) + [
            *trainer.get("env", []),
            {"name": "PET_NNODES", "value": str(nodes)},
            {"name": "PET_NPROC_PER_NODE", "value": str(trainer.get("numProcPerNode", "auto"))},
            {"name": "PET_NODE_RANK", "valueFrom": index},
            {"name": "PET_MASTER_ADDR", "value": f"{name}-{part['name']}-0-0.{name}"},
            {"name": "PET_MASTER_PORT", "value": str(TRAINER_PORT)},
        ]
        container.setdefault("ports", []).append({"containerPort": TRAINER_PORT})
    return made


def problems(things: list[dict], about: str, releases: tuple[str, ...] = RELEASES) -> list[str]:
    """What is wrong with the objects of a file. ``about`` is what the file says at its beginning."""
    found = [text for thing in things for text in wrong_by_schema(thing, releases)]
    if found:
        # The rest takes them to be whole.
        return found
    all_pods = pods(things)
    # Files name the etcd of another one.
    known = {pod.dns: pod for pod in [*pods(read("etcd.yaml")), *all_pods]}
    found += wrong_services(things, all_pods)
    for pod in all_pods:
        found += wrong_job(pod)
        found += wrong_pod(pod)
        for container in pod.containers:
            found += [f"{pod.name}: {container['name']}: {text}" for text in wrong_container(pod, container, known, about)]
    # Pods of one kind have one mistake.
    return sorted({re.sub(r"-\d+:", ":", text) for text in found})


def wrong_services(things: list[dict], all_pods: list[Pod]) -> Iterator[str]:
    services = {thing["metadata"]["name"]: thing["spec"] for thing in things if thing["kind"] == "Service"}
    budgets = [thing for thing in things if thing["kind"] in ("PodDisruptionBudget", "NetworkPolicy")]
    for name, spec in services.items():
        chosen = [pod for pod in all_pods if spec["selector"].items() <= pod.labels.items()]
        if not chosen:
            yield f"the Service {name} selects no pod"
        for port in spec.get("ports", []):
            target = port.get("targetPort", port["port"])
            for pod in chosen:
                if not any(target in (open_["containerPort"], open_.get("name")) for one in pod.containers for open_ in one.get("ports", [])):
                    yield f"the Service {name} has port {target}, and {pod.name} has not"
    for thing in budgets:
        selector = thing["spec"].get("selector", thing["spec"].get("podSelector"))["matchLabels"]
        if not any(selector.items() <= pod.labels.items() for pod in all_pods):
            yield f"the {thing['kind']} {thing['metadata']['name']} selects no pod"
    for pod in all_pods:
        if pod.owner["kind"] == "Job" and "jobset.sigs.k8s.io/jobset-name" in pod.labels:
            continue  # JobSet makes the Service.
        service = services.get(pod.spec.get("subdomain", ""))
        if service is None:
            yield f"{pod.name} is in no Service of its own"
        elif pod.owner["kind"] == "Job" and not (service.get("clusterIP") == "None" and service.get("publishNotReadyAddresses")):
            yield f"the Service of {pod.name} gives no names to pods that are not ready"


def wrong_codes(pod: Pod, rules: list[dict]) -> Iterator[str]:
    """By which codes a Job, or an index of it, is given up."""
    given_up = {action: {code for rule in rules if rule["action"] == action for code in rule.get("onExitCodes", {}).get("values", [])} for action in ("FailJob", "FailIndex")}
    if not any("onExitCodes" in rule for rule in rules):
        return
    if not {1, 2, 126, 127} <= given_up["FailJob"]:
        yield f"{pod.name}: what cannot get better is tried again"
    # With the server on pod 0, its end is what closes the run, and the next server knows nothing of it.
    embedded = any("PET_MASTER_ADDR" in pod.environment(one) for one in pod.containers)
    if (5 in given_up["FailJob"] | given_up["FailIndex"]) == embedded:
        yield f"{pod.name}: exit code 5 {'ends the Job with the first server' if embedded else 'is tried again in vain'}"
    # A spare that comes late finds the run closed by its good end.
    if pod.owner["spec"].get("successPolicy") and 5 in given_up["FailJob"]:
        yield f"{pod.name}: exit code 5 of a late spare fails the whole Job"


def wrong_job(pod: Pod) -> Iterator[str]:
    """What the API server refuses, or the Job controller does otherwise than meant."""
    if pod.owner["kind"] != "Job":
        return
    spec = pod.owner["spec"]
    if spec.get("parallelism", 1) != spec.get("completions", 1):
        yield f"{pod.name}: not all nodes are started at once"
    nodes = {pod.environment(one).get("PET_NNODES") for one in pod.containers} - {None}
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        if pod.spec["restartPolicy"] != "Never":
            yield f"{pod.name}: podFailurePolicy needs restartPolicy: Never"
        codes = rule.get("onExitCodes")
        if codes is None:
            continue
        if codes["containerName"] not in [one["name"] for one in pod.containers]:
            yield f"{pod.name}: podFailurePolicy is about a container {codes['containerName']} that is not there"
        if codes["values"] != sorted(set(codes["values"])) or 0 in codes["values"]:
            yield f"{pod.name}: exit codes are in order, each once, and not 0"
        told = {int(code) for code in re.findall(r"^  (\d+) ", help_of("run").split("Exit codes:")[1], re.MULTILINE)}
        if not set(codes["values"]) <= told:
            yield f"{pod.name}: rallypoint run has no exit codes {set(codes['values']) - told}"
    if "podFailurePolicy" in spec:
        yield from wrong_codes(pod, spec["podFailurePolicy"]["rules"])
    if "podFailurePolicy" in spec and spec.get("podReplacementPolicy") != "Failed":
        yield f"{pod.name}: podReplacementPolicy is not Failed"
    for number in nodes:
        replicas = spec["completions"]
        if "jobset.sigs.k8s.io/jobset-name" in pod.labels:
            continue
        if replicas < int(number):
            yield f"{pod.name}: {replicas} pods for {number} nodes"
        if replicas > int(number):
            spares = replicas - int(number)
            if spec.get("successPolicy", {}).get("rules") != [{"succeededCount": int(number)}]:
                yield f"{pod.name}: with spares, the Job has succeeded when {number} pods have"
            if spec.get("maxFailedIndexes") != spares:
                yield f"{pod.name}: {spares} indexes may fail"


def wrong_pod(pod: Pod) -> Iterator[str]:
    context = pod.spec.get("securityContext", {})
    if not (context.get("runAsNonRoot") and context.get("runAsUser")):
        yield f"{pod.name}: it may run as root"
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield f"{pod.name}: without seccomp"
    mounted = {mount["name"] for one in pod.containers for mount in one.get("volumeMounts", [])}
    volumes = {volume["name"] for volume in pod.spec.get("volumes", [])}
    if pod.owner["kind"] == "StatefulSet":
        volumes |= {claim["metadata"]["name"] for claim in pod.owner["spec"].get("volumeClaimTemplates", [])}
    if mounted != volumes:
        yield f"{pod.name}: volumes {sorted(volumes)}, mounts {sorted(mounted)}"
    secret = any("secret" in volume for volume in pod.spec.get("volumes", []))
    claimed = pod.owner["spec"].get("volumeClaimTemplates")
    if (secret or claimed) and context.get("fsGroup") != context.get("runAsGroup"):
        yield f"{pod.name}: its user can neither read a Secret of mode 0440 nor write a volume"


def wrong_container(pod: Pod, container: dict, known: dict[str, Pod], about: str) -> Iterator[str]:
    context = container.get("securityContext", {})
    if context != {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}:
        yield "it may do more than it needs"
    words, variables = pod.command(container), pod.environment(container)
    ours = {name for name in variables if name.startswith(("PET_", "RALLYPOINT_"))}
    if left := re.findall(r"\$\(\w+\)", " ".join([*words, *variables.values()])):
        yield f"nothing is known of {', '.join(left)}"
    for name in variables:
        if not variables[name]:
            yield f"{name} is empty"
    ports = container.get("ports", [])
    names = {port["name"]: port["containerPort"] for port in ports if "name" in port}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind, {})
        for action in ("httpGet", "tcpSocket"):
            if action in probe and probe[action]["port"] not in names:
                yield f"the {kind} asks a port {probe[action]['port']} that is not there"
    if words[0] == "rallypoint":
        told = help_of(words[1])
        for name in ours:
            if f"[env: {name}=" not in told:
                yield f"rallypoint {words[1]} has no variable {name}"
        if words[1] == "run":
            yield from wrong_run(pod, container, known)
        else:
            (listens,) = re.findall(r"--listen[= ]\S+:(\d+)", " ".join(words))
            if int(listens) not in names.values():
                yield f"it listens on {listens}, which is no port of it"
    for text in [*words, *variables.values()]:
        yield from wrong_endpoints(pod, text, known)
        for path in re.findall(r"/(?:etc|var)/[\w/.-]+", text):
            yield from wrong_file(pod, container, path, about)


def wrong_run(pod: Pod, container: dict, known: dict[str, Pod]) -> Iterator[str]:
    """What is about nodes of a job."""
    words, variables = pod.command(container), pod.environment(container)
    timeout = int(re.search(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or else (\d+)", re.sub(r"\s+", " ", help_of("run")))[1])
    timeout = int(variables.get("PET_SHUTDOWN_TIMEOUT", timeout))
    if given := re.search(r"--shutdown-timeout[= ](\d+)", " ".join(words)):
        timeout = int(given[1])
    if pod.spec.get("terminationGracePeriodSeconds", 30) < timeout + 10:
        yield f"a grace of {pod.spec.get('terminationGracePeriodSeconds', 30)} s for a --shutdown-timeout of {timeout} s"
    mounts = {mount["mountPath"] for mount in container.get("volumeMounts", [])}
    if not {"/tmp", "/dev/shm"} <= mounts:
        yield "there is no /tmp to write, or no shared memory"
    master = variables.get("PET_MASTER_ADDR")
    if master is not None:
        if master not in known or known[master].environment(container).get("PET_NODE_RANK") != "0":
            yield f"{master} is not node 0"
        if int(variables["PET_MASTER_PORT"]) not in [port["containerPort"] for port in container.get("ports", [])]:
            yield f"PET_MASTER_PORT {variables['PET_MASTER_PORT']} is no port of it"
    elif not variables["PET_RDZV_ENDPOINT"].startswith("etcd://"):
        yield "a node may take itself for the server: write etcd:// before the endpoint"


def wrong_endpoints(pod: Pod, text: str, known: dict[str, Pod]) -> Iterator[str]:
    for host, port in re.findall(r"([\w-]+\.[\w.-]+):(\d+)", text):
        if re.fullmatch(r"[\d.]+", host):
            continue
        if host not in known:
            yield f"there is no {host}"
        elif int(port) not in [open_["containerPort"] for one in known[host].containers for open_ in one.get("ports", [])]:
            yield f"{host} has no port {port}"


def wrong_file(pod: Pod, container: dict, path: str, about: str) -> Iterator[str]:
    """A file or folder that a command names is in a volume; one of a Secret is made by the file's own first lines."""
    (mount, *_) = [one for one in container["volumeMounts"] if path.startswith(one["mountPath"] + "/")] or [None]
    if mount is None:
        yield f"{path} is in no volume"
        return
    for volume in pod.spec.get("volumes", []):
        if volume["name"] == mount["name"] and "secret" in volume:
            secret, key = volume["secret"]["secretName"], path.removeprefix(mount["mountPath"] + "/")
            made = re.search(rf"kubectl create secret generic {re.escape(secret)} (.*?)(kubectl|$)", about)
            if made is None or not re.search(rf"--from-file={re.escape(key)}(=\S+)? ", made[1] + " "):
                yield f"nobody is told to make {key} in the Secret {secret}"
