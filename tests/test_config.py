"""What an operator can set, and what is said when it cannot be used."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standby import machine
from standby.config import Config, ConfigError, Source, load_config
from standby.config import settings as shown
from standby.config.contradictions import CONFINES
from standby.core.model import PoolSettings, Reason, Template, Warmth


def _file(directory: Path, text: str) -> Path:
    path = directory / "standby.toml"
    path.write_text(text)
    return path


def test_with_nothing_set_there_is_a_host_local_and_a_pool_default_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(env={})
    assert config.hosts["local"].driver == "process"
    assert config.pool_host("default") == "local"
    assert config.pool_settings("default") == PoolSettings()
    assert config.host_directory("local") == tmp_path / ".standby" / "hosts" / "local"
    assert config.database_url == f"sqlite:///{tmp_path}/.standby/standby.db"
    assert (config.poll_ms, config.renew_ms, config.lease_ms, config.log_poll_ms) == (1_000, 3_000, 10_000, 250)
    assert (config.host_memory_mb("local") or 0) > 0


def test_a_flag_wins_over_env_over_file_over_default(tmp_path: Path) -> None:
    file = _file(tmp_path, 'port = 1\ninstallation = "file"\npoll = "2s"\nbind = "127.0.0.2"')
    env = {"STANDBY_PORT": "2", "STANDBY_INSTALLATION": "env"}
    config = load_config(file, env, {"port": 3, "bind": None})
    assert (config.port, config.installation, config.poll_ms, config.renew_ms) == (3, "env", 2_000, 3_000)
    assert config.bind == "127.0.0.2"


def test_the_file_is_the_one_in_the_working_directory_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _file(tmp_path, "port = 1")
    other = tmp_path / "other.toml"
    other.write_text("port = 2")
    assert load_config(env={}).port == 1
    assert load_config(env={"STANDBY_CONFIG": str(other)}).port == 2
    assert load_config(tmp_path / "standby.toml", env={"STANDBY_CONFIG": str(other)}).port == 1


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0.25", 250), ("30", 30_000), ('"250ms"', 250), ('"5m"', 300_000), ('"1.5h"', 5_400_000), ("0", 0)],
)
def test_a_length_is_a_number_of_seconds_or_a_text_with_its_unit(tmp_path: Path, text: str, ms: int) -> None:
    config = load_config(_file(tmp_path, f"shutdown_grace = {text}"), {})
    assert config.shutdown_grace_ms == ms


@pytest.mark.parametrize(
    "url",
    [
        "mysql://db/work",
        "sqlite:///",
        "postgresql://",
        "postgresql://db:port/work",
        "postgresql://db:70000/work",
        "postgresql://[db/work",
        "postgresql://one:1,two:0/work",
    ],
)
def test_a_database_that_cannot_be_meant_is_refused_by_the_source_it_came_from(tmp_path: Path, url: str) -> None:
    file = tmp_path / "standby.toml"
    for said, text, env, flags in [
        (str(file), f'database = "{url}"', {}, {}),
        ("STANDBY_DATABASE", "", {"STANDBY_DATABASE": url}, {}),
        ("DATABASE_URL", "", {"DATABASE_URL": url}, {}),
        ("--database", "", {}, {"database": url}),
    ]:
        with pytest.raises(ConfigError, match=rf"^{re.escape(said)}: database: write "):
            load_config(_file(tmp_path, text), env, flags)


@pytest.mark.parametrize("url", ["postgresql://me@one:5432,two:5433/work", "postgresql:///work?host=/run/postgresql"])
def test_every_shape_of_a_postgres_address_is_let_through(tmp_path: Path, url: str) -> None:
    assert load_config(_file(tmp_path, ""), {"DATABASE_URL": url}).database_url == url


def test_every_kind_of_value_can_come_from_the_environment(tmp_path: Path) -> None:
    env = {
        "STANDBY_AUTH": "false",
        "STANDBY_POLL": "50ms",
        "STANDBY_RENEW": "2",
        "STANDBY_QUEUE_TIMEOUT_MAX": "none",
        "STANDBY_ENV_ALLOW": "PATH, HOME",
        "STANDBY_SEAL_KEY": "ab" * 32,
        "STANDBY_STATE_DIR": str(tmp_path),
        "STANDBY_URL": "not a key of the configuration",
    }
    config = load_config(_file(tmp_path, ""), env)
    assert (config.auth, config.poll_ms, config.renew_ms, config.queue_timeout_max_ms) == (False, 50, 2_000, None)
    assert config.env_allow == ["PATH", "HOME"]
    assert config.state_dir == tmp_path


def test_database_url_is_a_fallback_and_no_password_is_ever_shown(tmp_path: Path) -> None:
    url = "postgresql://me:hunter2@db:5433/work?password=hunter2"
    config = load_config(_file(tmp_path, ""), {"DATABASE_URL": url})
    assert config.database_url == url
    assert config.database_shown == "postgresql://me@db:5433/work"
    keyed = load_config(_file(tmp_path, ""), {"DATABASE_URL": url, "STANDBY_SEAL_KEY": "ab" * 32})
    assert "hunter2" not in repr(keyed)
    assert "abab" not in repr(keyed)
    own = load_config(_file(tmp_path, 'database = "sqlite:///x.db"'), {"DATABASE_URL": url})
    assert own.database_url == "sqlite:///x.db"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prt = 1", ["prt", "did you mean port?"]),
        ("[pools.a]\nslot_max = 1", ["pools.a.slot_max", "did you mean slots_max?"]),
        ("[hosts.a]\ndrivr = 'process'", ["hosts.a.drivr", "did you mean driver?"]),
        ("[projects.a]\nrun_max = 1", ["projects.a.run_max", "running_max"]),
        ('port = "80"', ["port", "integer"]),
        ("port = 70000", ["port", "65535"]),
        ('poll = "soon"', ["poll", "5m"]),
        ("poll = -1", ["poll"]),
        ("poll = nan", ["poll"]),
        ("poll = true", ["poll"]),
        ("poll = 0", ["poll", "more than 0"]),
        ('lease = "1s"', ["renew", "lease"]),
        ('auth = false\nbind = "0.0.0.0"', ["auth", "loopback"]),
        ('seal_key = "hunter2"', ["seal_key", "64 hexadecimal"]),
        ('database = "mysql://me:hunter2@x/y"', ["database", "postgresql://"]),
        ("[hosts.Big_One]", ["hosts.Big_One", "a-z"]),
        ("[pools.a]\nhost = 'locl'", ["pools.a.host", "did you mean local?"]),
        ("[hosts.a]\n[hosts.b]\n[pools.p]", ["pools.p.host", "name one of a, b"]),
        ("[pools.a]\nretry_on = ['cancelled']", ["pools.a.retry_on", "never retried"]),
        ("[pools.a]\nretry_on = ['moon']", ["pools.a.retry_on", "exit"]),
        ("[pools.a]\nqueue_timeout = 'none'", ["pools.a.queue_timeout", "queue_timeout_max"]),
        ("[pools.a]\nqueue_timeout = '11m'", ["pools.a.queue_timeout", "ceiling"]),
        ("[pools.a]\nprofile = 'bot'", ["pools.a.profile", "bots"]),
        ("[pools.a]\nslots_max = 1\nslots_warm = 2", ["pools.a.slots_warm", "slots_max"]),
        ("[pools.a]\nreset = 'none'", ["pools.a.reset", "set project"]),
        ("[pools.a]\nreset = 'wash'", ["pools.a.reset", "recreate, none"]),
        ("[pools.a]\nwarmth = 'hot'", ["pools.a.warmth", "cold, created, running"]),
        ("[pools.a]\nready = 'heartbeat'", ["pools.a.ready", "worker = true"]),
        ("[pools.a]\nmounts = ['/only-one']", ["pools.a.mounts"]),
        ("pools = 3", ["pools"]),
        ("port = ", ["valid TOML"]),
    ],
)
def test_what_cannot_be_used_is_said_with_the_file_the_key_and_what_to_do(
    tmp_path: Path, text: str, said: list[str]
) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_config(file, {})
    for part in [str(file), *said]:
        assert part in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_every_setting_says_where_it_comes_from_and_what_lost_against_it(tmp_path: Path) -> None:
    file = _file(tmp_path, "port = 1\npoll = '2s'\n[pools.default]\nslots_max = 1\n[pools.think]\nprofile = 'agents'")
    env = {"STANDBY_PORT": "2", "STANDBY_POOLS_DEFAULT_SLOTS_MAX": "2"}
    config = load_config(file, env, {"port": 3})
    assert config.sources["port"] == Source("flag", "--port", ("STANDBY_PORT", str(file)))
    assert config.sources["pools.default.slots_max"] == Source("env", "STANDBY_POOLS_DEFAULT_SLOTS_MAX", (str(file),))
    assert config.sources["poll"] == Source("file", str(file))
    assert config.sources["renew"] == config.sources["pools.default.retries"] == Source("default", "built in")
    assert config.sources["pools.think.memory_mb"] == Source("default", "profile agents")
    assert config.pool_settings("default").slots_max == 2
    found = {each.name: each for each in shown(config)}
    assert set(found) == set(config.sources)
    assert (found["port"].value, found["port"].default, found["poll"].value) == (3, 8377, "2s")
    assert (found["pools.default.slots_max"].value, found["pools.think.slots_max"].value) == (2, 2)


def test_no_secret_is_in_what_is_shown(tmp_path: Path) -> None:
    env = {"DATABASE_URL": "postgresql://me:hunter2@db/work", "STANDBY_SEAL_KEY": "ab" * 32}
    text = repr(shown(load_config(_file(tmp_path, ""), env)))
    assert "postgresql://me@db/work" in text
    assert not re.search("hunter2|abab", text)


def test_keys_of_sections_have_env_twins_which_may_make_the_section(tmp_path: Path) -> None:
    env = {
        "STANDBY_HOSTS_LOCAL_MEMORY_MB": "none",
        "STANDBY_POOLS_BIG_ONES_PROFILE": "agents",
        "STANDBY_POOLS_BIG_ONES_RETRY_FACTOR": "1.5",
        "STANDBY_POOLS_BIG_ONES_NO_RETRY_ON": "lost, oom",
        "STANDBY_POOLS_BIG_ONES_RUN_TIMEOUT": "2h",
        "STANDBY_PROJECTS_NIGHTLY_RUNNING_MAX": "4",
        "STANDBY_HISTORY_DAYS": "7",
    }
    config = load_config(_file(tmp_path, ""), env)
    big = config.pool_settings("big-ones")
    assert (list(config.pools), config.host_memory_mb("local"), config.project("nightly").running_max) == (
        ["big-ones"],
        None,
        4,
    )
    assert (big.slots_max, big.run_timeout_ms, big.retry.factor) == (2, 7_200_000, 1.5)
    assert (big.retry.no_retry_on, config.history_days) == ((Reason.LOST, Reason.OOM), 7.0)


def test_a_variable_means_the_section_that_is_there_before_the_longest_key(tmp_path: Path) -> None:
    env = {"STANDBY_POOLS_A_NO_RETRY_ON": "exit"}
    there = load_config(_file(tmp_path, "[pools.a-no]\n"), env).pool_settings("a-no").retry
    made = load_config(_file(tmp_path, ""), env).pool_settings("a").retry
    assert (there.retry_on, made.no_retry_on) == ((Reason.EXIT,), (Reason.EXIT,))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("STANDBY_PROT", "STANDBY_PORT"),
        ("STANDBY_POOLS_DEFAULT_SLOT_MAX", "STANDBY_POOLS_DEFAULT_SLOTS_MAX"),
        ("STANDBY_HOSTS_LOCAL_MEMORY", "STANDBY_HOSTS_LOCAL_MEMORY_MB"),
        ("STANDBY_POOLS", "STANDBY_POOL"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_one(tmp_path: Path, name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: unknown variable; did you mean {near}\?$"):
        load_config(_file(tmp_path, ""), {name: "hunter2"})


def test_what_other_programs_are_told_is_no_setting(tmp_path: Path) -> None:
    env = {"STANDBY_URL": "x", "STANDBY_KEY": "x", "STANDBY_ORDER_ID": "x", "STANDBY_RUN_ID": "x", "STANDBY_POOL": "x"}
    assert load_config(_file(tmp_path, ""), env) == load_config(_file(tmp_path, ""), {})


def test_a_wrong_type_says_what_was_expected_and_a_wrong_line_which_one(tmp_path: Path) -> None:
    for text, said in [
        ('port = "80"', ": port: must be a valid integer, not a text"),
        ("auth = 1", ": auth: must be a valid boolean, not an integer"),
        ("[pools.a]\nhost = true", ": pools.a.host: must be a valid string, not true or false"),
        ("port = 1\nbind = \nauth = true", ":2: is not valid TOML: "),
    ]:
        file = _file(tmp_path, text)
        with pytest.raises(ConfigError, match=f"^{re.escape(str(file) + said)}"):
            load_config(file, {})


def test_the_message_names_the_variable_or_the_flag_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="STANDBY_PORT: port"):
        load_config(_file(tmp_path, ""), {"STANDBY_PORT": "many"})
    with pytest.raises(ConfigError, match="--port: port"):
        load_config(_file(tmp_path, ""), {}, {"port": -1})
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "nowhere.toml", {})


def test_every_problem_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(_file(tmp_path, "prt = 1\npoll = 'x'\n[pools.a]\nretries = -1"), {})
    assert len(str(refused.value).splitlines()) == 3


def test_profiles_set_defaults_which_the_pools_own_keys_win_over() -> None:
    pools = {
        "meet": {"profile": "bots"},
        "think": {"profile": "agents", "retries": 1},
        "ship": {"profile": "deployments", "slots_max": 1, "run_timeout": "none"},
        "own": {"queue_timeout": "1m", "retry_base": 1, "retry_on": ["oom"], "no_retry_on": ["lost"], "memory_mb": 0},
    }
    config = Config.of(pools=pools, queue_timeout_max="20m")
    meet, think, ship, own = (config.pool_settings(name) for name in pools)
    assert (meet.slots_max, meet.queue_timeout_ms, meet.queue_timeout_max_ms) == (100, 300_000, 1_200_000)
    assert (think.slots_max, think.memory_mb, think.queue_timeout_ms) == (2, 4096, None)
    assert (think.retry.retry_on, think.retry.retries) == ((Reason.EXIT,), 1)
    assert (ship.retry.retries, ship.queue_timeout_ms, ship.slots_max, ship.run_timeout_ms) == (0, None, 1, None)
    assert (own.queue_timeout_ms, own.retry.base_ms, own.retry.retry_on) == (60_000, 1_000, (Reason.OOM,))
    assert (own.retry.no_retry_on, own.memory_mb) == ((Reason.LOST,), 0)


def test_none_is_unlimited_and_zero_is_zero() -> None:
    config = Config.of(
        hosts={"a": {"driver": "process", "memory_mb": "none"}, "b": {"driver": "process", "memory_mb": 0}},
        pools={"p": {"host": "a", "slots_max": 0}},
        projects={"x": {"running_max": 0}, "y": {"running_max": "none"}},
    )
    assert (config.host_memory_mb("a"), config.host_memory_mb("b")) == (None, 0)
    assert tuple(config.project(name).running_max for name in "xyz") == (0, None, None)
    assert config.pool_settings("p").slots_max == 0


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config.of().port = 1


_keys = st.sampled_from(["port", "poll", "database", "hosts", "pools", "projects", "auth", "env_allow", "bind", "x"])
_leaf = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.text(max_size=8), st.sampled_from(["none", "5m", "process", ""])
)
_values = st.recursive(
    _leaf, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6) | _keys, inner, max_size=3)
)


@given(keys=st.dictionaries(_keys, _values, max_size=4))
@settings(max_examples=200)
def test_whatever_is_written_is_used_or_refused_in_words(keys: dict[str, Any]) -> None:
    try:
        made: Config | ConfigError = Config.of(**keys)
    except ConfigError as refused:
        made = refused
    assert isinstance(made, Config) or str(made)


_EXAMPLE = (Path(__file__).parents[1] / "standby.example.toml").read_text(encoding="utf-8").replace("\n#", "\n")
_pieces = st.sampled_from(
    [
        "[",
        "]",
        "=",
        '"',
        "'",
        "\n",
        "#",
        ".",
        "none",
        "-1",
        "1e400",
        "nan",
        "5m",
        "true",
        "{}",
        "[[pools]]",
        "\0",
        "é",
        "~x",
    ]
)
_edits = st.lists(st.tuples(st.integers(0, len(_EXAMPLE)), st.integers(0, 12), _pieces), max_size=6)
_variables = st.sampled_from(
    [
        *("STANDBY_PORT", "STANDBY_POLL", "STANDBY_AUTH", "STANDBY_STATE_DIR", "STANDBY_DATABASE", "DATABASE_URL"),
        *(
            "STANDBY_HISTORY_DAYS",
            "STANDBY_ENV_ALLOW",
            "STANDBY_SEAL_KEY",
            "STANDBY_POOLS_A_HOST",
            "STANDBY_POOLS__HOST",
        ),
        *("STANDBY_POOLS_A_B_RETRY_ON", "STANDBY_HOSTS_LOCAL_LAG", "STANDBY_PROJECTS_É_RUNNING_MAX", "STANDBY_"),
    ]
)
_texts = st.sampled_from(
    ["", "1", "-1", "nan", "1e9", "9" * 400, "none", "~x/y", "a,b", "5m", "postgresql://["]
) | st.text(st.characters(exclude_characters="\0", exclude_categories=[]), max_size=6)


@given(edits=_edits, env=st.dictionaries(_variables, _texts, max_size=3))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_spoilt_file_and_any_environment_are_used_or_refused_in_words(
    tmp_path: Path, edits: list[tuple[int, int, str]], env: dict[str, str]
) -> None:
    text = _EXAMPLE
    for at, gone, piece in edits:
        text = text[:at] + piece + text[at + gone :]
    file = tmp_path / "standby.toml"
    file.write_bytes(text.encode())
    try:
        made: Config | ConfigError = load_config(file, env)
    except ConfigError as refused:
        made = refused
    assert shown(made) if isinstance(made, Config) else str(made)


@given(text=st.text(max_size=60) | st.binary(max_size=60))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_file_is_used_or_refused_in_words(tmp_path: Path, text: str | bytes) -> None:
    file = tmp_path / "standby.toml"
    file.write_bytes(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
    try:
        made: Config | ConfigError = load_config(file, {})
    except ConfigError as refused:
        made = refused
    if isinstance(made, Config):
        tomllib.loads(file.read_text())
    else:
        assert str(file) in str(made)


@pytest.mark.parametrize(("key", "what"), [("directory", "a directory"), ("token_file", "a file")])
def test_a_path_below_the_home_of_nobody_is_refused_in_words(key: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"hosts.x.{key}: there is no such user; write the path of {what}"):
        Config.of(hosts={"x": {key: "~nobody-of-this-name/here"}})


CONFINED: dict[str, object] = {"pids_max": 9, "shm_mb": 65, "read_only": False}


@pytest.mark.parametrize("key", CONFINES)
def test_what_would_confine_a_container_is_refused_where_work_is_a_process(key: str) -> None:
    pools = {"default": {key: CONFINED.get(key, ["/a:/b"] if key in ("mounts", "command", "cap_add") else "other")}}
    with pytest.raises(ConfigError, match=rf"pools\.default\.{key}: is for containers, and local runs processes"):
        Config.of(pools=pools)
    assert Config.of(pools=pools, hosts={"local": {"driver": "scripted"}}).pools


def test_what_a_pool_says_of_its_slots_is_their_template() -> None:
    config = Config.of(
        hosts={"engine": {"driver": "docker"}},
        pools={
            "default": {
                "image": "bot:1",
                "command": ["run", "it"],
                "warmth": "running",
                "slots_warm": 2,
                "idle_ttl": "none",
                "deploy_timeout": "1h",
                "fatal_errors": ["Gone"],
            }
        },
    )
    settings = config.pool_settings("default")
    assert settings.template == Template(image="bot:1", command=("run", "it"), warmth=Warmth.RUNNING)
    assert (settings.slots_warm, settings.idle_ttl_ms, settings.deploy_timeout_ms) == (2, None, 3_600_000)
    assert settings.retry.fatal_errors == ("Gone",)


CLOUD = '[hosts.cloud]\ndriver = "coolify"\nurl = "https://coolify.example"\nproject = "p1"\nserver = "s1"\n'
BOTS = '[pools.bots]\nimage = "bot:1"\nworker = true\n'


def test_the_token_of_a_coolify_host_comes_from_the_environment_and_is_never_shown(tmp_path: Path) -> None:
    config = load_config(_file(tmp_path, CLOUD + BOTS), {"STANDBY_HOSTS_CLOUD_TOKEN": "1|hush"})
    token = config.hosts["cloud"].token
    assert token is not None
    assert token.get_secret_value() == "1|hush"
    assert "hush" not in repr(config) + repr(shown(config))
    assert config.host_starts_max("cloud") == 4
    assert config.pool_settings("bots").memory_mb == 4_096


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CLOUD + BOTS, ["hosts.cloud.token", "token_file"]),
        (CLOUD.replace("url", "#url") + BOTS, ["hosts.cloud.url", "needs it"]),
        (CLOUD.replace("https://", "https://me:hush@") + BOTS, ["hosts.cloud.url", "without a password"]),
        (CLOUD.replace('"p1"', '"p 1/.."') + BOTS, ["hosts.cloud.project", "uuid"]),
        (CLOUD + 'token = "hush"\n' + BOTS.replace("true", "false"), ["pools.bots.worker", "only a worker"]),
        (CLOUD + 'token = "hush"\n' + BOTS + 'warmth = "cold"', ["pools.bots.warmth", "created"]),
        (CLOUD + 'token = "hush"\n' + BOTS + 'command = ["sh"]', ["pools.bots.command", "as it is"]),
        (CLOUD + 'token = "hush"\n' + BOTS.replace("image", "#image"), ["pools.bots.image"]),
        (CLOUD + 'token_file = ""\n' + BOTS, ["hosts.cloud.token_file", "path of a file"]),
    ],
)
def test_what_a_coolify_host_needs_is_said(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(_file(tmp_path, text), {})
    assert [word for word in words if word not in str(caught.value)] == []
    assert "hush" not in str(caught.value)


def test_a_pool_cannot_want_more_processors_than_its_host_has() -> None:
    with pytest.raises(ConfigError, match=r"pools\.default\.cpus: is more than the 2 that its host has in all"):
        Config.of(hosts={"local": {"cpus": 2}}, pools={"default": {"cpus": 2.5}})


def test_processors_are_counted_in_thousandths_and_are_never_none_at_all() -> None:
    config = Config.of(hosts={"local": {"cpus": 0.3333}}, pools={"default": {"cpus": 0.33334}})
    assert config.hosts["local"].cpus == config.pools["default"].cpus == 0.333
    for wrong in ({"hosts": {"local": {"cpus": 0.0004}}}, {"pools": {"default": {"cpus": 0.0004}}}):
        with pytest.raises(ConfigError, match=r"\.default\.cpus: |\.local\.cpus: "):
            Config.of(**{"hosts": {"local": {}}, "pools": {"default": {}}, **wrong})


def test_a_warning_cannot_come_after_the_critical_limit() -> None:
    with pytest.raises(ConfigError, match=r"hosts\.local\.pressure_warning: cannot be above pressure_critical"):
        Config.of(hosts={"local": {"pressure_warning": 0.95}}, pools={"default": {}})


def test_without_a_budget_of_its_own_a_host_on_this_machine_has_a_share_of_it() -> None:
    far = {"driver": "docker", "endpoint": "tcp://far:2376", "tls": "/tls"}
    hosts = {"near": {"driver": "docker"}, "far": far, "free": {"driver": "docker", "memory_mb": "none"}, "here": {}}
    config = Config.of(hosts=hosts, pools={"p": {"host": "here"}})
    confined, whole = machine.total_mb(), machine.total_mb(confined=False)
    assert confined is not None and whole is not None
    assert [config.host_memory_mb(name) for name in hosts] == [int(whole * 0.8), None, None, int(confined * 0.8)]
