"""The files that people copy from: complete, equal to the defaults, and as editors are told."""

import importlib.resources
import json
import pathlib
import tomllib

import pytest

from workerpool.config_file import load_config, schema_text
from workerpool.config_model import SECTIONS, STREAMS, Defaults

CONFIGS = pathlib.Path(__file__).parents[3] / "config"
FULL = CONFIGS / "full.toml"


def test_the_full_file_names_every_table_and_every_key():
    written = tomllib.loads(FULL.read_text())
    assert written.keys() == {*SECTIONS, STREAMS}
    for section, table in SECTIONS.items():
        assert list(written[section]) == list(table.model_fields), section


def test_the_full_file_says_what_is_the_default_anyway():
    full = load_config(FULL, environ={})
    bare = load_config({"streams": {"hello": {"handler": "handlers:hello"}}}, environ={}, base=CONFIGS)
    assert full.to_dict() | {"path": None} == bare.to_dict()


def test_the_full_file_writes_defaults_as_the_model_does():
    written = tomllib.loads(FULL.read_text())
    for section, table in SECTIONS.items():
        assert written[section] == {key: field.default for key, field in table.model_fields.items()}, section


def test_every_key_of_the_full_file_says_why():
    silent = [line for line in FULL.read_text().splitlines() if " = " in line.partition("#")[0] and " # " not in line]
    assert silent == []


def test_the_minimal_file_is_minimal_and_good():
    config = load_config(CONFIGS / "minimal.toml", environ={})
    assert tomllib.loads((CONFIGS / "minimal.toml").read_text()) == {
        "streams": {"hello": {"handler": "handlers:hello"}}
    }
    assert config.handlers.path == (str(CONFIGS),)
    assert "def hello(" in (CONFIGS / "handlers.py").read_text()


def test_the_shipped_schema_is_that_of_the_model():
    """After a change of the model, write what `schema_text` returns into the file."""
    shipped = importlib.resources.files("workerpool").joinpath("config.schema.json").read_text(encoding="utf-8")
    assert shipped == schema_text()


@pytest.mark.parametrize("section", [*SECTIONS, STREAMS])
def test_the_schema_knows_each_table_and_forbids_other_keys(section):
    schema = json.loads(schema_text())
    reference = schema["properties"][section]
    reference = reference.get("additionalProperties", reference)["$ref"]
    definition = schema["$defs"][reference.rpartition("/")[2]]
    assert definition["additionalProperties"] is False
    assert all(each["description"] for each in definition["properties"].values())


def test_the_schema_requires_a_stream_with_a_handler_and_lets_it_inherit_the_rest():
    schema = json.loads(schema_text())
    assert schema["required"] == [STREAMS]
    stream = schema["$defs"]["Stream"]
    assert stream["required"] == ["handler"]
    assert stream["properties"].keys() == {"handler", *Defaults.model_fields}
    assert not any("default" in each for each in stream["properties"].values())
