"""From a ticket to a whole group: G plain rollouts, and where all failed, the intervention. Knows no Ray.

Keeps invariants 5 and 7: every seed comes from the ticket, members are in order whatever order they ended in, and a group is
whole or an error. Field bug 6: what triggers the intervention is the outcome bit, never a shaped reward. With AEPO
some of the G are branches of others (rti.control.branching).
"""

from __future__ import annotations

from rti.actors.episodes import EpisodeRunner, Runs
from rti.actors.messages import Order, RootOf, TaskIndex
from rti.algos.replace import replace_failed
from rti.config.schema import Config
from rti.control import branching
from rti.control.concurrency import all_of
from rti.control.order import Ticket
from rti.control.seeds import generator
from rti.control.store import Facts
from rti.trajectory import Group, Trajectory, encode


class GroupMaker:
    """`intervenes`: whether a failed group is run again under intervention (the algorithm says so)."""

    def __init__(self, config: Config, tasks: TaskIndex, episodes: EpisodeRunner, workers: Runs, interveners: Runs,
                 intervenes: bool):
        self._config, self._tasks, self._episodes = config, tasks, episodes
        self._workers, self._interveners, self._intervenes = workers, interveners, intervenes

    async def make(self, ticket: Ticket, admitted_version: int) -> Group:
        task = self._tasks.train[ticket.task]
        size = self._config.rollout.group_size
        balanced = self._config.algo.name == "aepo"
        members = await (self._balanced(ticket, size) if balanced else self._plain(ticket, range(size)))
        group = Group(id=ticket.group_id, task_id=task.id, task_class=task.cls, members=members,
                      admitted_version=admitted_version, rewards_before=[float(m.success) for m in members])
        if not (self._intervenes and group.failed_before):
            return group
        attempts = await self._attempts(ticket)
        stream = generator(self._config.seed, "replace", ticket.epoch, ticket.position, ticket.round)
        return replace_failed(group, attempts, self._config.intervention.replace, stream)

    async def _plain(self, ticket: Ticket, members: range, root: RootOf | None = None) -> list[Trajectory]:
        if not members:
            return []
        return await self._episodes.run(self._workers, self._order(ticket, members, intervened=False, root=root))

    async def _balanced(self, ticket: Ticket, size: int) -> list[Trajectory]:
        """AEPO: the first rollout shows how uncertain the policy is; then whole rollouts, then branches of them, `size` in all.
        What finds no place to branch is a whole rollout."""
        algo = self._config.algo
        members = await self._plain(ticket, range(1))
        whole = branching.whole_rollouts(size, branching.entropies(members[0], algo.branch_tokens), algo.branch_balance)
        members += await self._plain(ticket, range(1, whole))
        stream = generator(self._config.seed, "branch", ticket.epoch, ticket.position, ticket.round)
        sites = branching.sites([branching.entropies(m, algo.branch_tokens) for m in members], size - whole, algo, stream)
        branches = [self._plain(ticket, range(member, member + 1), RootOf(parent=encode(members[site.rollout]), turn=site.turn))
                    for member, site in enumerate(sites, start=whole)]
        rest = self._plain(ticket, range(whole + len(sites), size))
        return members + [m for part in await all_of([*branches, rest]) for m in part]

    async def _attempts(self, ticket: Ticket) -> list[Trajectory]:
        """Intervened rollouts until one succeeds."""
        attempts: list[Trajectory] = []
        for attempt in range(self._config.intervention.attempts):
            order = self._order(ticket, range(attempt, attempt + 1), intervened=True)
            attempts += await self._episodes.run(self._interveners, order)
            if attempts[-1].success:
                break
        return attempts

    def _order(self, ticket: Ticket, members: range, *, intervened: bool, root: RootOf | None = None) -> Order:
        kind = "intervention" if intervened else "rollout"
        return Order(
            group_id=ticket.group_id, split="train", task=ticket.task, task_id=self._tasks.train[ticket.task].id,
            members=tuple(members), seeds=tuple(ticket.seed(self._config.seed, kind, m) for m in members),
            temperature=self._config.rollout.temperature, intervened=intervened, root=root)


def facts_of(group: Group, idle: str = "", reuse: int = 1) -> Facts:
    """What buffer and plan need to know of a group. Versions are over the tokens that train. `idle`: why it teaches nothing.
    `reuse`: how many steps may consume a group that was rescued; any other is for one."""
    newest = max((int(s.versions.max(initial=-1)) for m in group.members for s in m.samples), default=-1)
    return Facts(group.id, group.admitted_version, group.oldest_version, max(newest, group.oldest_version),
                 idle, reuse if group.replaced is not None and not idle else 1)
