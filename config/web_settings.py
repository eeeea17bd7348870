"""Settings of the status page: where it listens, by which names it is reached, and who may read it."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from config.section import Section
from config.values import BadValue


class WebSettings(Section):
    """The status page listens at ``host``; requests must name it, the loopback address or one of ``names``.

    ``bearer_file`` holds the token that readers show; without one the service manager's credential ``web`` is read.
    ``actions_file`` holds the token of those who may change something; nothing can be changed without one.
    """

    host: str
    port: int = Field(ge=0, le=65_535)  # 0: any free one
    names: tuple[str, ...] = ()
    bearer_file: Annotated[Path | None, BeforeValidator(lambda text: text or None)] = None
    actions_file: Annotated[Path | None, BeforeValidator(lambda text: text or None)] = None

    @field_validator("host")
    @classmethod
    def _is_an_address(cls, found: str) -> str:
        try:
            return "127.0.0.1" if found == "localhost" else str(ip_address(found))
        except ValueError:
            raise BadValue("this is no address of this machine", 'write "127.0.0.1", "::1" or "0.0.0.0"') from None

    @field_validator("names")
    @classmethod
    def _bare_names(cls, found: tuple[str, ...]) -> tuple[str, ...]:
        wrong = next((name for name in found if not name or set(name) & set("/:@*? ")), None)
        if wrong is not None:
            raise BadValue(f"{wrong!r} is no host name", 'write it without scheme and port: "status.example.org"')
        return tuple(name.lower().rstrip(".") for name in found)

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach the page."""
        return not ip_address(self.host).is_loopback
