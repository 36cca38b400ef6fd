from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from edge_agent.logger import Logger


def test_what_is_said_is_logged_where_it_was_said(caplog: pytest.LogCaptureFixture) -> None:
    logger = Logger("edge_agent.pump")
    with caplog.at_level(logging.DEBUG):
        logger.debug("one=%d", 1)
        logger.info("two")
        logger.warning("three")
        logger.error("four")
        try:
            raise ValueError("worn out")
        except ValueError:
            logger.exception("five")
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("DEBUG", "one=1"),
        ("INFO", "two"),
        ("WARNING", "three"),
        ("ERROR", "four"),
        ("ERROR", "five"),
    ]
    assert {each.filename for each in caplog.records} == {os.path.basename(__file__)}  # noqa: PTH119
    assert {each.name for each in caplog.records} == {"edge_agent.pump"}
    assert "worn out" in caplog.text


def test_logging_is_loaded_by_the_first_warning() -> None:
    code = (
        "import sys; from edge_agent.logger import Logger; logger = Logger('x'); logger.debug('a'); logger.info('b'); "
        "print('logging' in sys.modules); logger.warning('c'); print('logging' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\nTrue\n", "c\n")
