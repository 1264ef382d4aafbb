"""Real torchrun, real training on gloo, agents really killed."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest
from support import Cluster, events, free_ports, status
from torchrun import Job

# A lease that nobody misses who only has to wait for a processor.
QUICK = "last_call_timeout=1,lease_timeout=5"


@pytest.fixture
def job(tmp_path):
    jobs = []

    def make(*args, **kwargs) -> Job:
        jobs.append(Job(tmp_path, *args, **kwargs))
        return jobs[-1]

    yield make
    for made in jobs:
        made.stop()


@pytest.fixture
def cluster():
    cluster = Cluster(3)
    yield cluster
    cluster.stop()


def test_agents_meet_where_nothing_listened_before(job):
    """No etcd anywhere: the first agent starts the embedded server, as with c10d."""
    run = job(f"127.0.0.1:{free_ports(1)[0]}", "2", conf=QUICK)
    agents = [run.start("a"), run.start("b")]
    run.wait_until_all_work(agents)
    run.finish(agents)
    assert [[met["agent_store"] for met in agent.said("met")] for agent in agents] == [["True"], ["True"]], run.report()
    # One of them has the server, and outlives the other.
    assert sum("starts the embedded server" in agent.errors() for agent in agents) == 1, run.report()
    assert "WARN" not in run.report(), run.report()


def test_the_rest_goes_on_without_a_killed_agent_and_a_killed_etcd(job, cluster):
    run = job(cluster.endpoint, "2:3", conf=QUICK)
    agents = [run.start(name) for name in "abc"]
    run.wait_until_all_work(agents)
    # The etcd first, and the worst one: nobody notices.
    cluster.kill(cluster.leader)
    run.wait_until_all_go_on(agents)
    before = run.now()
    dead, *rest = sorted(agents, key=lambda agent: agent.said("works")[-1]["rank"])
    dead.kill()
    run.wait_until_all_work(rest, before)
    run.finish(rest)
    # Their workers may have failed before anybody knew why.
    assert all(re.search(r"node 0 \(.*\) died", agent.errors()) for agent in rest), run.report()


def test_a_late_agent_is_taken_in(job, etcd):
    run = job(etcd, "1:2", conf=QUICK)
    first = run.start("first")
    run.wait_until_all_work([first])
    late = run.start("late")
    run.wait_until_all_work([first, late])
    # A change of the group is no failure of the workers, and costs no restart.
    assert [said["restarts"] for said in first.said("met")] == [0, 0], run.report()
    run.finish([first, late])


def test_a_spare_disturbs_nobody_until_it_takes_over_also_where_workers_meet_through_proxies(job, etcd):
    run = job(etcd, "2", conf=f"{QUICK},worker_store=proxy")
    members = [run.start("a"), run.start("b")]
    run.wait_until_all_work(members)
    spare = run.start("spare")
    run.wait_for("the spare stands by", lambda: run.states() == ["member", "member", "spare"])
    run.wait_until_all_go_on(members)
    before = run.now()
    dead, rest = sorted(members, key=lambda agent: agent.said("works")[-1]["rank"])
    assert [len(agent.said("met")) for agent in members] == [1, 1], run.report()
    dead.kill()
    run.wait_until_all_work([rest, spare], before)
    # It took the dead one's rank; the other kept its own.
    assert (spare.said("met")[-1]["rank"], rest.said("met")[-1]["rank"]) == (0, 1), run.report()
    # Each worker meets the others at its own agent.
    entrances = [(met["master"], met["port"]) for agent in run.agents for met in agent.said("met")]
    assert {master for master, _ in entrances} == {"127.0.0.1"} and len(set(entrances)) == 4, entrances
    run.finish([rest, spare])
    assert re.search(r"node 0 \(.*\) died", rest.errors()), run.report()


def is_alive(pid: int) -> bool:
    """One that has ended, and that nobody has asked for yet, is not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.long
def test_a_spare_that_was_not_needed_ends_well(job, etcd):
    run = job(etcd, "2", conf=QUICK)
    agents = [run.start("a"), run.start("b")]
    run.wait_until_all_work(agents)
    spare = run.start("c")
    run.wait_for("the spare stands by", lambda: run.states() == ["member", "member", "spare"])
    run.finish(agents)
    assert spare.process.wait(timeout=60) == 0, run.report()
    assert "Error" not in spare.errors() and "was not needed" in spare.errors(), run.report()


