"""Finance, helpdesk, inventory, and customers (CRM). Amounts are in the house's currency unless a row names another."""

from __future__ import annotations

from typing import Any, Literal

from rti.envs.claw_eval.services.base import Refusal, Row, Service, brief, tool


class Finance(Service):
    """invoices: {id, party, amount, due, status}; payments: {id, invoice, amount, date};
    transactions: {id, date, department, amount, currency, text}."""

    name = "finance"

    @tool("List the invoices of a customer or vendor.", party="name", status="which ones")
    def invoices(self, party: str, status: Literal["open", "paid", "all"] = "all") -> list[Row]:
        return [r for r in self.matching("invoices", party, "party") if status in (r["status"], "all")]

    @tool("Show an invoice.", invoice_id="its id")
    def invoice(self, invoice_id: str) -> Row:
        return self.one("invoices", invoice_id)

    @tool("List the payments that were made on an invoice.", invoice_id="its id")
    def payments(self, invoice_id: str) -> list[Row]:
        return [r for r in self.all("payments") if r["invoice"] == invoice_id]

    @tool("List a department's transactions of a month.", department="name", month="YYYY-MM")
    def transactions(self, department: str, month: str) -> list[Row]:
        return [r for r in self.all("transactions")
                if r["department"].casefold() == department.strip().casefold() and r["date"].startswith(month)]

    @tool("Pay an invoice. Cannot be taken back.", writes=True, invoice_id="its id", amount="amount to pay")
    def pay(self, invoice_id: str, amount: float) -> dict[str, Any]:
        row = self.one("invoices", invoice_id)
        row["status"] = "paid"
        return {"payment": self.add("payments", "PAY", invoice=row["id"], amount=amount, date=self.now[:10])["id"]}

    @tool("Pay money back on a paid invoice. Cannot be taken back.", writes=True, invoice_id="its id", amount="amount")
    def refund(self, invoice_id: str, amount: float) -> dict[str, Any]:
        row = self.one("invoices", invoice_id)
        if row["status"] != "paid":
            raise Refusal(409, f"{invoice_id} was never paid")
        return {"refund": self.add("payments", "PAY", invoice=row["id"], amount=-amount, date=self.now[:10])["id"]}


class Helpdesk(Service):
    """tickets: {id, customer, subject, text, status, opened}."""

    name = "helpdesk"

    @tool("List tickets without their text.", status="which ones", customer="only of this customer; empty: of all")
    def list(self, status: Literal["open", "closed", "all"] = "open", customer: str = "") -> list[Row]:
        found = [r for r in self.matching("tickets", customer, "customer") if status in (r["status"], "all")]
        return brief(found, "customer", "subject", "status")

    @tool("Read a ticket.", ticket_id="its id")
    def read(self, ticket_id: str) -> Row:
        return self.one("tickets", ticket_id)

    @tool("Close a ticket with an answer to the customer.", writes=True, ticket_id="its id", answer="text")
    def close(self, ticket_id: str, answer: str) -> dict[str, Any]:
        self.one("tickets", ticket_id)["status"] = "closed"
        return {"closed": ticket_id}

    @tool("Hand a ticket to a team of people.", writes=True, ticket_id="its id", team="who takes over")
    def escalate(self, ticket_id: str, team: Literal["finance", "security", "operations"]) -> dict[str, Any]:
        self.one("tickets", ticket_id)["status"] = f"with {team}"
        return {"escalated": ticket_id, "team": team}


class Inventory(Service):
    """items: {id, name, stock, supplier}; orders: {id, item, quantity, supplier}."""

    name = "inventory"

    @tool("Find items by name.", query="words; empty: all items")
    def search(self, query: str = "") -> list[Row]:
        return brief(self.matching("items", query, "name"), "name")

    @tool("The stock of an item.", item_id="its id")
    def stock(self, item_id: str) -> Row:
        return self.one("items", item_id)

    @tool("Order an item from a supplier. Cannot be taken back.", writes=True, item_id="its id", quantity="pieces",
          supplier="name of the supplier")
    def order(self, item_id: str, quantity: int, supplier: str) -> dict[str, Any]:
        if quantity < 1:
            raise Refusal(422, "'quantity' must be at least 1")
        item = self.one("items", item_id)
        return {"order": self.add("orders", "PO", item=item["id"], quantity=quantity, supplier=supplier)["id"]}


class Crm(Service):
    """accounts: {id, name, owner (address), city, notes}; deals: {id, account, title, amount, stage}."""

    name = "crm"

    @tool("Find customer accounts by name or city.", query="words")
    def search(self, query: str) -> list[Row]:
        return brief(self.matching("accounts", query, "name", "city"), "name", "city")

    @tool("Show an account with its owner.", account_id="its id")
    def account(self, account_id: str) -> Row:
        return self.one("accounts", account_id)

    @tool("List the deals of an account.", account_id="its id")
    def deals(self, account_id: str) -> list[Row]:
        account = self.one("accounts", account_id)
        return [r for r in self.all("deals") if r["account"] == account["id"]]

    @tool("Add a note to an account.", writes=True, account_id="its id", text="text")
    def add_note(self, account_id: str, text: str) -> dict[str, Any]:
        self.one("accounts", account_id).setdefault("notes", []).append({"date": self.now[:10], "text": text})
        return {"noted": account_id}

    @tool("Give an account to another owner.", writes=True, account_id="its id", owner="address")
    def set_owner(self, account_id: str, owner: str) -> dict[str, Any]:
        self.one("accounts", account_id)["owner"] = owner
        return {"account": account_id, "owner": owner}
