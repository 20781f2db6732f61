-- The columns of a table stand in the order of the fields of its value in core/model.py; readers rely on it.

create table meta (
    incarnation text not null
);

create table orders (
    id            text collate "C" not null primary key,
    version       bigint not null,
    project       text collate "C" not null,
    pool          text collate "C" not null,
    memory_mb     bigint not null,
    submitted_at  bigint not null,
    state         text collate "C" not null,
    state_since   bigint not null,
    attempt       bigint not null,
    rank          bigint,
    due_at        bigint,
    queue_due     bigint,
    dedupe_live   text collate "C",
    slot          text collate "C",
    incarnation   text,
    handle        text,
    commanded_at  bigint,
    command_until bigint,
    ready_at      bigint,
    deadline      bigint,
    stop_reason   text,
    reason        text,
    exit_code     bigint,
    ended_at      bigint,
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
);

create index orders_ready on orders (pool, project, rank, id) where rank is not null;
create unique index orders_slot on orders (slot) where slot is not null;
create unique index orders_dedupe on orders (dedupe_live) where dedupe_live is not null;
create index orders_queue_due on orders (pool, queue_due) where rank is not null and queue_due is not null;
create index orders_due on orders (pool, due_at) where due_at is not null;

-- seq is that of the order's submit event: the order of every listing.
create table specs (
    seq      bigint not null primary key,
    order_id text collate "C" not null unique,
    pool     text collate "C" not null,
    project  text collate "C" not null,
    body     text not null
);

create index specs_project on specs (project, seq);

create table envs (
    order_id text collate "C" not null primary key,
    sealed   bytea not null
);

create table runs (
    order_id       text collate "C" not null,
    number         bigint not null,
    slot           text collate "C" not null,
    incarnation    text not null,
    handle         text,
    commanded_at   bigint not null,
    ready_at       bigint,
    stop_asked_at  bigint,
    ended_at       bigint not null,
    reason         text,
    exit_code      bigint,
    signal         bigint,
    error          text,
    peak_memory_kb bigint,
    cpu_ms         bigint,
    primary key (order_id, number)
);

create table slots (
    name         text collate "C" not null primary key,
    version      bigint not null,
    host         text collate "C" not null,
    pool         text collate "C" not null,
    state        text collate "C" not null,
    state_since  bigint not null,
    incarnation  text,
    uses         bigint not null,
    created_at   bigint not null,
    last_used_at bigint,
    error        text,
    failures     bigint not null,
    retry_at     bigint,
    constraint known_state check (state in ('creating', 'idle', 'cleaning', 'error', 'removing')),
    constraint idle_is_a_place check (state <> 'idle' or incarnation is not null)
);

create table pools (
    name          text collate "C" not null primary key,
    version       bigint not null,
    host          text collate "C" not null,
    settings      text not null,
    mode          text not null check (mode in ('open', 'paused', 'draining')),
    mode_since    bigint not null,
    mode_reason   text,
    mode_actor    text not null,
    blocked_ms    bigint not null,
    blocked_since bigint 
);

create table hosts (
    name              text collate "C" not null primary key,
    version           bigint not null,
    driver            text not null,
    memory_mb         bigint,
    identity          text,
    mode              text not null check (mode in ('open', 'paused', 'draining')),
    mode_since        bigint not null,
    mode_reason       text,
    mode_actor        text not null,
    unreachable_since bigint,
    error             text,
    dead_at           bigint 
);

create table projects (
    name        text collate "C" not null primary key,
    version     bigint not null,
    running_max bigint 
);

-- The next seq is max(seq) + 1: whoever prunes events leaves the last one.
create table events (
    seq        bigint not null primary key,
    at         bigint not null,
    kind       text not null,
    subject    text collate "C" not null,
    from_state text,
    to_state   text,
    trigger    text not null,
    actor      text not null,
    data       text not null,
    change     text collate "C" not null
);

create index events_subject on events (subject, seq);

create table leases (
    host       text collate "C" not null primary key,
    owner      text not null,
    epoch      bigint not null,
    until      bigint not null,
    renewed_at bigint not null
);

create table keys (
    name       text collate "C" not null primary key,
    hash       text not null unique,
    created_at bigint not null
);

create table idempotency (
    project     text collate "C" not null,
    key         text collate "C" not null,
    fingerprint text not null,
    order_id    text collate "C" not null,
    answer      text not null,
    at          bigint not null,
    primary key (project, key)
);