def test_an_operators_close_ends_the_workers_of_all_nodes_and_says_why(job, etcd):
    run = job(etcd, "2", conf=QUICK)
    agents = [run.start("a"), run.start("b")]
    run.wait_until_all_work(agents)
    close = [sys.executable, "-m", "rallypoint", "close", run.run_id, "--reason", "maintenance", "--endpoint", etcd]
    subprocess.run(close, check=True, timeout=60)
    run.wait_until_all_end(agents)
    for agent in agents:
        assert agent.process.returncode == 1, run.report()
        assert re.search(r"RendezvousClosedError: run '?\"?\w+'?\"? is closed: maintenance", agent.errors()), run.report()
        # Nobody was started again for it, and nobody is left.
        (worker,) = agent.said("met")
        run.wait_for("its worker is gone", lambda pid=worker["pid"]: not is_alive(pid))
    assert status(etcd, run.run_id)["closed"] == "maintenance"


def test_when_the_agent_with_the_server_is_told_to_end_the_others_end_and_say_why(job):
    run = job(f"127.0.0.1:{free_ports(1)[0]}", "2", conf=QUICK)
    agents = [run.start("a"), run.start("b")]
    run.wait_until_all_work(agents)
    guest, host = sorted(agents, key=lambda agent: "starts the embedded server" in agent.errors())
    host.process.terminate()
    run.wait_until_all_end(agents)
    assert guest.process.returncode == 1, run.report()
    assert "the server that the nodes had met on" in guest.errors(), run.report()


@pytest.mark.parametrize("backend", ["rallypoint", pytest.param("rallypoint-etcd", marks=pytest.mark.long)])
def test_an_agent_at_work_says_that_etcd_does_not_answer_and_works_on(job, backend):
    cluster = Cluster(1)
    try:
        run = job(cluster.endpoint, "1", backend)
        agent = run.start("a")
        run.wait_until_all_work([agent])
        cluster.processes[0].send_signal(signal.SIGSTOP)
        words = f"etcd at {cluster.endpoint} has not answered for"
        run.wait_for("it is told", lambda: words in agent.errors())
        run.wait_until_all_go_on([agent])
        cluster.processes[0].send_signal(signal.SIGCONT)
        run.wait_for("its return is told", lambda: "answers again" in agent.errors())
        run.finish([agent])
    finally:
        cluster.stop()


FAIL = """
import os, pathlib, signal, sys, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main(folder):
    node = os.environ["NODE"]
    (folder / f"{node}.pid").write_text(str(os.getpid()))
    while True:
        time.sleep(0.02)
        if node == "fails" and (folder / "fail").exists():
            what = (folder / "fail").read_text()
            if what == "raise":
                raise ValueError("no data\\nat all")
            os.kill(os.getpid(), signal.SIGKILL)

main(pathlib.Path(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "exit code 1: ValueError: no data"),
        pytest.param("kill", "signal 9 (SIGKILL)", marks=pytest.mark.long),
    ],
)
def test_a_failed_run_is_closed_in_the_words_of_the_failure(job, etcd, tmp_path, how, words):
    script = tmp_path / "fail.py"
    script.write_text(FAIL)
    run = job(etcd, "2", conf=QUICK, script=script)
    agents = [run.start("fails", **{"max-restarts": "0"}), run.start("other")]
    pids = [tmp_path / f"{agent.name}.pid" for agent in agents]
    run.wait_for("the workers run", lambda: all(file.exists() and file.read_text() for file in pids))
    (tmp_path / "fail").write_text(how)
    run.wait_until_all_end(agents)
    assert [agent.process.returncode for agent in agents] == [1, 1], run.report()
    closed = status(etcd, run.run_id)["closed"]
    assert re.fullmatch(rf"rank [01] on {re.escape(socket.gethostname())}-[0-9.]+(-\d+)? failed with {re.escape(words)}", closed), closed
    # What happened, for operators.
    failed = [event for event in events(etcd, run.run_id) if event["event"] == "failed"]
    assert [(event["round"], event["text"]) for event in failed] == [(1, closed)], failed
    assert how == "kill" or "raise ValueError" in failed[0]["traceback"], failed
    # The other node did not know of it; it has stopped its workers, and says why.
    assert f"is closed: {closed}" in agents[1].errors(), run.report()
    run.wait_for("the workers are gone", lambda: not any(is_alive(int(file.read_text())) for file in pids))


ECHO = """
import os, pathlib, sys, time

