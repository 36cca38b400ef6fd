"""Where systems come from, and what is said of those that cannot be used."""

from __future__ import annotations

import pytest

from collector.forwarding.dfanalyzer import DfAnalyzer
from collector.forwarding.errors import SystemUnusable
from collector.forwarding.prov_json import ProvJson
from collector.forwarding.system import shown_url, system_named


def test_the_systems_that_come_with_threadline() -> None:
    assert isinstance(system_named("prov-json", "http://127.0.0.1/documents"), ProvJson)
    assert isinstance(system_named("dfanalyzer", "https://127.0.0.1:22000"), DfAnalyzer)


@pytest.mark.parametrize(
    ("to", "url", "words"),
    [
        ("prov-xml", "http://127.0.0.1", "there is no system 'prov-xml', only prov-json, dfanalyzer and module:Class"),
        ("no_such_module:X", "http://127.0.0.1", "no_such_module:X cannot be used: ModuleNotFoundError"),
        (f"{__name__}:Missing", "http://127.0.0.1", "cannot be used: AttributeError"),
        ("json:JSONDecoder", "http://127.0.0.1", "cannot be used"),
        ("decimal:Decimal", "http://127.0.0.1", "cannot be used"),
        ("pathlib:Path", "http://127.0.0.1", r"it has no method requests\(entries\)"),
        ("prov-json", "127.0.0.1:80", "is no URL such as http://"),
        ("prov-json", "ftp://127.0.0.1", "is no URL such as http://"),
        ("prov-json", "http://127.0.0.1:many", "is no URL"),
    ],
)
def test_a_system_that_cannot_be_used_is_told(to: str, url: str, words: str) -> None:
    with pytest.raises(SystemUnusable, match=words):
        system_named(to, url)


def test_nobody_sees_a_password() -> None:
    assert shown_url("http://me:secret@127.0.0.1:80/a?b=c") == "http://127.0.0.1/a?b=c"