create index idempotency_at on idempotency (at);

create table logs (
    run_id text collate "C" not null,
    first  bigint not null,
    count  bigint not null,
    body   text not null,
    cursor text not null,
    closed boolean not null,
    bytes  bigint not null,
    primary key (run_id, first)
);

-- Half-empty pages keep updates on their own page (HOT); dead versions are swept early.
alter table orders set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
alter table slots set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0);
alter table leases set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0);

-- What one commit is given. n is the place of the change in the batch, from 1; was is the version that must be there,
-- null for a row that must not be there yet.
create type change_in as (
    n integer, change text, at bigint, kind text, subject text, from_state text, to_state text, trigger text, actor text,
    data text, order_id text, order_was bigint, dedupe text, replay_project text, replay_key text, lease_host text,
    lease_epoch bigint, pool text, pool_version bigint, host text, host_version bigint, slot_free text, slot_version bigint,
    opens text, limited boolean
);

create type order_in as (
    n integer, id text, version bigint, project text, pool text, memory_mb bigint, submitted_at bigint, state text,
    state_since bigint, attempt bigint, rank bigint, due_at bigint, queue_due bigint, dedupe_live text, slot text,
    incarnation text, handle text, commanded_at bigint, command_until bigint, ready_at bigint, deadline bigint,
    stop_reason text, reason text, exit_code bigint, ended_at bigint
);

create type slot_in as (
    n integer, was bigint, gone boolean, name text, version bigint, host text, pool text, state text, state_since bigint,
    incarnation text, uses bigint, created_at bigint, last_used_at bigint, error text, failures bigint, retry_at bigint
);

create type run_in as (
    n integer, order_id text, number bigint, slot text, incarnation text, handle text, commanded_at bigint, ready_at bigint,
    stop_asked_at bigint, ended_at bigint, reason text, exit_code bigint, signal bigint, error text, peak_memory_kb bigint,
    cpu_ms bigint
);

create type spec_in as (n integer, order_id text, pool text, project text, body text, sealed bytea);

create type replay_in as (n integer, project text, key text, fingerprint text, order_id text, answer text, at bigint);

-- A pool, host or project: seldom written, so its row comes as JSON.
create type rare_in as (n integer, was bigint, gone boolean, name text, body json);

-- Numbers of the changes whose rows are not as they were.
create function stale_rows(slots_in slot_in[], runs_in run_in[], specs_in spec_in[], pools_in rare_in[], hosts_in rare_in[],
    projects_in rare_in[])
returns integer[] language plpgsql as $$
declare
    stale integer[] := '{}';
begin
    if cardinality(slots_in) > 0 then
        stale := stale || array(select u.n from unnest(slots_in) u left join slots s on s.name = u.name
            where s.version is distinct from u.was);
    end if;
    if cardinality(runs_in) > 0 then
        stale := stale || array(select u.n from unnest(runs_in) u join runs r on r.order_id = u.order_id and r.number = u.number);
    end if;
    if cardinality(specs_in) > 0 then
        stale := stale || array(select u.n from unnest(specs_in) u join specs s on s.order_id = u.order_id);
    end if;
    if cardinality(pools_in) > 0 then
        stale := stale || array(select u.n from unnest(pools_in) u left join pools p on p.name = u.name
            where p.version is distinct from u.was);
    end if;
    if cardinality(hosts_in) > 0 then
        stale := stale || array(select u.n from unnest(hosts_in) u left join hosts h on h.name = u.name
            where h.version is distinct from u.was);
    end if;
    if cardinality(projects_in) > 0 then
        stale := stale || array(select u.n from unnest(projects_in) u left join projects p on p.name = u.name
            where p.version is distinct from u.was);
    end if;
    return stale;
end $$;

-- Write the pools, hosts and projects whose change goes through (its answer is 0).
create function write_rare(answers integer[], pools_in rare_in[], hosts_in rare_in[], projects_in rare_in[])
returns void language plpgsql as $$
begin
    if cardinality(pools_in) > 0 then
        delete from pools p using unnest(pools_in) u where p.name = u.name and u.was is not null and answers[u.n] = 0;
        insert into pools select r.* from unnest(pools_in) u, json_populate_record(null::pools, u.body) r
            where not u.gone and answers[u.n] = 0;
    end if;
    if cardinality(hosts_in) > 0 then
        delete from hosts h using unnest(hosts_in) u where h.name = u.name and u.was is not null and answers[u.n] = 0;
        insert into hosts select r.* from unnest(hosts_in) u, json_populate_record(null::hosts, u.body) r
            where not u.gone and answers[u.n] = 0;
    end if;
    if cardinality(projects_in) > 0 then
        delete from projects p using unnest(projects_in) u where p.name = u.name and u.was is not null and answers[u.n] = 0;
        insert into projects select r.* from unnest(projects_in) u, json_populate_record(null::projects, u.body) r
            where not u.gone and answers[u.n] = 0;
    end if;
