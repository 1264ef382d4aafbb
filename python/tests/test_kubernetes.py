"""The manifests of examples/kubernetes are valid, their parts fit together, and their pods really meet.

There is no Kubernetes here. Each file is held against the schemas of Kubernetes, JobSet and Kubeflow Trainer. Then the pods
that would come of it are started as processes of this machine, with the commands and the variables of the manifest: each
pod has an address of its own, 127.x.y.z, in place of its name.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pathlib
import random
import re
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import manifests
import pytest
from manifests import Pod
from support import ETCD, ROOT, TIED, wait_until
from torchrun import TORCHRUN

# Waits until all pods have a place, so that no spare comes when all is over.
WORKER = """
import os, pathlib, time
print("worker", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not (pathlib.Path(__file__).parent / "go").exists():
    time.sleep(0.02)
"""


@pytest.mark.parametrize("name", manifests.FILES)
def test_manifests_are_valid_and_fit_together(name):
    assert manifests.problems(manifests.read(name), manifests.comments(name)) == []


def job(things):
    return next(thing for thing in things if thing["kind"] == "Job")


def container(things, kind="Job"):
    return next(thing for thing in things if thing["kind"] == kind)["spec"]["template"]["spec"]["containers"][0]


def variable(things, name, kind="Job"):
    return next(one for one in container(things, kind)["env"] if one["name"] == name)


def node(things):
    """The Job of the nodes in a JobSet, or in a runtime."""
    sets = [thing["spec"] for thing in things if thing["kind"] == "JobSet"]
    spec = sets[0] if sets else things[0]["spec"]["template"]["spec"]
    return next(part for part in spec["replicatedJobs"] if part["name"] == "node")["template"]["spec"]


def node_container(things):
    return node(things)["template"]["spec"]["containers"][0]


# A mistake in a copy of a file, and what is said of it.
MISTAKES = [
    ("job.yaml", lambda t: job(t)["spec"].update(completionsMode="Indexed"), "completionsMode"),
    ("job.yaml", lambda t: job(t)["spec"].update(completions="4"), "'4' is not of type"),
    ("job.yaml", lambda t: container(t).update(volumeMount=[]), "volumeMount"),
    ("job.yaml", lambda t: job(t).update(apiVersion="batch/v2"), "find schema"),
    ("job.yaml", lambda t: t[0]["spec"]["selector"].update({"batch.kubernetes.io/job-name": "other"}), "selects no pod"),
    ("job.yaml", lambda t: t[0]["spec"].pop("publishNotReadyAddresses"), "not ready"),
    ("job.yaml", lambda t: t[0]["spec"]["ports"][0].update(port=2379), "port 2379"),
    ("job.yaml", lambda t: job(t)["spec"]["template"]["spec"].update(subdomain="other"), "in no Service"),
    ("job.yaml", lambda t: variable(t, "PET_MASTER_ADDR").update(value="train-1.train"), "is not node 0"),
    ("job.yaml", lambda t: variable(t, "PET_MASTER_PORT").update(value="29400"), "29400"),
    ("job.yaml", lambda t: variable(t, "PET_NNODES").update(name="PET_NODES"), "no variable PET_NODES"),
    ("job.yaml", lambda t: variable(t, "PET_NNODES").update(value="5"), "4 pods for 5 nodes"),
    ("job.yaml", lambda t: job(t)["spec"]["template"]["spec"].update(terminationGracePeriodSeconds=30), "a grace of 30 s"),
    ("job.yaml", lambda t: container(t)["command"].insert(2, "--shutdown-timeout=60"), "a --shutdown-timeout of 60 s"),
    ("job.yaml", lambda t: job(t)["spec"]["template"]["spec"].update(restartPolicy="OnFailure"), "restartPolicy: Never"),
    ("job.yaml", lambda t: job(t)["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"].update(containerName="main"), "container main"),
    ("job.yaml", lambda t: job(t)["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"].update(values=[1, 2, 5, 126, 127]), "exit code 5"),
    ("job.yaml", lambda t: job(t)["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"].update(values=[1, 2, 99, 126, 127]), "{99}"),
    ("job.yaml", lambda t: job(t)["spec"].pop("podReplacementPolicy"), "podReplacementPolicy"),
    ("job.yaml", lambda t: job(t)["spec"]["template"]["spec"]["securityContext"].pop("runAsNonRoot"), "root"),
    ("job.yaml", lambda t: container(t)["securityContext"].update(readOnlyRootFilesystem=False), "more than it needs"),
    ("job.yaml", lambda t: container(t)["volumeMounts"].pop(0), "no /tmp"),
    ("job-etcd.yaml", lambda t: variable(t, "PET_RDZV_ENDPOINT").update(value="etcd-0.etcd:2379"), "write etcd://"),
    ("job-etcd.yaml", lambda t: variable(t, "PET_RDZV_ENDPOINT").update(value="etcd://etcd-3.etcd:2379"), "no etcd-3.etcd"),
    ("job-etcd.yaml", lambda t: variable(t, "PET_RDZV_ENDPOINT").update(value="etcd://etcd-0.etcd:4001"), "no port 4001"),
    ("job-etcd.yaml", lambda t: variable(t, "PET_RDZV_ID").update(value="$(JOB)-$(JOB_UID)"), "$(JOB)"),
    ("job-etcd.yaml", lambda t: variable(t, "JOB_UID")["valueFrom"]["fieldRef"].update(fieldPath="metadata.labels['uid']"), "JOB_UID is empty"),
    ("job-etcd.yaml", lambda t: variable(t, "RALLYPOINT_CACERT").update(value="/etc/ssl/ca.crt"), "in no volume"),
    ("job-etcd.yaml", lambda t: variable(t, "RALLYPOINT_CACERT").update(value="/etc/rallypoint/etcd/ca.pem"), "make ca.pem"),
    ("job-etcd.yaml", lambda t: job(t)["spec"].pop("successPolicy"), "4 pods have"),
    ("job-etcd.yaml", lambda t: job(t)["spec"]["podFailurePolicy"]["rules"][2].update(action="FailJob"), "a late spare"),
    ("job-etcd.yaml", lambda t: job(t)["spec"]["podFailurePolicy"]["rules"].pop(2), "exit code 5"),
    ("job-etcd.yaml", lambda t: job(t)["spec"].update(maxFailedIndexes=2), "1 indexes may fail"),
    ("job-etcd.yaml", lambda t: job(t)["spec"]["template"]["spec"]["securityContext"].pop("fsGroup"), "0440"),
    ("jobset.yaml", lambda t: t[2].update(apiVersion="jobset.x-k8s.io/v1"), "apiVersion"),
    ("jobset.yaml", lambda t: t[2]["spec"].update(successPolicies={}), "successPolicies"),
    ("jobset.yaml", lambda t: t[2]["spec"]["network"].update(enableDNSHostnames="yes"), "enableDNSHostnames"),
    ("jobset.yaml", lambda t: t[2]["spec"]["replicatedJobs"][0].update(replica=1), "replica"),
    ("jobset.yaml", lambda t: node(t).update(completionMod="Indexed"), "completionMod"),
    ("jobset.yaml", lambda t: node_container(t)["env"][1].update(value="etcd://train-server-1.train-server:2379"), "no train-server-1.train-server"),
    ("jobset.yaml", lambda t: node(t)["podFailurePolicy"]["rules"][1]["onExitCodes"].update(values=[1, 2, 126, 127]), "exit code 5"),
    ("trainer.yaml", lambda t: t[0]["spec"]["mlPolicy"].update(nodes=4), "nodes"),
    ("trainer.yaml", lambda t: t[1]["spec"]["trainer"].update(numNode=4), "numNode"),
    ("trainer.yaml", lambda t: t[1]["spec"].pop("runtimeRef"), "runtimeRef"),
    ("trainer.yaml", lambda t: node_container(t)["env"].append({"name": "PET_RESTARTS", "value": "3"}), "no variable PET_RESTARTS"),
    ("trainer.yaml", lambda t: node(t)["template"]["spec"].pop("terminationGracePeriodSeconds"), "a grace of 30 s"),
    ("serve.yaml", lambda t: container(t, "StatefulSet")["ports"][0].update(containerPort=2380), "listens on 2379"),
    ("serve.yaml", lambda t: container(t, "StatefulSet")["readinessProbe"]["tcpSocket"].update(port="http"), "port http"),
    ("serve.yaml", lambda t: t[1]["spec"]["template"]["spec"]["volumes"][0]["secret"].update(secretName="tls"), "Secret tls"),
    ("gateway-sidecar.yaml", lambda t: t[1]["spec"]["podSelector"]["matchLabels"].update({"a": "b"}), "selects no pod"),
    ("etcd.yaml", lambda t: t[1]["spec"]["selector"]["matchLabels"].update(app="etc"), "PodDisruptionBudget"),
    ("etcd.yaml", lambda t: t[3]["spec"].update(podManagementPolicies="Parallel"), "podManagementPolicies"),
    ("etcd-tls.yaml", lambda t: t[3]["spec"]["template"]["spec"].pop("volumes"), "volumes"),
]


@pytest.mark.parametrize(("name", "plant", "told"), MISTAKES, ids=[f"{one[0]}-{number}" for number, one in enumerate(MISTAKES)])
def test_mistakes_are_found(name, plant, told):
    things = copy.deepcopy(manifests.read(name))
    plant(things)
    found = manifests.problems(things, manifests.comments(name), manifests.RELEASES[-1:])
    assert any(told in text for text in found), found


def test_every_file_is_named_in_the_documentation():
    page = (ROOT / "docs/kubernetes.md").read_text()
    assert [name for name in manifests.FILES if f"`{name}`" not in page] == []


class Machine:
    """Starts pods as processes, each at an address of its own."""

    def __init__(self, folder: pathlib.Path, stack: contextlib.ExitStack):
        self.folder, self._stack = folder, stack
        self._net = f"127.{random.randrange(64, 128)}.{random.randrange(256)}"
        self.addresses: dict[str, str] = {}
        (folder / "train.py").write_text(WORKER)

    def name(self, pods: list[Pod]) -> None:
        for pod in pods:
            self.addresses[pod.dns] = f"{self._net}.{len(self.addresses) + 1}"

    def secrets(self) -> dict[str, pathlib.Path]:
        """Folders with what the Secrets have, by their names: certificates of servers for all addresses, one of a client."""
        # An etcd looks where its peers come from, too.
        names = ",".join(f"IP:{address}" for address in ["127.0.0.1", *self.addresses.values()])
        kinds = {"etcd-server": f"subjectAltName={names}", "rallypoint-server": f"subjectAltName={names}", "etcd-client": ""}
        authority = self.folder / "authority"
        key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        authority.mkdir()
        openssl(authority, f"req -x509 {key} -days 2 -subj /CN=authority -keyout ca.key -out ca.crt")
        for kind, extra in kinds.items():
            folder = self.folder / "secrets" / kind
            folder.mkdir(parents=True)
            (folder / "extensions").write_text(f"extendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n{extra}\n")
            openssl(folder, f"req {key} -subj /CN={kind} -keyout tls.key -out tls.csr")
            signed = f"-CA {authority}/ca.crt -CAkey {authority}/ca.key -CAcreateserial -extfile extensions"
            openssl(folder, f"x509 -req -in tls.csr {signed} -days 2 -out tls.crt")
            (folder / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
            (folder / "password").write_text("secret\n")
        return {kind: self.folder / "secrets" / kind for kind in kinds}

    def start(self, pod: Pod, container: dict) -> subprocess.Popen:
        """The command of a container, with nothing changed but where things are."""
        own = self.addresses[pod.dns]
        home = self.folder / pod.name / container["name"]
        home.mkdir(parents=True)
        places = {"/app/train.py": str(self.folder / "train.py")}
        for mount in container.get("volumeMounts", []):
            volumes = [one for one in pod.spec.get("volumes", []) if one["name"] == mount["name"] and "secret" in one]
            place = self.folder / "secrets" / volumes[0]["secret"]["secretName"] if volumes else home / mount["name"]
            places[mount["mountPath"]] = str(place)
            place.mkdir(exist_ok=True)

        def here(text: str) -> str:
            for name, address in self.addresses.items():
                text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", address, text)
            text = re.sub(r"\b(0\.0\.0\.0|localhost)\b", own, text)
            # In one go: what stands in its place is a path too.
            text = re.sub(rf"(?<![\w/.-])({'|'.join(map(re.escape, places))})(?![\w.-])", lambda found: places[found[1]], text)
            # There are no GPUs here.
            return re.sub(r"^((--nproc-per-node=)?)gpu$", r"\g<1>1", text)

        program, *words = [here(word) for word in pod.command(container)]
        programs = {"rallypoint": [sys.executable, "-m", "rallypoint"], "torchrun": TORCHRUN, "/usr/local/bin/etcd": [ETCD]}
        variables = {name: here(value) for name, value in pod.environment(container).items()}
        if variables.get("PET_NPROC_PER_NODE") == "auto":
            variables["PET_NPROC_PER_NODE"] = "1"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}
        # torchrun tells others the name of its machine, which is not that of a pod here.
        command = [*TIED, *programs[program], *(["--local-addr", own] if program == "torchrun" else []), *words]
        log = self._stack.enter_context(open(home / "log", "w"))
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self._stack.callback(end, process)
        return process

    def log(self, pod: Pod, container: dict) -> str:
        return (self.folder / pod.name / container["name"] / "log").read_text()

    def probe(self, pod: Pod, container: dict, kind: str) -> bool:
        """What a kubelet finds."""
        probe = container[kind]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        own = self.addresses[pod.dns]
        with contextlib.suppress(OSError):
            if "tcpSocket" in probe:
                with socket.create_connection((own, ports[probe["tcpSocket"]["port"]]), timeout=1):
                    return True
            ask = probe["httpGet"]
            with urllib.request.urlopen(f"http://{own}:{ports[ask['port']]}{ask['path']}", timeout=5) as reply:
                return reply.status == 200
        return False

    def up(self, pods: list[Pod]) -> None:
        """Starts pods that serve, and waits until all their probes are content."""
        for pod in pods:
            for container in pod.containers:
                self.start(pod, container)
        for pod in pods:
            for container in pod.containers:
                for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                    if kind in container:
                        wait_until(f"{pod.name}: {kind}", lambda: self.probe(pod, container, kind))

    def meet(self, pods: list[Pod], nodes: int) -> list[str]:
        """Lets the last container of each pod run to its end, and returns what all of them said."""
        processes = [self.start(pod, pod.containers[-1]) for pod in pods]

        def placed() -> bool:
            said = [self.log(pod, pod.containers[-1]) for pod in pods]
            ended = any(process.poll() is not None for process in processes)
            return ended or all(re.search(r"worker \d+ of|standing by", log) for log in said)

        wait_until("all pods have a place", placed)
        (self.folder / "go").touch()
        codes = [process.wait(timeout=120) for process in processes]
        logs = [self.log(pod, pod.containers[-1]) for pod in pods]
        assert codes == [0] * len(pods), "\n".join(logs)
        lines = sorted(line for log in logs for line in re.findall(r"worker \d+ of \d+", log))
        assert lines == [f"worker {rank} of {nodes}" for rank in range(nodes)], "\n".join(logs)
        return logs


def openssl(folder: pathlib.Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], check=True, capture_output=True, cwd=folder)


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def machine(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Machine(tmp_path, stack)


@pytest.mark.parametrize("name", ["job.yaml", "trainer.yaml"])
def test_pods_meet_on_the_first(name, machine):
    pods = manifests.pods(manifests.read(name))
    machine.name(pods)
    logs = machine.meet(pods, 4)
    assert ["starts the embedded server" in log for log in logs] == [True, False, False, False]


def test_racks_of_a_jobset_stay_together(machine):
    pods = manifests.pods(manifests.read("jobset.yaml"))
    machine.name(pods)
    machine.up(pods[:1])
    logs = machine.meet(pods[1:], 4)
    ranks = [int(re.search(r"worker (\d+) of", log)[1]) for log in logs]
    # The nodes of a rack have ranks that follow each other, in the order of their indexes. Which rack is first is open.
    assert ranks in ([0, 1, 2, 3], [2, 3, 0, 1])


def ask(address: str, path: str, body: dict, secret: pathlib.Path) -> None:
    """A request to etcd, with the certificate of a client."""
    context = ssl.create_default_context(cafile=str(secret / "ca.crt"))
    context.load_cert_chain(secret / "tls.crt", secret / "tls.key")
    with urllib.request.urlopen(f"https://{address}:2379{path}", json.dumps(body).encode(), timeout=10, context=context):
        pass


def test_pods_and_a_spare_meet_on_an_etcd_with_tls_and_passwords(machine):
    etcd, pods = manifests.pods(manifests.read("etcd-tls.yaml")), manifests.pods(manifests.read("job-etcd.yaml"))
    machine.name([*etcd, *pods])
    secret = machine.secrets()["etcd-client"]
    machine.up(etcd)
    address = machine.addresses["etcd-0.etcd"]
    # As docs/connecting.md has it, with the password of the Secret.
    ask(address, "/v3/auth/user/add", {"name": "root", "password": "root"}, secret)
    ask(address, "/v3/auth/user/grant", {"user": "root", "role": "root"}, secret)
    ask(address, "/v3/auth/role/add", {"name": "training"}, secret)
    # From rallypoint/ to rallypoint0, in base64: all that begin with it.
    keys = {"permType": "READWRITE", "key": "cmFsbHlwb2ludC8=", "rangeEnd": "cmFsbHlwb2ludDA="}
    ask(address, "/v3/auth/role/grant", {"name": "training", "perm": keys}, secret)
    ask(address, "/v3/auth/user/add", {"name": "trainer", "password": "secret"}, secret)
    ask(address, "/v3/auth/user/grant", {"user": "trainer", "role": "training"}, secret)
    ask(address, "/v3/auth/enable", {}, secret)
    logs = machine.meet(pods, 4)
    assert sum("was not needed" in log for log in logs) == 1


def test_torchrun_with_etcd_v2_meets_through_gateways(machine):
    etcd, pods = manifests.pods(manifests.read("etcd.yaml")), manifests.pods(manifests.read("gateway-sidecar.yaml"))
    # Two of them, since PyTorch takes long to start.
    pods = pods[:2]
    for pod in pods:
        main = pod.containers[-1]
        main["command"] = [word.replace("--nnodes=4", "--nnodes=2") for word in main["command"]]
    machine.name([*etcd, *pods])
    machine.up(etcd)
    for pod in pods:
        machine.start(pod, pod.containers[0])
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            wait_until(kind, lambda: machine.probe(pod, pod.containers[0], kind))
    machine.meet(pods, 2)


def test_the_server_of_a_team_keeps_what_it_has(machine):
    (pod,) = manifests.pods(manifests.read("serve.yaml"))
    machine.name([pod])
    secret = machine.secrets()["etcd-client"]
    machine.up([pod])
    own = machine.addresses[pod.dns]
    context = ssl.create_default_context(cafile=str(secret / "ca.crt"))
    with pytest.raises((ssl.SSLError, urllib.error.URLError, OSError)):
        urllib.request.urlopen(f"https://{own}:2379/health", timeout=5, context=context)
    context.load_cert_chain(secret / "tls.crt", secret / "tls.key")
    with urllib.request.urlopen(f"https://{own}:2379/health", timeout=5, context=context) as reply:
        assert json.load(reply)["health"] == "true"
    assert list((machine.folder / pod.name / "rallypoint/data/data").glob("*.redb"))
