"""The official checkout: what of its code RTI uses, which of its tasks can run here, and the task set of those.

Nothing of the checkout is copied or changed; a user names it by env.claw_eval.home or the environment variable CLAW_EVAL_HOME.
Keeps: what cannot run (it needs the internet, a container, an image, a file that is not there, a judge) is said with its reason
before a run starts, never by a failed episode. Text-only tasks: those whose name begins with T.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, NamedTuple, Sequence

import msgspec
import yaml

from rti.config.schema import ClawEvalConfig, EndpointConfig
from rti.envs.base import FatalEnvironmentError, Task
from rti.envs.claw_eval.judge import Chat, Judge, judge_of

VARIABLE = "CLAW_EVAL_HOME"
MEND = (f"mend: set env.claw_eval.home or {VARIABLE} to a checkout of github.com/claw-eval/claw-eval, and pip install fastapi "
        f"httpx openai pydantic pyyaml")


class Official(NamedTuple):
    """The modules of the checkout that RTI uses."""

    task: ModuleType        # TaskDefinition
    content: ModuleType     # TextBlock, ToolUseBlock, ToolResultBlock
    message: ModuleType     # Message
    trace: ModuleType       # TraceStart, TraceMessage, ToolDispatch, AuditSnapshot, TraceEnd, GradingResult
    scoring: ModuleType     # compute_task_score, is_pass
    registry: ModuleType    # get_grader
    llm_judge: ModuleType   # LLMJudge
    prompt: ModuleType      # build_system_prompt
    config: ModuleType      # PromptConfig
    writer: ModuleType      # TraceWriter


_MODULES = Official(
    task="models.task", content="models.content", message="models.message", trace="models.trace", scoring="models.scoring",
    registry="graders.registry", llm_judge="graders.llm_judge", prompt="runner.system_prompt", config="config",
    writer="trace.writer")


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A task of the checkout. `reason` says why it cannot run here, "" where it can. `judged`: its grader asks a judge."""

    id: str
    category: str
    difficulty: str
    judged: bool
    reason: str


def home_of(named: str = "") -> Path:
    """The checkout's folder. Raises FatalEnvironmentError where none is named, or what is named is none."""
    name = named or os.environ.get(VARIABLE, "")
    if not name:
        raise FatalEnvironmentError(f"the official Claw-Eval tasks need a checkout, and none is named; {MEND}")
    home = Path(name).expanduser().resolve()
    if not (home / "src" / "claw_eval").is_dir() or not (home / "tasks").is_dir():
        raise FatalEnvironmentError(f"{name} is no checkout of Claw-Eval (it has no src/claw_eval and tasks); {MEND}")
    return home


def load(home: Path) -> Official:
    """The checkout's modules. One process uses one checkout. Raises FatalEnvironmentError where they cannot be imported."""
    source = str(home / "src")
    if source not in sys.path:      # graders import claw_eval by name; a plain install would not find its tasks
        sys.path.insert(0, source)
    try:
        found = Official(*(importlib.import_module(f"claw_eval.{name}") for name in _MODULES))
    except ImportError as fault:
        raise FatalEnvironmentError(f"the official code of Claw-Eval cannot be imported: {fault}; {MEND}") from fault
    used = Path(found.task.__file__).resolve()
    if not used.is_relative_to(home):
        raise FatalEnvironmentError(f"this process already uses another Claw-Eval than {home}: {used}; mend: uninstall that, "
                                    f"or use one checkout in a run")
    return found


# --- which tasks can run -----------------------------------------------------------------------------------------
def list_tasks(home: str | Path = "") -> list[Listed]:
    """All text-only tasks in the order of their names, with what keeps one from running. Imports nothing of the checkout."""
    folder = home_of(str(home))
    return [_listed(folder, path) for path in _folders(folder)]


def _folders(home: Path) -> list[Path]:
    return sorted(p.parent for p in (home / "tasks").glob("T*/task.yaml"))


def _listed(home: Path, folder: Path) -> Listed:
    try:
        task = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))
        return Listed(id=str(task["task_id"]), category=str(task.get("category", "")),
                      difficulty=str(task.get("difficulty", "")), judged=_asks_judge(home, folder),
                      reason=_reason(home, folder, task))
    except (OSError, yaml.YAMLError, KeyError, TypeError) as fault:
        return Listed(id=folder.name, category="", difficulty="", judged=False,
                      reason=f"its files cannot be read ({type(fault).__name__}: {' '.join(str(fault).split())[:120]})")


def _asks_judge(home: Path, folder: Path) -> bool:
    """Whether the grader, or the one of the other language that it inherits from, calls a judge."""
    source = (folder / "grader.py").read_text(encoding="utf-8")
    for peer in re.findall(r"load_peer_grader\(\s*[\"']([^\"']+)", source):
        source += (home / "tasks" / peer / "grader.py").read_text(encoding="utf-8")
    return bool(re.search(r"\bjudge\.(evaluate|client)", source))


