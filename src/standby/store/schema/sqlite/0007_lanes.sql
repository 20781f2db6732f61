-- Concurrency keys: of the orders of a project with one key, one has an open run.
alter table orders add column concurrency_key text;
create unique index orders_key_open on orders (project, concurrency_key)
    where concurrency_key is not null and slot is not null;
create index orders_key on orders (project, concurrency_key, rank, id)
    where concurrency_key is not null and ended_at is null;

-- A project's share of the turns, how many of its orders may wait, and what operators set over the configuration.
alter table projects add column weight integer not null default 1;
alter table projects add column queue_max integer;
alter table projects add column overrides text not null default '{}';
