-- What each state means, in one check: lists of states were set up anew for every order that was written, a quarter of
-- all the work. Columns stand as before.
create table orders_anew (
    id              text    not null primary key,
    version         integer not null,
    project         text    not null,
    pool            text    not null,
    memory_mb       integer not null,
    submitted_at    integer not null,
    state           text    not null,
    state_since     integer not null,
    attempt         integer not null,
    rank            integer,
    due_at          integer,
    queue_due       integer,
    dedupe_live     text,
    slot            text,
    incarnation     text,
    handle          text,
    commanded_at    integer,
    command_until   integer,
    ready_at        integer,
    deadline        integer,
    stop_reason     text,
    reason          text,
    exit_code       integer,
    ended_at        integer,
    boot            text,
    deploy_since    integer,
    concurrency_key text,
    cpus            real,
    constraint state_is_whole check (case state
        when 'pending' then slot is null and ended_at is null and (rank is null) <> (due_at is null)
        when 'waiting_retry' then slot is null and ended_at is null and rank is null and due_at is not null
        when 'preparing' then slot is not null and ended_at is null and rank is null and due_at is null
        when 'running' then slot is not null and ended_at is null and rank is null and due_at is null
            and ready_at is not null
        when 'stopping' then slot is not null and ended_at is null and rank is null and due_at is null
        when 'completed' then slot is null and ended_at is not null and rank is null and due_at is null
        when 'failed' then slot is null and ended_at is not null and rank is null and due_at is null
        when 'cancelled' then slot is null and ended_at is not null and rank is null and due_at is null
        else false end),
    constraint open_run_is_whole check (slot is null or (incarnation is not null and commanded_at is not null)),
    constraint dedupe_while_unfinished check (dedupe_live is null or ended_at is null)
) strict, without rowid;

insert into orders_anew select * from orders;
drop table orders;
alter table orders_anew rename to orders;

create index orders_ready on orders (pool, project, rank, id) where rank is not null;
create unique index orders_slot on orders (slot) where slot is not null;
create unique index orders_dedupe on orders (dedupe_live) where dedupe_live is not null;
create index orders_queue_due on orders (pool, queue_due) where rank is not null and queue_due is not null;
create index orders_due on orders (pool, due_at) where due_at is not null;
create unique index orders_key_open on orders (project, concurrency_key)
    where concurrency_key is not null and slot is not null;
create index orders_key on orders (project, concurrency_key) where concurrency_key is not null and ended_at is null;
