-- Warm slots: which generation of a place, made from what, and which worker lives in it.
alter table slots add column generation integer not null default 1;
alter table slots add column template text not null default '';
alter table slots add column boot text;

alter table orders add column boot text;
alter table orders add column deploy_since integer;
alter table runs add column boot text;
alter table runs add column error_name text;

-- The breaker of a pool, the deploy gate of a host.
alter table pools add column failures integer not null default 0;
alter table pools add column broken_at integer;
alter table hosts add column starts_max integer;
alter table hosts add column start_gap_ms integer not null default 0;

-- What the worker of a run said last: no version, no event; its end becomes one.
create table reports (
    run_id       text    not null primary key,
    boot         text    not null,
    begun_at     integer,
    heartbeat_at integer not null,
    progress     real,
    text         text,
    ended_at     integer,
    exit_code    integer,
    error_name   text,
    error        text,
    retryable    integer,
    result       text
) strict, without rowid;

-- What is known of an image on a host: no version, no event.
create table images (
    host          text    not null,
    image         text    not null,
    at            integer not null,
    present       integer not null,
    pulling_since integer,
    progress      text,
    error         text,
    primary key (host, image)
) strict, without rowid;
