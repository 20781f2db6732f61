-- Schedules, and one row for each of their ticks.
create table schedules (
    name        text    not null primary key,
    version     integer not null,
    project     text    not null,
    pool        text    not null,
    cron        text    not null,
    zone        text    not null,
    missed      text    not null check (missed in ('skip', 'once', 'all')),
    memory_mb   integer not null,
    spec        text    not null,
    mode        text    not null check (mode in ('open', 'paused')),
    mode_since  integer not null,
    mode_reason text,
    mode_actor  text    not null,
    next_at     integer,
    last_at     integer,
    last_order  text,
    sealed_env  blob,
    constraint paused_has_no_next check (mode = 'open' or next_at is null)
) strict, without rowid;

create index schedules_next on schedules (next_at) where next_at is not null;

create table ticks (
    schedule text    not null,
    at       integer not null,
    order_id text    not null,
    primary key (schedule, at)
) strict, without rowid;

-- What operators want of projects, and from when on what still runs is stopped.
alter table projects add column mode text not null default 'open'
    check (mode in ('open', 'paused', 'draining') and (mode = 'open' or (running_max = 0 and running_max is not null)));
alter table projects add column mode_since integer not null default 0;
alter table projects add column mode_reason text;
alter table projects add column mode_actor text not null default 'config';
alter table projects add column mode_stop_at integer;
alter table projects add column configured_max integer;
update projects set configured_max = running_max;
alter table pools add column mode_stop_at integer;
alter table hosts add column mode_stop_at integer;
