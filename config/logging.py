"""Logging: one line per event of this program and of its libraries, as JSON or for a console, with secrets redacted."""

import logging
import logging.handlers
import os
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from config.settings import LoggingSettings
from jobs.payload.redact import Redact, Redactor

# Operators do not need the info messages of these libraries; their warnings are logged.
_CHATTY = ("alembic", "apscheduler", "botocore", "boto3", "matplotlib", "s3transfer", "sqlalchemy", "urllib3")


def configure(settings: LoggingSettings, redact: Redact | None = None) -> None:
    """Send all logging, of structlog and of the standard library, to standard error or ``settings.file``.

    Every value and every finished line passes through ``redact``. A repeated call replaces the earlier configuration.
    Raises OSError if the file cannot be opened.
    """
    redact = redact or Redactor()
    handler: logging.Handler
    if settings.file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        settings.file.parent.mkdir(parents=True, exist_ok=True)
        # Reopens the file after logrotate has moved it.
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
        """Renders a record, then redacts secrets in the finished line."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.redact = redact

        def format(self, record: logging.LogRecord) -> str:
            return self.redact(super().format(record))

    def redact_values(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Redact each value alone, because a secret that was cut off at the end of a value is only recognised there."""
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
    """Escape control characters: text from platforms must not move the cursor or colour a reader's terminal."""
    for key, value in event.items():
        if isinstance(value, str) and key != "exception" and not value.isprintable():
            event[key] = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    return event
