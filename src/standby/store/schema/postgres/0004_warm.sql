-- Warm slots: which generation of a place, made from what, and which worker lives in it.
alter table slots add column generation bigint not null default 1;
alter table slots add column template text not null default '';
alter table slots add column boot text;

alter table orders add column boot text;
alter table orders add column deploy_since bigint;
alter table runs add column boot text;
alter table runs add column error_name text;

-- The breaker of a pool, the deploy gate of a host.
alter table pools add column failures bigint not null default 0;
alter table pools add column broken_at bigint;
alter table hosts add column starts_max bigint;
alter table hosts add column start_gap_ms bigint not null default 0;

-- What the worker of a run said last: no version, no event; its end becomes one.
create table reports (
    run_id       text collate "C" not null primary key,
    boot         text not null,
    begun_at     bigint,
    heartbeat_at bigint not null,
    progress     double precision,
    text         text,
    ended_at     bigint,
    exit_code    bigint,
    error_name   text,
    error        text,
    retryable    boolean,
    result       text
);

-- What is known of an image on a host: no version, no event.
create table images (
    host          text collate "C" not null,
    image         text collate "C" not null,
    at            bigint not null,
    present       boolean not null,
    pulling_since bigint,
    progress      text,
    error         text,
    primary key (host, image)
);

alter type order_in add attribute boot text, add attribute deploy_since bigint;
alter type slot_in add attribute generation bigint, add attribute template text, add attribute boot text;
alter type run_in add attribute boot text, add attribute error_name text;
