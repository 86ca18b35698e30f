"""Calendar, tasks, and a scheduler of jobs. Times are "YYYY-MM-DD HH:MM", days "YYYY-MM-DD"."""

from __future__ import annotations

import datetime
from typing import Any, Literal

from rti.envs.claw_eval.services.base import Refusal, Row, Service, brief, tool


def day_of(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text.strip())
    except ValueError:
        raise Refusal(422, f"{text!r} is no day in the form YYYY-MM-DD") from None


def time_of(text: str) -> datetime.datetime:
    try:
        return datetime.datetime.strptime(text.strip(), "%Y-%m-%d %H:%M")
    except ValueError:
        raise Refusal(422, f"{text!r} is no time in the form YYYY-MM-DD HH:MM") from None


class Calendar(Service):
    """Everybody's calendar. events: {id, title, start, end, attendees (addresses)}."""

    name = "calendar"

    @tool("List the events of a day, of everybody or of one person.", date="YYYY-MM-DD", person="address; empty: everybody")
    def list(self, date: str, person: str = "") -> list[Row]:
        day = day_of(date).isoformat()
        found = [r for r in self.all("events") if r["start"].startswith(day) and (not person or person in r["attendees"])]
        return sorted(found, key=lambda r: r["start"])

    @tool("Put an event into the calendars of its attendees.", writes=True, title="title", start="YYYY-MM-DD HH:MM",
          end="YYYY-MM-DD HH:MM", attendees="addresses")
    def create(self, title: str, start: str, end: str, attendees: list[str]) -> dict[str, Any]:
        if time_of(end) <= time_of(start):
            raise Refusal(422, "'end' must be after 'start'")
        row = self.add("events", "EV", title=title, start=start.strip(), end=end.strip(), attendees=attendees)
        return {"created": row["id"]}

    @tool("Cancel an event for all its attendees.", writes=True, event_id="its id")
    def cancel(self, event_id: str) -> dict[str, Any]:
        self.all("events").remove(self.one("events", event_id))
        return {"cancelled": event_id}

    @tool("The day so many days after another day (before it, where the number is negative).", date="YYYY-MM-DD",
          days="number of days")
    def add_days(self, date: str, days: int) -> dict[str, Any]:
        if abs(days) > 10_000:
            raise Refusal(422, "'days' must be at most 10000 either way")
        found = day_of(date) + datetime.timedelta(days=days)
        return {"date": found.isoformat(), "weekday": found.strftime("%A")}


class Tasks(Service):
    """To-do items. items: {id, title, assignee (address), due, status}."""

    name = "tasks"

    @tool("List to-do items.", assignee="address; empty: everybody's", status="which ones")
    def list(self, assignee: str = "", status: Literal["open", "done", "all"] = "open") -> list[Row]:
        return [r for r in self.all("items") if (not assignee or r["assignee"] == assignee) and status in (r["status"], "all")]

    @tool("Give somebody a to-do item.", writes=True, title="title", assignee="address", due="YYYY-MM-DD")
    def create(self, title: str, assignee: str, due: str) -> dict[str, Any]:
        row = self.add("items", "TSK", title=title, assignee=assignee, due=day_of(due).isoformat(), status="open")
        return {"created": row["id"]}

    @tool("Mark a to-do item as done.", writes=True, task_id="its id")
    def complete(self, task_id: str) -> dict[str, Any]:
        self.one("items", task_id)["status"] = "done"
        return {"done": task_id}


class Scheduler(Service):
    """Jobs that run by themselves. jobs: {id, name, status, runs_at, log (lines), needs}; `needs` is the parameter without
    which a run fails, and no tool shows it."""

    name = "scheduler"

    @tool("List the jobs with their states.")
    def jobs(self) -> list[Row]:
        return brief(self.all("jobs"), "name", "status", "runs_at")

    @tool("The log of a job's last run.", job_id="its id")
    def log(self, job_id: str) -> dict[str, Any]:
        return {"log": self.one("jobs", job_id).get("log", [])}

    @tool("Run a job now.", writes=True, job_id="its id", parameter="NAME=value for this run; empty: none")
    def run(self, job_id: str, parameter: str = "") -> dict[str, Any]:
        job = self.one("jobs", job_id)
        job["status"] = "succeeded" if not job.get("needs") or parameter.strip() == job["needs"] else "failed"
        return {"run": job_id, "status": job["status"]}

    @tool("Stop a job from running by itself.", writes=True, job_id="its id")
    def pause(self, job_id: str) -> dict[str, Any]:
        self.one("jobs", job_id)["status"] = "paused"
        return {"paused": job_id}
