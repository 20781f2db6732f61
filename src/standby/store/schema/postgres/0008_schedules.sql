-- Schedules, and one row for each of their ticks.
create table schedules (
    name        text collate "C" not null primary key,
    version     bigint not null,
    project     text collate "C" not null,
    pool        text collate "C" not null,
    cron        text not null,
    zone        text not null,
    missed      text not null check (missed in ('skip', 'once', 'all')),
    memory_mb   bigint not null,
    spec        text not null,
    mode        text not null check (mode in ('open', 'paused')),
    mode_since  bigint not null,
    mode_reason text,
    mode_actor  text not null,
    next_at     bigint,
    last_at     bigint,
    last_order  text,
    sealed_env  bytea,
    constraint paused_has_no_next check (mode = 'open' or next_at is null)
);

create index schedules_next on schedules (next_at) where next_at is not null;

create table ticks (
    schedule text collate "C" not null,
    at       bigint not null,
    order_id text collate "C" not null,
    primary key (schedule, at)
);

-- What operators want of projects, and from when on what still runs is stopped.
alter table projects add column mode text not null default 'open' check (mode in ('open', 'paused', 'draining'));
alter table projects add column mode_since bigint not null default 0;
alter table projects add column mode_reason text;
alter table projects add column mode_actor text not null default 'config';
alter table projects add column mode_stop_at bigint;
alter table projects add column configured_max bigint;
update projects set configured_max = running_max;
alter table projects add constraint closed_runs_nothing check (mode = 'open' or (running_max = 0 and running_max is not null));
alter table pools add column mode_stop_at bigint;
alter table hosts add column mode_stop_at bigint;

-- Write one schedule and its tick, in a transaction that holds the writers' lock already; false, and nothing is written,
-- when the schedule is not as it was.
create function put_schedule(was bigint, gone boolean, body json, sealed bytea, tick json)
returns boolean language plpgsql as $$
declare
    wanted schedules := json_populate_record(null::schedules, body);
    found_version bigint;
    kept bytea;
begin
    select s.version, s.sealed_env into found_version, kept from schedules s where s.name = wanted.name;
    if found_version is distinct from was then
        return false;
    end if;
    delete from schedules s where s.name = wanted.name;
    if gone then
        delete from ticks t where t.schedule = wanted.name;
        return true;
    end if;
    wanted.sealed_env := case when sealed is null then kept else nullif(sealed, ''::bytea) end;
    insert into schedules select wanted.*;
    if tick is not null then
        insert into ticks select * from json_populate_record(null::ticks, tick);
        delete from ticks t where t.schedule = wanted.name
            and t.at <= (select k.at from ticks k where k.schedule = wanted.name order by k.at desc limit 1 offset 1000);
    end if;
    return true;
end $$;
