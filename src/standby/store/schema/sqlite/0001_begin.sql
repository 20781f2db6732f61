-- The columns of a table stand in the order of the fields of its value in core/model.py; readers rely on it.

create table meta (
    incarnation text not null
) strict;

create table orders (
    id            text    not null primary key,
    version       integer not null,
    project       text    not null,
    pool          text    not null,
    memory_mb     integer not null,
    submitted_at  integer not null,
    state         text    not null,
    state_since   integer not null,
    attempt       integer not null,
    rank          integer,
    due_at        integer,
    queue_due     integer,
    dedupe_live   text,
    slot          text,
    incarnation   text,
    handle        text,
    commanded_at  integer,
    command_until integer,
    ready_at      integer,
    deadline      integer,
    stop_reason   text,
    reason        text,
    exit_code     integer,
    ended_at      integer,
    constraint known_state check (state in
        ('pending', 'preparing', 'running', 'stopping', 'waiting_retry', 'completed', 'failed', 'cancelled')),
    constraint open_holds_a_slot check ((state in ('preparing', 'running', 'stopping')) = (slot is not null)),
    constraint open_run_is_whole check (slot is null or (incarnation is not null and commanded_at is not null)),
    constraint running_is_ready check (state <> 'running' or ready_at is not null),
    constraint rank_while_pending check (rank is null or state = 'pending'),
    constraint due_while_waiting check (due_at is null or state in ('pending', 'waiting_retry')),
    constraint waiting_is_found_again check
        (state not in ('pending', 'waiting_retry') or (rank is null) <> (due_at is null)),
    constraint ended_has_its_time check ((state in ('completed', 'failed', 'cancelled')) = (ended_at is not null)),
    constraint dedupe_while_unfinished check (dedupe_live is null or ended_at is null)
) strict, without rowid;

create index orders_ready on orders (pool, project, rank, id) where rank is not null;
create unique index orders_slot on orders (slot) where slot is not null;
create unique index orders_dedupe on orders (dedupe_live) where dedupe_live is not null;
create index orders_queue_due on orders (pool, queue_due) where rank is not null and queue_due is not null;
create index orders_due on orders (pool, due_at) where due_at is not null;

-- seq is that of the order's submit event: the order of every listing.
create table specs (
    seq      integer not null primary key,
    order_id text    not null unique,
    pool     text    not null,
    project  text    not null,
    body     text    not null
) strict;

create index specs_project on specs (project, seq);

create table envs (
    order_id text not null primary key,
    sealed   blob not null
) strict, without rowid;

create table runs (
    order_id       text    not null,
    number         integer not null,
    slot           text    not null,
    incarnation    text    not null,
    handle         text,
    commanded_at   integer not null,
    ready_at       integer,
    stop_asked_at  integer,
    ended_at       integer not null,
    reason         text,
    exit_code      integer,
    signal         integer,
    error          text,
    peak_memory_kb integer,
    cpu_ms         integer,
    primary key (order_id, number)
) strict, without rowid;

create table slots (
    name         text    not null primary key,
    version      integer not null,
    host         text    not null,
    pool         text    not null,
    state        text    not null,
    state_since  integer not null,
    incarnation  text,
    uses         integer not null,
    created_at   integer not null,
    last_used_at integer,
    error        text,
    failures     integer not null,
    retry_at     integer,
    constraint known_state check (state in ('creating', 'idle', 'cleaning', 'error', 'removing')),
    constraint idle_is_a_place check (state <> 'idle' or incarnation is not null)
) strict, without rowid;

create table pools (
    name          text    not null primary key,
    version       integer not null,
    host          text    not null,
    settings      text    not null,
    mode          text    not null check (mode in ('open', 'paused', 'draining')),
    mode_since    integer not null,
    mode_reason   text,
    mode_actor    text    not null,
    blocked_ms    integer not null,
    blocked_since integer
) strict, without rowid;

create table hosts (
    name              text    not null primary key,
    version           integer not null,
    driver            text    not null,
    memory_mb         integer,
    identity          text,
    mode              text    not null check (mode in ('open', 'paused', 'draining')),
    mode_since        integer not null,
    mode_reason       text,
    mode_actor        text    not null,
    unreachable_since integer,
    error             text,
    dead_at           integer
) strict, without rowid;

create table projects (
    name        text    not null primary key,
    version     integer not null,
    running_max integer
) strict, without rowid;

-- The next seq is max(seq) + 1: whoever prunes events leaves the last one.
create table events (
    seq        integer not null primary key,
    at         integer not null,
    kind       text    not null,
    subject    text    not null,
    from_state text,
    to_state   text,
    trigger    text    not null,
    actor      text    not null,
    data       text    not null,
    change     text    not null
) strict;

create index events_subject on events (subject, seq);

create table leases (
    host       text    not null primary key,
    owner      text    not null,
    epoch      integer not null,
    until      integer not null,
    renewed_at integer not null
) strict, without rowid;

create table keys (
    name       text    not null primary key,
    hash       text    not null unique,
    created_at integer not null
) strict, without rowid;

create table idempotency (
    project     text    not null,
    key         text    not null,
    fingerprint text    not null,
    order_id    text    not null,
    answer      text    not null,
    at          integer not null,
    primary key (project, key)
) strict, without rowid;

create index idempotency_at on idempotency (at);
