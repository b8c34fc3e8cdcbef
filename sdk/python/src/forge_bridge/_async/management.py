"""Client of the management of a runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..wire import (
    Agent,
    ChannelBinding,
    InstallReport,
    ReloadReport,
    RuntimeModel,
    SecurityPosture,
    Skill,
    SkillStatus,
    WorkspaceFile,
)
from .transport import Answer, AsyncTransport, at, decode


class AsyncManagement:
    """Management of one runtime. A method that the adapter does not have raises a `BridgeError` with the code
    `NOT_SUPPORTED`. Changes return `None` if the adapter answers without content. Agents and skills can have members
    that are specific to the runtime."""

    def __init__(self, http: AsyncTransport, provider: str | None) -> None:
        self._http = http
        self._provider = provider

    async def agents(self, *, timeout: float | None = None) -> list[Agent]:
        return await self._ask("GET", ["agents"], timeout)

    async def agent(self, id: str, *, timeout: float | None = None) -> Agent:
        return await self._ask("GET", ["agents", id], timeout)

    async def create_agent(self, agent: Mapping[str, object], *, timeout: float | None = None) -> Agent | None:
        return await self._ask("POST", ["agents"], timeout, agent)

    async def update_agent(self, agent: Mapping[str, object], *, timeout: float | None = None) -> Agent | None:
        """Replaces the agent with this `agentId`."""
        return await self._ask("PUT", ["agents", str(agent["agentId"])], timeout, agent)

    async def remove_agent(self, id: str, *, timeout: float | None = None) -> None:
        await self._do("DELETE", ["agents", id], timeout)

    async def files(self, id: str, *, timeout: float | None = None) -> list[WorkspaceFile]:
        """Returns names and sizes of the files in an agent's workspace, without their content."""
        return await self._ask("GET", ["agents", id, "files"], timeout)

    async def file(self, id: str, path: str, *, timeout: float | None = None) -> WorkspaceFile:
        """Returns one file with its content; `path` is relative to the workspace."""
        return await self._ask("GET", ["agents", id, "files", *path.split("/")], timeout)

    async def write_file(self, id: str, path: str, content: str, *, timeout: float | None = None) -> None:
        """Writes one file. Code `CONFLICT`: it was changed by another writer at the same time."""
        await self._do("PUT", ["agents", id, "files", *path.split("/")], timeout, {"content": content})

    async def remove_file(self, id: str, path: str, *, timeout: float | None = None) -> None:
        await self._do("DELETE", ["agents", id, "files", *path.split("/")], timeout)

    async def bindings(self, id: str, *, timeout: float | None = None) -> list[ChannelBinding]:
        return await self._ask("GET", ["agents", id, "bindings"], timeout)

    async def set_bindings(
        self, id: str, bindings: Sequence[Mapping[str, object]], *, timeout: float | None = None
    ) -> None:
        """Replaces all bindings of an agent."""
        await self._do("PUT", ["agents", id, "bindings"], timeout, {"bindings": list(bindings)})

    async def skills(self, *, timeout: float | None = None) -> list[Skill]:
        return await self._ask("GET", ["skills"], timeout)

    async def skill(self, key: str, *, timeout: float | None = None) -> Skill:
        return await self._ask("GET", ["skills", key], timeout)

    async def create_skill(self, skill: Mapping[str, object], *, timeout: float | None = None) -> Skill | None:
        return await self._ask("POST", ["skills"], timeout, skill)

    async def update_skill(self, skill: Mapping[str, object], *, timeout: float | None = None) -> Skill | None:
        """Replaces the skill with this `skillKey`."""
        return await self._ask("PUT", ["skills", str(skill["skillKey"])], timeout, skill)

    async def remove_skill(self, key: str, *, timeout: float | None = None) -> None:
        await self._do("DELETE", ["skills", key], timeout)

    async def skill_status(self, key: str, *, timeout: float | None = None) -> SkillStatus:
        return await self._ask("GET", ["skills", key, "status"], timeout)

    async def install_dependencies(self, key: str, *, timeout: float | None = None) -> InstallReport:
        return await self._ask("POST", ["skills", key, "dependencies"], timeout)

    async def models(self, *, timeout: float | None = None) -> list[RuntimeModel]:
        """Returns the model catalogue, or the models that the runtime discovers."""
        return await self._ask("GET", ["models"], timeout)

    async def system_models(self, *, timeout: float | None = None) -> list[RuntimeModel]:
        """Returns the model catalogue only."""
        return await self._ask("GET", ["system", "models"], timeout)

    async def security_posture(self, *, timeout: float | None = None) -> SecurityPosture:
        return await self._ask("GET", ["system", "security"], timeout)

    async def reload_config(self, *, timeout: float | None = None) -> ReloadReport:
        return await self._ask("POST", ["system", "reload"], timeout)

    async def _ask(self, method: str, path: list[str], timeout: float | None, body: object = None) -> Answer:  # type: ignore[type-var, unused-ignore]
        query = {"provider": self._provider}
        return await self._http.json(method, "/api/v2" + at(*path), query=query, body=body, timeout=timeout)

    async def _do(self, method: str, path: list[str], timeout: float | None, body: object = None) -> None:
        query = {"provider": self._provider}
        route = "/api/v2" + at(*path)
        await self._http.ask(method, route, query=query, body=body, timeout=timeout, read=decode)
