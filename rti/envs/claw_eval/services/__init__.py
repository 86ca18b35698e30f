"""The services of the own families by name, and their tools. All state is in the instance that an episode makes."""

from __future__ import annotations

from rti.envs.claw_eval.services.base import Service, Tool
from rti.envs.claw_eval.services.business import Crm, Finance, Helpdesk, Inventory
from rti.envs.claw_eval.services.communication import Contacts, Mail
from rti.envs.claw_eval.services.knowledge import Calculator, Documents, KnowledgeBase, Notes
from rti.envs.claw_eval.services.planning import Calendar, Scheduler, Tasks

SERVICES: dict[str, type[Service]] = {s.name: s for s in (
    Mail, Calendar, Tasks, Contacts, Finance, Notes, KnowledgeBase, Helpdesk, Inventory, Crm, Scheduler, Documents, Calculator)}

TOOLS: dict[str, Tool] = {tool.schema.name: tool for service in SERVICES.values() for tool in service.tools}
