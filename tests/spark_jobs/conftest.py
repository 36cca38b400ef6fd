"""What several test modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark_jobs.examples import Example


@pytest.fixture
def example() -> Iterator[Example]:
    made = Example()
    yield made
    made.pipeline.finish()
