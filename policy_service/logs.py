"""How the service logs: one JSON object a line on stderr, and never the values of local variables.

The library's own default prints a fault with every variable it finds on the stack, and some of those are secrets. So
whoever builds the service gets this one unless they have configured theirs.
"""

from __future__ import annotations

import logging
import sys

import structlog


def set_up_logs() -> None:
    """Log safely. A program that has configured its logs already is left alone."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
