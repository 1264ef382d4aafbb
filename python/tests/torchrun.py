"""Agents of torchrun as processes, and what their workers say."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import uuid

from forked import Forked
from support import states, wait_until
from torch.distributed.elastic.rendezvous import registry

# An older torch does not look for backends of other packages by itself.
FINDS_BACKENDS = hasattr(registry, "_register_out_of_tree_handlers")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run" if FINDS_BACKENDS else "rallypoint.torchrun"]
TRAIN = pathlib.Path(__file__).parent / "train.py"


class Agent:
    """One torchrun, with one worker that trains."""

    def __init__(self, job: Job, name: str, backend: str, options: dict[str, str]):
        self.name = name
        self._said = job.folder / name
        self._errors = job.folder / f"{name}.errors"
        flags = {
            "nnodes": job.nnodes,
            "nproc-per-node": "1",
            "max-restarts": "10",
            "monitor-interval": "0.1",
            "rdzv-backend": backend,
            "rdzv-endpoint": job.endpoint,
            "rdzv-id": job.run_id,
            "local-addr": "127.0.0.1",
            **options,
        }
        arguments = [*(f"--{key}={flags[key]}" for key in flags), str(job.script), str(job.folder)]
        environment = {**os.environ, "NODE": name, "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO"}
        self.process = Forked(TORCHRUN[-1], arguments, environment, self._errors)

    def said(self, what: str) -> list[dict]:
        """What its workers said, one after the other."""
        if not self._said.exists():
            return []
        # What is after the last of these is still being written.
        whole = self._said.read_text().rpartition("\n")[0]
        lines = (json.loads(line) for line in whole.splitlines())
        return [line for line in lines if line["what"] == what]

    def errors(self) -> str:
        return self._errors.read_text()

    def kill(self) -> None:
        """As if the machine were gone."""
        self.process.kill()
        self.process.wait()


class Job:
    """The agents of one run."""

    def __init__(
        self,
        folder: pathlib.Path,
        endpoint: str,
        nnodes: str,
        backend: str = "rallypoint",
        conf: str = "",
        script: pathlib.Path = TRAIN,
    ):
        self.folder, self.endpoint, self.nnodes, self._backend = folder, endpoint, nnodes, backend
        self.script = script
        self._options = {"rdzv-conf": conf} if conf else {}
        self.run_id = uuid.uuid4().hex
        self.agents: list[Agent] = []

    def start(self, name: str, backend: str | None = None, **options: str) -> Agent:
        agent = Agent(self, name, backend or self._backend, {**self._options, **options})
        self.agents.append(agent)
        return agent

    def wait_for(self, what: str, condition) -> None:
        """Waits until the condition is true, and says what the agents said where it never is."""
        try:
            wait_until(what, condition, seconds=120)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report()}") from None

    def wait_until_all_work(self, agents: list[Agent], after: dict[Agent, int] | None = None) -> None:
        """Waits until these agents, and no others, are one group at work; later than the moment ``after``."""

        def they_work() -> bool:
            rounds = [agent.said("works")[(after or {}).get(agent, 0) :] for agent in agents]
            worlds = [said[-1] for said in rounds if said and said[-1]["world"] == len(agents)]
            return sorted(said["rank"] for said in worlds) == list(range(len(agents)))

        self.wait_for(f"{[agent.name for agent in agents]} work", they_work)

    def wait_until_all_go_on(self, agents: list[Agent]) -> None:
        """Waits until the workers of these agents have made more steps, which are the same workers."""
        before = {agent: (len(agent.said("met")), len(agent.said("goes on"))) for agent in agents}

        def they_go_on() -> bool:
            return all(len(agent.said("goes on")) >= steps + 2 for agent, (_, steps) in before.items())

        self.wait_for(f"{[agent.name for agent in agents]} go on", they_go_on)
        assert [len(agent.said("met")) for agent in agents] == [met for met, _ in before.values()], self.report()

    def states(self) -> list[str]:
        """What the nodes of the run are, as an operator is told: joining, member, spare and so on."""
        return states(self.endpoint, self.run_id)

    def now(self) -> dict[Agent, int]:
        """A moment for :meth:`wait_until_all_work`."""
        return {agent: len(agent.said("works")) for agent in self.agents}

    def wait_until_all_end(self, agents: list[Agent]) -> None:
        self.wait_for("the agents end", lambda: all(agent.process.poll() is not None for agent in agents))

    def finish(self, agents: list[Agent]) -> None:
        """Lets these agents finish; all of them must do so with success."""
        (self.folder / "stop").touch()
        self.wait_until_all_end(agents)
        assert [agent.process.returncode for agent in agents] == [0] * len(agents), self.report()
        assert all(len(agent.said("done")) == 1 for agent in agents), self.report()

    def stop(self) -> None:
        for agent in self.agents:
            agent.kill()

    def report(self) -> str:
        return "\n".join(f"--- {agent.name}, {agent.process.poll()}:\n{agent.errors()}" for agent in self.agents)
