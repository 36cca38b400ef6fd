"""Names lead back to the ids that they were made of."""

from __future__ import annotations

import pytest
from hypothesis import given

from collector.export import vertex_id_of
from collector.export.naming import local_name, xml_name
from tests.collector.export.graphs import free_texts


@given(free_texts)
def test_a_name_leads_back_to_the_id(vertex_id: str) -> None:
    assert vertex_id_of(local_name(vertex_id)) == vertex_id
    assert vertex_id_of(xml_name(vertex_id)) == vertex_id


@pytest.mark.parametrize("usual", ["car-7/reports@3:1842", "task:car-7@3:12", "data:car-7@3:training/out-1"])
def test_the_usual_id_is_its_own_name(usual: str) -> None:
    assert local_name(usual) == xml_name(usual) == usual


def test_what_prov_n_does_not_have_is_encoded() -> None:
    assert local_name("data:a b%é") == "data:a%20b%25%C3%A9"
    assert xml_name("data:a b%é\0") == "data:a b%25é%00"