folder = pathlib.Path(sys.argv[1])
node, agent = os.environ["NODE"], os.getppid()


def is_watched():
    infos = [pathlib.Path(f"/proc/{agent}/fdinfo", name) for name in os.listdir(f"/proc/{agent}/fdinfo")]
    return any(f"Pid:\\t{os.getpid()}\\n" in info.read_text() for info in infos if info.exists())


def has_ended(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] == "Z"
    except OSError:
        return True


while not is_watched():
    time.sleep(0.02)
(folder / f"{node}.watched").touch()
if node == "fails":
    while not (folder / "other.watched").exists():
        time.sleep(0.02)
    (folder / "fails.pid").write_text(str(os.getpid()))
    sys.exit(7)
while not (folder / "fails.pid").exists() or not has_ended((folder / "fails.pid").read_text()):
    time.sleep(0.02)
sys.exit(1)
"""


def test_all_nodes_name_the_first_failure_and_not_the_one_that_was_seen_first(job, etcd, tmp_path):
    """A worker that fails takes those of other nodes with it, whose agents may see that before its own looks again."""
    script = tmp_path / "echo.py"
    script.write_text(ECHO)
    run = job(etcd, "2", conf=QUICK, script=script)
    options = {"max-restarts": "0"}
    agents = [run.start("fails", **options, **{"monitor-interval": "2"}), run.start("other", **options)]
    run.wait_until_all_end(agents)
    assert [agent.process.returncode for agent in agents] == [1, 1], run.report()
    closed = status(etcd, run.run_id)["closed"]
    assert re.fullmatch(rf"rank [01] on {re.escape(socket.gethostname())}-[0-9.]+(-\d+)? failed with exit code 7", closed), closed
    words = f"what failed here followed from this: {closed}"
    assert [words in agent.errors() for agent in agents] == [False, True], run.report()


ATTEMPTS = """
import os, pathlib, sys, time

folder = pathlib.Path(sys.argv[1])
attempts = folder / (os.environ["NODE"] + ".attempts")
with attempts.open("a") as file:
    file.write(os.environ["TORCHELASTIC_RESTART_COUNT"] + "\\n")
if len(attempts.read_text().split()) > 1:
    while not (folder / "stop").exists():
        time.sleep(0.02)
    sys.exit(0)
"""


@pytest.mark.parametrize(("echoes", "costs"), [(True, [1, 1]), (False, [1, 0])])
def test_a_failure_costs_its_node_a_restart_and_others_only_where_their_own_workers_fail_with_it(
    job, etcd, tmp_path, echoes, costs
):
    """torchrun counts what fails on its node, whatever came first: ours cannot give it back, and this is the limit."""
    script = tmp_path / "attempts.py"
    first = ECHO if echoes else ECHO.replace("sys.exit(1)", "time.sleep(600)")
    script.write_text(ATTEMPTS + first)
    run = job(etcd, "2", conf=QUICK, script=script)
    # The one whose worker fails first is the one that sees it last.
    agents = [run.start("fails", **{"monitor-interval": "2"}), run.start("other")]
    attempts = [tmp_path / f"{agent.name}.attempts" for agent in agents]

    def they_work_again() -> bool:
        return all(file.exists() and len(file.read_text().split()) == 2 for file in attempts)

    run.wait_for("both work again", they_work_again)
    (tmp_path / "stop").touch()
    run.wait_until_all_end(agents)
    assert [agent.process.returncode for agent in agents] == [0, 0], run.report()
    assert [file.read_text().split() for file in attempts] == [["0", str(cost)] for cost in costs], run.report()


WORK = """
import ctypes, os, pathlib, signal, sys, time

ctypes.CDLL(None).prctl(1, signal.SIGKILL)
folder = pathlib.Path(sys.argv[1])
name = os.environ["NODE"] + "." + os.environ["WORLD_SIZE"]
(folder / f"{name}.works").touch()
while not (folder / f"{name}.stop").exists():
    time.sleep(0.02)
