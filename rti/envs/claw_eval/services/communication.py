"""Mail and contacts."""

from __future__ import annotations

from typing import Any, Literal

from rti.envs.claw_eval.services.base import Refusal, Row, Service, brief, tool


class Mail(Service):
    """One mailbox. messages: {id, folder, from, to, date, subject, body, labels}."""

    name = "mail"

    @tool("List the messages of a folder, the newest first, without their text.", folder="which folder")
    def list(self, folder: Literal["inbox", "sent", "archive"] = "inbox") -> list[Row]:
        found = sorted((r for r in self.all("messages") if r["folder"] == folder), key=lambda r: r["date"], reverse=True)
        return brief(found, "from", "date", "subject", "labels")

    @tool("Find messages whose sender, subject or text holds all the given words.", query="words")
    def search(self, query: str) -> list[Row]:
        return brief(self.matching("messages", query, "from", "subject", "body"), "from", "date", "subject", "labels")

    @tool("Read a message.", message_id="its id")
    def read(self, message_id: str) -> Row:
        return self.one("messages", message_id)

    @tool("Send a message.", writes=True, to="addresses", subject="subject", body="text")
    def send(self, to: list[str], subject: str, body: str) -> dict[str, Any]:
        if not to or not all("@" in address for address in to):
            raise Refusal(422, "'to' must hold at least one address, and addresses only")
        row = self.add("messages", "MSG", folder="sent", to=to, date=self.now, subject=subject, body=body, labels=[])
        return {"sent": row["id"]}

    @tool("Delete a message for good.", writes=True, message_id="its id")
    def delete(self, message_id: str) -> dict[str, Any]:
        self.all("messages").remove(self.one("messages", message_id))
        return {"deleted": message_id}


class Contacts(Service):
    """The address book. people: {id, name, email, role, department, company}."""

    name = "contacts"

    @tool("Find people by name, role, department or company.", query="words; all must occur")
    def search(self, query: str) -> list[Row]:
        return brief(self.matching("people", query, "name", "role", "department", "company"), "name", "role", "department")

    @tool("Show a person's entry, with the address.", contact_id="id of the entry")
    def get(self, contact_id: str) -> Row:
        return self.one("people", contact_id)