end $$;

-- One commit: all changes of a batch, each wholly or not at all.
-- Answers: 0 saved, 1 conflict, 2 deposed, 3 full, 4 duplicate (of others[n]); seqs[n] is 0 unless saved.
create function save_changes(changes change_in[], new_orders order_in[], changed_orders order_in[], slots_in slot_in[],
    runs_in run_in[], specs_in spec_in[], replays_in replay_in[], pools_in rare_in[], hosts_in rare_in[],
    projects_in rare_in[], hint text, out answers integer[], out seqs bigint[], out others text[])
language plpgsql as $$
declare
    refused integer;
    last_seq bigint;
begin
    -- A statement of its own: every later one takes its snapshot with the lock held and sees all earlier commits.
    perform pg_advisory_xact_lock(x'5354414e444259'::bigint);

    select array_agg(v.answer order by v.n), array_agg(v.other order by v.n) into answers, others from (
        select c.n, coalesce(i.order_id, d.id) as other, case
            when c.lease_host is not null and l.epoch is distinct from c.lease_epoch then 2
            when i.order_id is not null or d.id is not null then 4
            when c.order_id is not null and o.version is distinct from c.order_was
                or c.pool_version is not null and p.version is distinct from c.pool_version
                or c.host_version is not null and h.version is distinct from c.host_version
                or c.slot_free is not null and (s.state is distinct from 'idle'
                    or s.version <> c.slot_version or held.id is not null) then 1
            else 0 end as answer
        from unnest(changes) c
            left join leases l on l.host = c.lease_host
            left join orders o on o.id = c.order_id
            left join slots s on s.name = c.slot_free
            left join orders held on held.slot = c.slot_free
            left join pools p on p.name = c.pool
            left join hosts h on h.name = c.host
            left join orders d on d.dedupe_live = c.dedupe
            left join idempotency i on i.project = c.replay_project and i.key = c.replay_key) v;

    foreach refused in array stale_rows(slots_in, runs_in, specs_in, pools_in, hosts_in, projects_in) loop
        if answers[refused] = 0 then
            answers[refused] := 1;
        end if;
    end loop;

    if true = any (select c.limited from unnest(changes) c) then
        foreach refused in array array(
            with claim as materialized (
                select c.n, c.limited, c.opens, row_number() over (partition by c.opens order by c.n) as place
                from unnest(changes) c where c.opens is not null and answers[c.n] = 0),
            room as materialized (
                select p.name, p.running_max
                    - (select count(*) from orders o where o.slot is not null and o.project = p.name) as places
                from projects p where p.running_max is not null and p.name in (select distinct k.opens from claim k))
            select k.n from claim k join room r on r.name = k.opens where k.limited and k.place > r.places) loop
            answers[refused] := 3;
        end loop;
    end if;

    select coalesce(max(e.seq), 0) into last_seq from events e;
    seqs := array(select case when a.answer = 0 then last_seq + count(*) filter (where a.answer = 0) over (order by a.n)
        else 0 end from unnest(answers) with ordinality as a (answer, n) order by a.n);

    if cardinality(changed_orders) > 0 then
        update orders o set version = u.version, state = u.state, state_since = u.state_since, attempt = u.attempt,
            rank = u.rank, due_at = u.due_at, queue_due = u.queue_due, dedupe_live = u.dedupe_live, slot = u.slot,
            incarnation = u.incarnation, handle = u.handle, commanded_at = u.commanded_at, command_until = u.command_until,
            ready_at = u.ready_at, deadline = u.deadline, stop_reason = u.stop_reason, reason = u.reason,
            exit_code = u.exit_code, ended_at = u.ended_at
        from unnest(changed_orders) u where o.id = u.id and answers[u.n] = 0;
    end if;
    if cardinality(new_orders) > 0 then
        insert into orders (id, version, project, pool, memory_mb, submitted_at, state, state_since, attempt, rank, due_at,
            queue_due, dedupe_live, slot, incarnation, handle, commanded_at, command_until, ready_at, deadline, stop_reason,
            reason, exit_code, ended_at)
        select u.id, u.version, u.project, u.pool, u.memory_mb, u.submitted_at, u.state, u.state_since, u.attempt, u.rank,
            u.due_at, u.queue_due, u.dedupe_live, u.slot, u.incarnation, u.handle, u.commanded_at, u.command_until,
            u.ready_at, u.deadline, u.stop_reason, u.reason, u.exit_code, u.ended_at
        from unnest(new_orders) u where answers[u.n] = 0;
    end if;
    if cardinality(specs_in) > 0 then
        insert into specs (seq, order_id, pool, project, body)
        select seqs[u.n], u.order_id, u.pool, u.project, u.body from unnest(specs_in) u where answers[u.n] = 0;
        insert into envs (order_id, sealed)
        select u.order_id, u.sealed from unnest(specs_in) u where answers[u.n] = 0 and u.sealed is not null;
    end if;
    if cardinality(runs_in) > 0 then
        insert into runs (order_id, number, slot, incarnation, handle, commanded_at, ready_at, stop_asked_at, ended_at, reason,
            exit_code, signal, error, peak_memory_kb, cpu_ms)
        select u.order_id, u.number, u.slot, u.incarnation, u.handle, u.commanded_at, u.ready_at, u.stop_asked_at, u.ended_at,
            u.reason, u.exit_code, u.signal, u.error, u.peak_memory_kb, u.cpu_ms
        from unnest(runs_in) u where answers[u.n] = 0;
    end if;
    if cardinality(slots_in) > 0 then
        update slots s set version = u.version, host = u.host, pool = u.pool, state = u.state, state_since = u.state_since,
            incarnation = u.incarnation, uses = u.uses, created_at = u.created_at, last_used_at = u.last_used_at,
            error = u.error, failures = u.failures, retry_at = u.retry_at
        from unnest(slots_in) u where s.name = u.name and u.was is not null and not u.gone and answers[u.n] = 0;
        insert into slots (name, version, host, pool, state, state_since, incarnation, uses, created_at, last_used_at, error,
            failures, retry_at)
        select u.name, u.version, u.host, u.pool, u.state, u.state_since, u.incarnation, u.uses, u.created_at, u.last_used_at,
            u.error, u.failures, u.retry_at
        from unnest(slots_in) u where u.was is null and answers[u.n] = 0;
        delete from slots s using unnest(slots_in) u where s.name = u.name and u.gone and answers[u.n] = 0;
    end if;
    if cardinality(replays_in) > 0 then
        insert into idempotency (project, key, fingerprint, order_id, answer, at)
        select u.project, u.key, u.fingerprint, u.order_id, u.answer, u.at from unnest(replays_in) u where answers[u.n] = 0;
    end if;
    perform write_rare(answers, pools_in, hosts_in, projects_in);

    insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
    select seqs[c.n], c.at, c.kind, c.subject, c.from_state, c.to_state, c.trigger, c.actor, c.data, c.change
    from unnest(changes) c where answers[c.n] = 0;

    if hint is not null then
        perform pg_notify('standby', hint);
    end if;
end $$;

create function clock_ms() returns bigint language sql volatile as $$
    select floor(extract(epoch from clock_timestamp()) * 1000)::bigint
$$;

-- The new lease and, if there was one, the lease before it; nothing when somebody else leads. Under the writers' lock, so that
-- no change of the deposed leader can commit after it. renewed_at stays: nobody led since then until the new leader renews.
create function take_lease(host_in text, owner_in text, ttl_ms bigint, clock_offset bigint)
returns setof leases language plpgsql as $$
declare
    was leases;
    now_ms bigint;
begin
    perform pg_advisory_xact_lock(x'5354414e444259'::bigint);
    select * into was from leases l where l.host = host_in for update;
    now_ms := clock_ms() + clock_offset;
    if was.host is not null and was.until > now_ms and was.owner <> owner_in then
        return;
    end if;
    return query
        insert into leases as l (host, owner, epoch, until, renewed_at)
        values (host_in, owner_in, greatest(now_ms, coalesce(was.epoch, 0) + 1), now_ms + ttl_ms, now_ms)
        on conflict (host) do update set owner = excluded.owner, epoch = excluded.epoch, until = excluded.until
        returning l.*;
    if was.host is not null then
        return next was;
    end if;
end $$;