"""


def wait_until_works(run, folder, names: list[str]) -> None:
    run.wait_for(f"{names} work", lambda: all((folder / f"{name}.works").exists() for name in names))


def let_finish(run, folder, agents) -> None:
    """Waits until all three work, and these are done."""
    wait_until_works(run, folder, ["done.3", "other.3", "dies.3"])
    for agent in agents:
        (folder / f"{agent.name}.3.stop").touch()
    waits = "Waiting 300 seconds for other agents"
    run.wait_for("it has finished", lambda: all(waits in agent.errors() for agent in agents))


@pytest.mark.parametrize("works_on", [pytest.param(False, marks=pytest.mark.long), True])
def test_who_has_finished_does_not_wait_for_the_dead(job, etcd, tmp_path, works_on):
    """torchrun itself waits for five minutes."""
    script = tmp_path / "work.py"
    script.write_text(WORK)
    run = job(etcd, "1:3", conf=QUICK, script=script)
    done, other, dies = (run.start(name) for name in ("done", "other", "dies"))
    finished = [done] if works_on else [done, other]
    let_finish(run, tmp_path, finished)
    dies.kill()
    run.wait_until_all_end(finished)
    if works_on:
        # The run is not over for the one that goes on without it.
        wait_until_works(run, tmp_path, ["other.1"])
        (tmp_path / "other.1.stop").touch()
        run.wait_until_all_end([other])
    assert [agent.process.returncode for agent in (done, other)] == [0, 0], run.report()
    words = "asks for another round" if works_on else r"node \d \(.*\) died"
    assert all(re.search(f"not waited for: .*{words}", agent.errors()) for agent in finished), run.report()
    assert status(etcd, run.run_id)["closed"] == "a node has finished"


@pytest.mark.parametrize("nnodes", ["2:3", pytest.param("3", marks=pytest.mark.long)])
def test_who_has_finished_closes_a_run_only_if_nobody_can_go_on(job, etcd, tmp_path, nnodes):
    """One that works waits for another in the place of the dead; where that is not enough it is told who died."""
    script = tmp_path / "work.py"
    script.write_text(WORK)
    run = job(etcd, nnodes, conf=QUICK, script=script)
    done, other, dies = (run.start(name) for name in ("done", "other", "dies"))
    let_finish(run, tmp_path, [done])
    dies.kill()
    run.wait_until_all_end([done])
    assert done.process.returncode == 0, run.report()
    if nnodes == "3":
        run.wait_until_all_end([other])
        words = r"node \d \(.*\) died, and too few nodes are left for another round, as node \d has finished"
        assert re.search(f"RendezvousClosedError: .* is closed: {words}", other.errors()), run.report()
        return
    comes = run.start("comes")
    wait_until_works(run, tmp_path, ["other.2", "comes.2"])
    for agent in (other, comes):
        (tmp_path / f"{agent.name}.2.stop").touch()
    run.wait_until_all_end([other, comes])
    assert [agent.process.returncode for agent in (other, comes)] == [0, 0], run.report()


@pytest.mark.parametrize("backend", [None, pytest.param("rallypoint-etcd", marks=pytest.mark.long)])
def test_standalone_is_one_machine_on_a_server_of_its_own(tmp_path, backend):
    """torchrun's own option is c10d whatever the backend, which a plugin cannot change."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier();"
        "print(f'rank {dist.get_rank()} of {dist.get_world_size()}')"
    )
    named = [f"--rdzv-backend={backend}"] if backend else []
    command = [sys.executable, "-m", "rallypoint.torchrun", "--standalone", *named, "--nproc-per-node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert sorted(re.findall(r"rank \d of \d", ran.stdout)) == ["rank 0 of 2", "rank 1 of 2"]
    assert "this node meets itself, on an embedded server" in ran.stderr, ran.stderr
    assert re.search(rf"rdzv_backend\s*: {backend or 'rallypoint'}\n", ran.stderr), ran.stderr


def test_standalone_with_a_backend_of_torchs_is_torchruns():
    from rallypoint import torchrun

    args = torchrun.parse_args(["--standalone", "--rdzv-backend=c10d", "train.py"])
    assert (args.standalone, args.rdzv_backend) == (True, "c10d")


@pytest.mark.parametrize("theirs", ["etcd", pytest.param("etcd-v2", marks=pytest.mark.long)])
def test_agents_of_pytorchs_own_backends_are_met(job, etcd, theirs):
    pytest.importorskip("etcd")
    run = job(etcd, "2")
    agents = [run.start("theirs", theirs), run.start("ours", f"rallypoint-{theirs}")]
    run.wait_until_all_work(agents)
    run.finish(agents)
