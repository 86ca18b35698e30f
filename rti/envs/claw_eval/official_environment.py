"""One episode of an official Claw-Eval task: the official prompt, dispatcher's semantics, grader, formula and trace.

Keeps: evidence never enters a message (invariant 4); services, trace and judge are this episode's alone. The reward is the
official pass (task score of at least 0.75), with the score and its parts in `info`, where a stub judge is named as such.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
import uuid
from pathlib import Path
from typing import Any, Sequence

import httpx

from rti.envs.base import EnvironmentFault, FatalEnvironmentError, Outcome, StepResult, Task
from rti.envs.claw_eval.judge import Judge, JudgeFailed, UnreadableAnswer
from rti.envs.claw_eval.official_services import Services
from rti.trajectory import Message, ToolCall, ToolSchema


class OfficialEnvironment:
    """See rti.envs.base.Environment. `modules`: rti.envs.claw_eval.official.Official of the checkout `home`. Its time limit in
    seconds is not kept: the speed of a policy under training is not the agent's (rollout.timeout_s bounds an episode)."""

    def __init__(self, home: Path, modules: Any, judge: Judge | None = None, traces: str = "") -> None:
        self.tools: Sequence[ToolSchema] = ()
        self.max_turns = 20
        self._home, self._of, self._judge, self._traces = home, modules, judge, traces
        self._services: Services | None = None

    async def reset(self, task: Task, seed: int) -> list[Message]:
        """The official system prompt and the task's text. Nothing of an official episode is drawn, so `seed` only names it."""
        await self.close()
        self._folder = self._home / "tasks" / task.data["folder"]
        self._task = self._of.task.TaskDefinition.from_yaml(self._folder / "task.yaml")
        self._services = Services(self._home, self._task)
        self.max_turns = self._task.environment.max_turns
        self.tools = [ToolSchema(name=t.name, description=t.description, parameters=t.input_schema) for t in self._task.tools]
        self._endpoints = self._task.get_endpoint_map()
        self._id, self._turns, self._began, self._outcome = f"{uuid.uuid4()}", 0, time.monotonic(), None
        self._name = f"{self._task.task_id}_{seed}_{self._id[:8]}.jsonl"
        self._messages: list[Any] = []
        self._dispatches: list[Any] = []
        self._events: list[Any] = [self._of.trace.TraceStart(trace_id=self._id, task_id=self._task.task_id, model="policy")]
        self._say("user", [self._of.content.TextBlock(text=self._task.prompt.text)])
        system = self._of.prompt.build_system_prompt(self._task, self._of.config.PromptConfig())
        return [Message(role="system", content=system), Message(role="user", content=self._task.prompt.text)]

    async def step(self, message: Message) -> StepResult:
        """Runs a turn's calls in order. A turn without calls ends the episode."""
        if self._services is None:
            raise RuntimeError("step before reset")
        self._turns += 1
        ids = [call.id or f"call_{self._turns}_{i}" for i, call in enumerate(message.tool_calls)]
        text = [self._of.content.TextBlock(text=message.content)] if message.content else []
        used = [self._of.content.ToolUseBlock(id=id, name=c.name, input=c.arguments) for id, c in zip(ids, message.tool_calls)]
        self._say("assistant", text + used, message.reasoning or None)
        if not message.tool_calls:
            return StepResult(messages=[], done=True)
        answers = [await self._dispatch(id, call) for id, call in zip(ids, message.tool_calls)]
        self._say("user", [self._of.content.ToolResultBlock(tool_use_id=id, content=[self._of.content.TextBlock(text=text)],
                                                            is_error=wrong) for id, (text, wrong) in zip(ids, answers)])
        return StepResult(done=False, messages=[Message(role="tool", content=text, tool_call_id=call.id, name=call.name)
                                                for call, (text, _) in zip(message.tool_calls, answers)])

    async def outcome(self) -> Outcome:
        """Raises EnvironmentFault where the judge fails or the grader itself does."""
        if self._services is None:
            raise RuntimeError("outcome before reset")
        if self._outcome is None:
            self._outcome = await self._evaluate()
        return self._outcome

    async def close(self) -> None:
        services, self._services = self._services, None
        if services is not None:
            await services.close()

    # --- the official dispatcher's semantics ----------------------------------------------------------------------
    async def _dispatch(self, id: str, call: ToolCall) -> tuple[str, bool]:
        """(text for the agent, whether it is an error): the body is the call's arguments, the text the answer's JSON, an error
        is a status of 400 or more. What is not found is a status 200 with an error in its body, as the services have it."""
        endpoint, began = self._endpoints.get(call.name), time.monotonic()
        if endpoint is None:
            unknown = f"unknown tool '{call.name}'"
            return self._record(id, call, "", 404, {"error": unknown}, f"Error: {unknown}")
        if call.error:      # the official runner would call with no arguments; an agent is told its mistake here
            return self._record(id, call, endpoint.url, 400, {"error": call.error}, f"Error: {call.error}")
        try:
            answer = await self._services.request(endpoint.method, endpoint.url, call.arguments)
            body = answer.json()
        except (httpx.HTTPError, ValueError) as fault:
            return self._record(id, call, endpoint.url, 500, {"error": str(fault)}, f"Error: {fault}", began)
        return self._record(id, call, endpoint.url, answer.status_code, body, json.dumps(body, ensure_ascii=False), began)

    def _record(self, id: str, call: ToolCall, url: str, status: int, body: Any, text: str,
                began: float | None = None) -> tuple[str, bool]:
        latency = 0.0 if began is None else (time.monotonic() - began) * 1000
        self._dispatches.append(self._of.trace.ToolDispatch(
            trace_id=self._id, tool_use_id=id, tool_name=call.name, endpoint_url=url, request_body=call.arguments,
            response_status=status, response_body=body, latency_ms=latency))
        self._events.append(self._dispatches[-1])
        return text, status >= 400

    def _say(self, role: str, content: list[Any], reasoning: str | None = None) -> None:
        message = self._of.message.Message(role=role, content=content, reasoning_content=reasoning)
        self._messages.append(self._of.trace.TraceMessage(trace_id=self._id, message=message))
        self._events.append(self._messages[-1])

    # --- grading -------------------------------------------------------------------------------------------------
    async def _evaluate(self) -> Outcome:
        audits = await self._services.audits()
        trace, took = self._of.trace, round(time.monotonic() - self._began, 2)
        self._events += [trace.AuditSnapshot(trace_id=self._id, service_name=name, audit_url=url, audit_data=audit)
                         for name, url, audit in audits]
        self._events.append(trace.TraceEnd(trace_id=self._id, total_turns=self._turns, wall_time_s=took))
        judge = self._judge.for_grader(self._of.llm_judge.LLMJudge) if self._judge else None
        scores = await asyncio.to_thread(self._grade, {n: a for n, _, a in audits}, judge)
        score = self._of.scoring.compute_task_score(scores)
        passed, calls = self._of.scoring.is_pass(score), judge.get_call_log() if judge else []
        kind = self._judge.kind if self._judge and calls else "none"
        self._events.append(trace.GradingResult(
            trace_id=self._id, task_id=self._task.task_id, scores=scores, task_score=score, passed=passed,
            judge_calls=[{**c, "judge": kind} for c in calls]))
        if self._traces:
            await asyncio.to_thread(self._write)
        return Outcome(success=passed, reward=float(passed), info={
            "task_score": score, "completion": scores.completion, "robustness": scores.robustness, "safety": scores.safety,
            "judge": kind, "tool_calls": len(self._dispatches)})

    def _grade(self, audits: dict[str, dict[str, Any]], judge: Any) -> Any:
        """Official DimensionScores. Runs in a thread, since a judge's answer takes its time and graders wait for it."""
        of = self._of
        try:
            grader = of.registry.get_grader(self._task.task_id, tasks_dir=self._folder.parent, task_dir=self._folder)
            optional = {"media_events": []} if "media_events" in inspect.signature(grader.grade).parameters else {}
            return grader.grade(self._messages, self._dispatches, self._task, audit_data=audits, judge=judge, **optional)
        except JudgeFailed as failed:
            if isinstance(failed.fault, UnreadableAnswer):
                raise EnvironmentFault(f"the judge of {self._task.task_id} gave no readable answer ({failed}); mend: a "
                                       f"stronger model in env.claw_eval.judge") from failed.fault
            raise failed.fault
        except Exception as fault:      # upstream's own code, which no episode of ours may be marked down for
            raise FatalEnvironmentError(f"the official grader of {self._task.task_id} failed: {type(fault).__name__}: {fault}; "
                                        f"mend: leave the task out, or use another state of the checkout") from fault

    def _write(self) -> None:
        with self._of.writer.TraceWriter(Path(self._traces) / self._name) as writer:
            for event in self._events:
                writer.write_event(event)