def _reason(home: Path, folder: Path, task: dict[str, Any]) -> str:
    services, endpoints = task.get("services") or [], {e["tool_name"] for e in task.get("tool_endpoints") or []}
    if any("web_real" in s["command"] for s in services):
        return "needs the internet (a real web search)"
    sandboxed = (task.get("environment") or {}).get("sandbox_tools")
    if sandboxed or task.get("env_snapshot_commands") or task.get("env_snapshot_files"):
        return "needs the official container (its tools run commands)"
    if task.get("user_agent"):
        return "needs the official simulated user"
    if missing := _missing(home, folder, task):
        return f"a file is missing from the checkout: {missing[0]}"
    if task["prompt"].get("attachments"):
        return "has an attachment, which a text-only agent is not given"
    if without := [t["name"] for t in task.get("tools") or [] if t["name"] not in endpoints]:
        return f"needs the official container (no service answers its tool {without[0]})"
    if any(float((s.get("env") or {}).get("ERROR_RATE", 0)) for s in services):
        return "asks its services for random errors, which would not be the same in two runs of one seed"
    return ""


def _missing(home: Path, folder: Path, task: dict[str, Any]) -> list[str]:
    """Files without which the task cannot be done as it is meant: what services load, and what the prompt attaches."""
    wanted: list[Path] = [folder / name for name in task["prompt"].get("attachments") or []]
    for service in task.get("services") or []:
        env = {k: str(v) for k, v in (service.get("env") or {}).items()}
        wanted += [home / service["command"].split()[-1], *(home / v for k, v in env.items() if "/" in v)]
        if "documents" in service["command"]:
            wanted += [folder / name for name in task.get("sandbox_files") or []]
        if texts := env.get("OCR_FILENAMES") or env.get("OCR_FILENAME"):
            wanted += [home / env["OCR_FIXTURES"] / "ocr" / name.strip() for name in texts.split(",")]
    return [os.path.relpath(p, home) for p in wanted if not p.exists()]


# --- the task set ------------------------------------------------------------------------------------------------
def evidence_of(definition: Any) -> dict[str, Any]:
    """What graders know and the agent must not: for Validator, Corrector and Verifier alone."""
    return {"rubric": definition.judge_rubric, "reference": definition.reference_solution,
            "components": [c.model_dump(exclude_none=True) for c in definition.scoring_components],
            "safety": [c.model_dump(exclude_none=True) for c in definition.safety_checks],
            "actions": [a.model_dump() for a in definition.expected_actions]}


class OfficialTaskSet:
    """See rti.envs.base.TaskSet. `test` holds the tasks that can run here: all but those that `list_tasks` gives a reason for,
    and without a judge only those that need none. `train` is empty: these are the benchmark's own tasks.

    `traces`: a folder for traces in the official form, "" for none. `chat`: the judge's client, closed with the task set."""

    train: Sequence[Task] = ()

    def __init__(self, home: str = "", judge: Judge | None = None, traces: str = "", chat: Any = None) -> None:
        self.home = home_of(home)
        self.modules, self._judge, self._traces, self._chat = load(self.home), judge, traces, chat
        runs = {t.id for t in list_tasks(self.home) if not t.reason and (judge is not None or not t.judged)}
        found = [self._task(folder) for folder in _folders(self.home)]
        self.test = [t for t in found if t.id in runs]
        if not self.test:
            raise FatalEnvironmentError(f"no task of {self.home} can run here; mend: see launch/data.py claw-eval list")

    def _task(self, folder: Path) -> Task:
        try:
            definition = self.modules.task.TaskDefinition.from_yaml(folder / "task.yaml")
        except (OSError, ValueError, yaml.YAMLError):
            return Task(id=folder.name, data={})        # listed with its reason, and so not among `test`
        return Task(id=definition.task_id, cls=definition.category, evidence=evidence_of(definition),
                    data={"folder": folder.name, "split": "test", "max_turns": definition.environment.max_turns})

    def make(self) -> Any:
        from rti.envs.claw_eval.official_environment import OfficialEnvironment
        return OfficialEnvironment(self.home, self.modules, self._judge, self._traces)

    async def close(self) -> None:
        if self._chat is not None:
            await self._chat.close()


def official_task_set(config: ClawEvalConfig, connect: Callable[[EndpointConfig, str], Chat] | None) -> OfficialTaskSet:
    """The official tasks as a configuration names them. `connect` makes the client of the judge, where one is configured."""
    wanted = config.judged_by == "endpoint" and config.judge.base_url and connect is not None
    chat = connect(config.judge, "judge") if wanted else None
    return OfficialTaskSet(config.home, judge_of(config.judged_by, chat, config.judge.model), config.traces, chat)


def describe(listed: Sequence[Listed]) -> str:
    """A table for people, and the counts by reason."""
    runs = [t for t in listed if not t.reason]
    lines = [f"{t.id:<44} {t.category:<20} {'judge' if t.judged else '':<6} {t.reason or 'runs'}" for t in listed]
    return "\n".join([*lines, "", f"{len(runs)} of {len(listed)} text-only tasks run here, "
                                  f"{sum(not t.judged for t in runs)} of them without a judge."])
