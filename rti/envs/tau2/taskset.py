"""The task set of τ²-Bench: tasks through the official models, and environments over one shared domain.

Keeps: everything that can be known to be wrong (no package, no data, no endpoint, no key, no judge) is said when the task set
is made, before a run starts anything.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

from rti.config.schema import EndpointConfig, Tau2Config
from rti.envs.base import FatalEnvironmentError, Task
from rti.envs.tau2.dialogue import Limits
from rti.envs.tau2.domain import Domain, load_domain
from rti.envs.tau2.environment import Tau2Environment
from rti.envs.tau2.evidence import evidence_of
from rti.envs.tau2.judge import Chat, Judge, Unjudged
from rti.envs.tau2.simulator import SimulatedUsers
from rti.envs.tau2.tasks.source import training_tasks
from rti.envs.tau2.user import UserMaker

Connect = Callable[[EndpointConfig, str], Chat]
"""Makes the client of an endpoint for a role ("user", "judge"); it raises where the configuration cannot be used."""

OFFICIAL_STEPS, OFFICIAL_ERRORS = 200, 10


def rti_task(domain: Domain, task: Any, split: str = "train", db: str = "") -> Task:
    """An official Task as RTI's. `db`: the database snapshot that the task belongs to, "" for the domain's own."""
    data = {"domain": domain.name, "task": task.model_dump(mode="json", exclude_none=True), "split": split, "db": db}
    return Task(id=task.id, cls=task_class(domain.name, task.id), data=data, evidence=evidence_of(domain, task))


def task_class(domain: str, id: str) -> str:
    """Telecom's families, which its ids begin with ("[mms_issue]..."); "" elsewhere."""
    return id[1:id.index("]")] if domain == "telecom" and id.startswith("[") and "]" in id else ""


def limits_of(config: Tau2Config) -> Limits:
    if config.profile == "official":
        return Limits(turns=OFFICIAL_STEPS, steps=OFFICIAL_STEPS, errors=OFFICIAL_ERRORS)
    return Limits(turns=config.max_turns, steps=OFFICIAL_STEPS, errors=0)


class Tau2TaskSet:
    """See rti.envs.base.TaskSet. `test` is the base split, as in the paper; `train` what env.tau2 says."""

    def __init__(self, config: Tau2Config, connect: Connect | None = None) -> None:
        self.config = config
        self.domain = load_domain(config.domain, config.data_dir)
        self.test = [rti_task(self.domain, t, "test") for t in self.domain.tasks("base")]
        self._chats: list[Any] = []
        self._connector = connect
        self._users = self._make_users(connect)
        self._judge: Judge | Unjudged | None = None
        self._provide_judge(self.test)

    def make(self) -> Tau2Environment:
        return Tau2Environment(self._domain_of, self.domain.tools, self._users, limits_of(self.config), self._judge)

    async def close(self) -> None:
        for chat in self._chats:
            await chat.close()

    def _domain_of(self, task: Task) -> Domain:
        return load_domain(self.config.domain, self.config.data_dir, task.data.get("db", ""))

    @functools.cached_property
    def train(self) -> Sequence[Task]:
        tasks = [rti_task(self.domain, task, db=db) for task, db in training_tasks(self.domain, self.config.tasks)]
        self._provide_judge(tasks)
        return tasks

    def _make_users(self, connect: Connect | None) -> UserMaker:
        config = self.config
        if config.user == "scripted":
            from rti.envs.tau2.scripted import ScriptedUsers
            return ScriptedUsers(self.domain)
        return SimulatedUsers(self._connect(connect, config.user_endpoint, "user"), self.domain.data, config.user_temperature,
                              config.user_max_tokens)

    def _provide_judge(self, tasks: Sequence[Task]) -> None:
        """Make the judge where one of `tasks` needs it, so that its absence is said before an episode."""
        if self._judge is None and any("NL_ASSERTION" in t.evidence["reward_basis"] and t.evidence["nl_assertions"]
                                       for t in tasks):
            skip = self.config.nl_assertions == "skip"
            self._judge = Unjudged() if skip else Judge(self._connect(self._connector, self.config.judge, "judge"))

    def _connect(self, connect: Connect | None, endpoint: EndpointConfig, role: str) -> Chat:
        key = {"user": "user_endpoint", "judge": "judge"}[role]
        instead = {"user": "env.tau2.user=scripted", "judge": "env.tau2.nl_assertions=skip"}[role]
        if not endpoint.base_url or not endpoint.model or connect is None:
            raise FatalEnvironmentError(f"{self.config.domain} needs a language model for the {role}, and there is none; mend: "
                                        f"set env.tau2.{key}.base_url and .model to an OpenAI-compatible service, or {instead}")
        chat = connect(endpoint, role)
        self._chats.append(chat)
        return chat
