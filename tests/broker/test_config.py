"""Predefined topics: which id means what to whom, and what is said about a file that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config import ConfigError, PredefinedTopics


def write(folder: Path, text: str) -> Path:
    file = folder / "topics.toml"
    file.write_text(text)
    return file


def test_ids_for_all_clients_and_for_one_of_them() -> None:
    topics = PredefinedTopics({1: "all/1", 2: "all/2"}, {"dev": {2: "dev/2", 3: "dev/3"}})
    assert [topics.name("other", number) for number in (1, 2, 3)] == ["all/1", "all/2", None]
    assert [topics.name("dev", number) for number in (1, 2, 3)] == ["all/1", "dev/2", "dev/3"]
    assert topics.name("", 1) == "all/1"


def test_names_are_found_back() -> None:
    topics = PredefinedTopics({1: "all/1", 2: "all/2"}, {"dev": {2: "dev/2"}})
    assert topics.id_of("other", "all/2") == 2
    assert topics.id_of("dev", "dev/2") == 2
    assert topics.id_of("dev", "all/2") is None, "the id means something else to this client"
    assert topics.id_of("dev", "all/1") == 1
    assert topics.id_of("dev", "unknown") is None


def test_without_any_there_are_none() -> None:
    assert PredefinedTopics().name("dev", 1) is None
    assert PredefinedTopics().id_of("dev", "t/x") is None


def test_a_file_names_topics_for_all_and_for_single_clients(tmp_path: Path) -> None:
    topics = PredefinedTopics.load(
        write(tmp_path, '[topics]\n1 = "all/1"\n65534 = "all/last"\n[clients.dev-1]\n1 = "dev/1"\n[clients."a b"]\n')
    )
    assert topics.name("other", 1) == "all/1"
    assert topics.name("other", 65_534) == "all/last"
    assert topics.name("dev-1", 1) == "dev/1"
    assert topics.name("a b", 1) == "all/1"


def test_an_empty_file_is_no_topics(tmp_path: Path) -> None:
    assert PredefinedTopics.load(write(tmp_path, "")).name("dev", 1) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[topics", "is not TOML"),
        ('[topics]\n1 = "a"\n1 = "b"\n', "is not TOML"),
        ('[topic]\n1 = "a"\n', r"\[topic\] is neither \[topics\] nor \[clients.NAME\]"),
        ("topics = 3\n", r"\[topics\] is not a table"),
        ("clients = 3\n", r"\[clients\] holds one table per client"),
        ("[clients]\ndev = 3\n", r"\[clients.dev\] is not a table"),
        ('[topics]\nx = "a"\n', r"\[topics\] id 'x' is not between 1 and 65534"),
        ('[topics]\n0 = "a"\n', "id '0' is not between"),
        ('[topics]\n65535 = "a"\n', "id '65535' is not between"),
        ('[topics]\n-1 = "a"\n', "id '-1' is not between"),
        ("[topics]\n1 = 2\n", "1 = 2 is not a topic name"),
        ('[topics]\n1 = ""\n', "1 = '' is not a topic name"),
        ('[topics]\n1 = "a/#"\n', "1 = 'a/#' is not a topic name"),
        ('[clients.dev]\n7 = "+"\n', r"\[clients.dev\] 7 = '\+' is not a topic name"),
    ],
)
def test_a_file_that_cannot_work_is_refused_with_the_place_and_the_value(
    tmp_path: Path, text: str, complaint: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError, match=complaint) as error:
        PredefinedTopics.load(file)
    assert str(file) in str(error.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "topics.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not TOML"):
        PredefinedTopics.load(file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file or directory"):
        PredefinedTopics.load(tmp_path / "missing.toml")
