"""Notes, the knowledge base, documents, and a calculator."""

from __future__ import annotations

import ast
import operator
from typing import Any

from rti.envs.claw_eval.services.base import Refusal, Row, Service, brief, tool

MAX_EXPRESSION = 400


class Notes(Service):
    """Shared notes. notes: {id, title, date, body}."""

    name = "notes"

    @tool("Find notes whose title or text holds all the given words.", query="words")
    def search(self, query: str) -> list[Row]:
        return brief(self.matching("notes", query, "title", "body"), "title", "date")

    @tool("Read a note.", note_id="its id")
    def read(self, note_id: str) -> Row:
        return self.one("notes", note_id)

    @tool("Write a new note.", writes=True, title="title", body="text")
    def create(self, title: str, body: str) -> dict[str, Any]:
        return {"created": self.add("notes", "NOTE", title=title, date=self.now[:10], body=body)["id"]}


class KnowledgeBase(Service):
    """Articles with the house's rules. articles: {id, title, updated, body}."""

    name = "kb"

    @tool("Find articles whose title or text holds all the given words.", query="words")
    def search(self, query: str) -> list[Row]:
        return brief(self.matching("articles", query, "title", "body"), "title", "updated")

    @tool("Read an article.", article_id="its id")
    def read(self, article_id: str) -> Row:
        return self.one("articles", article_id)


class Documents(Service):
    """Long documents in sections. documents: {id, title, date, sections: {title: text}, shared_with}."""

    name = "documents"

    @tool("Find documents whose title holds all the given words.", query="words")
    def search(self, query: str) -> list[Row]:
        return brief(self.matching("documents", query, "title"), "title", "date")

    @tool("The titles of a document's sections.", document_id="its id")
    def outline(self, document_id: str) -> dict[str, Any]:
        return {"sections": list(self.one("documents", document_id)["sections"])}

    @tool("Read a section of a document.", document_id="its id", section="the section's title")
    def read(self, document_id: str, section: str) -> dict[str, Any]:
        sections = self.one("documents", document_id)["sections"]
        if section not in sections:
            raise Refusal(404, f"{document_id} has no section {section!r}")
        return {"section": section, "text": sections[section]}

    @tool("Let somebody read a document.", writes=True, document_id="its id", address="address of the person")
    def share(self, document_id: str, address: str) -> dict[str, Any]:
        self.one("documents", document_id).setdefault("shared_with", []).append(address)
        return {"shared": document_id, "with": address}


_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Calculator(Service):
    """Arithmetic, so that a figure that follows from others stands in the conversation. No rows."""

    name = "calculator"

    @tool("Work out an expression of numbers, + - * / and parentheses.", expression="e.g. (120.50 + 80) * 2",
          decimals="to how many decimals the result is rounded, 0 to 6")
    def evaluate(self, expression: str, decimals: int = 6) -> dict[str, Any]:
        if not 0 <= decimals <= 6:
            raise Refusal(422, "'decimals' must be 0 to 6")
        if len(expression) > MAX_EXPRESSION:
            raise Refusal(422, f"an expression has at most {MAX_EXPRESSION} characters")
        try:
            return {"result": round(_value(ast.parse(expression.strip(), mode="eval").body), decimals)}
        except ZeroDivisionError:
            raise Refusal(422, "division by zero") from None
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
            raise Refusal(422, f"cannot read {expression!r}") from None


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("not arithmetic")
