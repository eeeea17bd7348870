"""Logging: one line per event, of ours and of every library, as JSON or for a console, without secrets."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from config.settings import LoggingSettings
from jobs.payload.redact import Redact, Redactor

# What these say at info level is about themselves; warnings still get through.
_CHATTY = ("alembic", "apscheduler", "botocore", "boto3", "matplotlib", "s3transfer", "sqlalchemy", "urllib3")


def configure(settings: LoggingSettings, redact: Redact | None = None) -> None:
    """Send all logging, structlog's and the standard library's, to standard error or ``settings.file``.

    Every value and every finished line goes through ``redact``. May be called again, and replaces what it set up
    before. Raises OSError when the file cannot be opened.
    """
    redact = redact or Redactor()
    handler: logging.Handler
    if settings.file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        settings.file.parent.mkdir(parents=True, exist_ok=True)
        # Opens the file again after logrotate moved it away.
        handler = logging.handlers.WatchedFileHandler(settings.file, encoding="utf-8", errors="backslashreplace")
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    terminal = settings.file is None and sys.stderr.isatty()
    as_json = settings.format == "json" or (settings.format == "auto" and not terminal)
    handler.setFormatter(_formatter(shared, redact, as_json=as_json, colours=terminal))
    root = logging.getLogger()
    for old in [each for each in root.handlers if getattr(each.formatter, "redact", None)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel("INFO" if settings.level == "debug" else "WARNING")
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _formatter(
    shared: list[Processor], redact: Redact, *, as_json: bool, colours: bool
) -> structlog.stdlib.ProcessorFormatter:
    class RedactingFormatter(structlog.stdlib.ProcessorFormatter):
        """Renders a record, then removes secrets from the finished line, wherever in it they stand."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.redact = redact

        def format(self, record: logging.LogRecord) -> str:
            return self.redact(super().format(record))

    def redact_values(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """A value that was cut may end within a secret: that can be seen only while it stands alone."""
        event.update({key: redact(value) for key, value in event.items() if isinstance(value, str)})
        return event

    renderers: list[Processor]
    if as_json:
        renderers = [
            structlog.processors.EventRenamer("message"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ]
    else:
        renderers = [
            _escape_controls,
            structlog.dev.ConsoleRenderer(
                colors=colours and "NO_COLOR" not in os.environ, exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    return RedactingFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact_values, *renderers],
    )


def _escape_controls(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Text from platforms must not move the cursor or colour the terminal of the reader of the log."""
    for key, value in event.items():
        if isinstance(value, str) and key != "exception" and not value.isprintable():
            event[key] = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    return event
