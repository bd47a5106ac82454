import dataclasses
import json
import subprocess
import sys

import pytest

from workerpool.config import HttpConfig, LeaseConfig, StoreConfig, StreamConfig
from workerpool.config_file import load_config
from workerpool.errors import ConfigError, PoolError, Problem

MINIMAL = {"streams": {"encode": {"handler": "handlers:encode"}}}


def test_a_stream_travels_as_json_and_comes_back_equal():
    stream = load_config(MINIMAL, environ={}).streams[0]
    assert StreamConfig.from_dict(json.loads(json.dumps(stream.to_dict()))) == stream


def test_an_unknown_key_in_a_travelled_stream_is_refused():
    values = load_config(MINIMAL, environ={}).streams[0].to_dict()
    with pytest.raises(TypeError, match="surprise"):
        StreamConfig.from_dict(values | {"surprise": 1})


def test_values_cannot_be_changed():
    config = load_config(MINIMAL, environ={})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lease = LeaseConfig(ttl=1.0)


def test_the_whole_configuration_is_json_with_streams_by_name():
    body = json.loads(json.dumps(load_config(MINIMAL, environ={}).to_dict()))
    assert body["streams"]["encode"]["handler"] == "handlers:encode"
    assert body["store"]["durability"] == "full"


def test_streams_are_found_by_name():
    config = load_config(MINIMAL, environ={})
    assert config.stream("encode") is config.streams[0]
    assert config.stream("decode") is None


def test_a_heartbeat_is_a_third_of_the_ttl():
    assert LeaseConfig(ttl=15.0).heartbeat == 5.0


@pytest.mark.parametrize(
    ("listen", "address"), [("", None), ("127.0.0.1:9191", ("127.0.0.1", 9191)), ("[::1]:80", ("::1", 80))]
)
def test_an_address_is_host_and_port(listen, address):
    assert HttpConfig(listen=listen).address == address


@pytest.mark.parametrize("scheme", ["dir", "sqlite", "postgresql"])
def test_a_store_knows_its_scheme(scheme):
    store = StoreConfig(url=f"{scheme}:/x:y", estate="e", durability="full", max_job_bytes=1)
    assert store.scheme == scheme


def test_a_config_error_prints_one_line_per_problem():
    error = ConfigError(
        [Problem("config.toml", 6, "streams.encode.handlr", "unknown key"), Problem("a", None, "", "b")]
    )
    assert isinstance(error, PoolError)
    assert str(error).splitlines() == ["config.toml:6: streams.encode.handlr: unknown key", "a: b"]


def test_the_values_and_decisions_do_not_import_pydantic():
    program = (
        "import sys, workerpool.config, workerpool.errors, workerpool.outcome, workerpool.policy, workerpool.units;"
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
