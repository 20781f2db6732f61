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

-- One commit: all changes of a batch, each wholly or not at all.
-- Answers: 0 saved, 1 conflict, 2 deposed, 3 full, 4 duplicate (of others[n]); seqs[n] is 0 unless saved.
create or replace function save_changes(changes change_in[], new_orders order_in[], changed_orders order_in[], slots_in slot_in[],
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
            exit_code = u.exit_code, ended_at = u.ended_at, boot = u.boot, deploy_since = u.deploy_since
        from unnest(changed_orders) u where o.id = u.id and answers[u.n] = 0;
    end if;
    if cardinality(new_orders) > 0 then
        insert into orders (id, version, project, pool, memory_mb, submitted_at, state, state_since, attempt, rank, due_at,
            queue_due, dedupe_live, slot, incarnation, handle, commanded_at, command_until, ready_at, deadline, stop_reason,
            reason, exit_code, ended_at, boot, deploy_since)
        select u.id, u.version, u.project, u.pool, u.memory_mb, u.submitted_at, u.state, u.state_since, u.attempt, u.rank,
            u.due_at, u.queue_due, u.dedupe_live, u.slot, u.incarnation, u.handle, u.commanded_at, u.command_until,
            u.ready_at, u.deadline, u.stop_reason, u.reason, u.exit_code, u.ended_at, u.boot, u.deploy_since
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
            exit_code, signal, error, peak_memory_kb, cpu_ms, boot, error_name)
        select u.order_id, u.number, u.slot, u.incarnation, u.handle, u.commanded_at, u.ready_at, u.stop_asked_at, u.ended_at,
            u.reason, u.exit_code, u.signal, u.error, u.peak_memory_kb, u.cpu_ms, u.boot, u.error_name
        from unnest(runs_in) u where answers[u.n] = 0;
    end if;
    if cardinality(slots_in) > 0 then
        update slots s set version = u.version, host = u.host, pool = u.pool, state = u.state, state_since = u.state_since,
            incarnation = u.incarnation, uses = u.uses, created_at = u.created_at, last_used_at = u.last_used_at,
            error = u.error, failures = u.failures, retry_at = u.retry_at, generation = u.generation, template = u.template,
            boot = u.boot
        from unnest(slots_in) u where s.name = u.name and u.was is not null and not u.gone and answers[u.n] = 0;
        insert into slots (name, version, host, pool, state, state_since, incarnation, uses, created_at, last_used_at, error,
            failures, retry_at, generation, template, boot)
        select u.name, u.version, u.host, u.pool, u.state, u.state_since, u.incarnation, u.uses, u.created_at, u.last_used_at,
            u.error, u.failures, u.retry_at, u.generation, u.template, u.boot
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

create or replace function save_hot(
    g_host text[], g_epoch bigint[], g_pool text[], g_pool_version bigint[], g_host_version bigint[],
    c_n bigint[], c_g bigint[], c_id text[], c_was bigint[], c_at bigint[], c_attempt bigint[], c_slot text[],
    c_slot_was bigint[], c_incarnation text[], c_until bigint[], c_deadline bigint[],
    r_n bigint[], r_g bigint[], r_id text[], r_was bigint[], r_at bigint[], r_handle text[], r_deadline bigint[],
    e_n bigint[], e_g bigint[], e_id text[], e_was bigint[], e_at bigint[], e_state text[], e_due bigint[], e_reason text[],
    e_code bigint[], e_ended bigint[], e_slot text[], e_slot_was bigint[], e_slot_state text[], e_slot_since bigint[],
    e_number bigint[], e_incarnation text[], e_handle text[], e_commanded bigint[], e_ready bigint[], e_stop_asked bigint[],
    e_signal bigint[], e_error text[], e_peak bigint[], e_cpu bigint[],
    s_n bigint[], s_id text[], s_project text[], s_pool text[], s_memory bigint[], s_at bigint[], s_rank bigint[], s_due bigint[],
    s_queue_due bigint[], s_dedupe text[], s_body text[], s_sealed text[], s_key text[], s_fingerprint text[], s_answer text[],
    v_change text[], v_at bigint[], v_kind text[], v_subject text[], v_from text[], v_to text[], v_trigger text[],
    v_actor text[], v_data text[],
    changes change_in[], new_orders order_in[], changed_orders order_in[], slots_in slot_in[], runs_in run_in[],
    specs_in spec_in[], replays_in replay_in[], pools_in rare_in[], hosts_in rare_in[], projects_in rare_in[], hint text,
    out seqs bigint[], out other_answers integer[], out other_seqs bigint[], out others text[])
language plpgsql as $$
declare
    held boolean[];
    crowded bigint[] := '{}';
    saved bigint[];
    place bigint;
    last_seq bigint;
begin
    perform pg_advisory_xact_lock(x'5354414e444259'::bigint);

    held := array(
        select coalesce(l.epoch = g.epoch and (g.pool is null or p.version = g.pool_version)
            and (g.host_version is null or h.version = g.host_version), false)
        from unnest(g_host, g_epoch, g_pool, g_pool_version, g_host_version) with ordinality
                as g (host, epoch, pool, pool_version, host_version, n)
            left join leases l on l.host = g.host
            left join pools p on p.name = g.pool
            left join hosts h on h.name = g.host
        order by g.n);

    if c_n is not null then
        if exists (select 1 from projects p where p.running_max is not null) then
            crowded := array(
                with claim as materialized (
                    select c.n, o.project, row_number() over (partition by o.project order by c.n) as place
                    from unnest(c_n, c_id) c (n, id) join orders o on o.id = c.id),
                room as materialized (
                    select p.name, p.running_max
                        - (select count(*) from orders o where o.slot is not null and o.project = p.name) as places
                    from projects p where p.running_max is not null and p.name in (select distinct k.project from claim k))
                select k.n from claim k join room r on r.name = k.project where k.place > r.places);
        end if;
        with c as materialized (
            select c.*, s.boot from unnest(c_n, c_g, c_id, c_was, c_at, c_attempt, c_slot, c_slot_was, c_incarnation, c_until,
                    c_deadline) c (n, g, id, was, at, attempt, slot, slot_was, incarnation, until, deadline)
                join slots s on s.name = c.slot and s.version = c.slot_was and s.state = 'idle'
            where held[c.g] and not c.n = any (crowded) and not exists (select 1 from orders h where h.slot = c.slot)),
        u as (
            update orders o set version = c.was + 1, state = 'preparing', state_since = c.at, attempt = c.attempt, rank = null,
                queue_due = null, slot = c.slot, incarnation = c.incarnation, commanded_at = c.at, command_until = c.until,
                deadline = c.deadline, boot = c.boot, deploy_since = null
            from c where o.id = c.id and o.version = c.was returning c.n)
        select array_agg(u.n order by u.n) into saved from u;
    end if;

    if r_n is not null then
        with u as (
            update orders o set version = r.was + 1, state = 'running', state_since = r.at, ready_at = r.at, handle = r.handle,
                deadline = r.deadline
            from unnest(r_n, r_g, r_id, r_was, r_at, r_handle, r_deadline) r (n, g, id, was, at, handle, deadline)
            where o.id = r.id and o.version = r.was and held[r.g] returning r.n)
        select saved || array_agg(u.n order by u.n) into saved from u;
    end if;

    if e_n is not null then
        with e as materialized (
            select e.* from unnest(e_n, e_g, e_id, e_was, e_at, e_state, e_due, e_reason, e_code, e_ended, e_slot, e_slot_was,
                    e_slot_state, e_slot_since, e_number, e_incarnation, e_handle, e_commanded, e_ready, e_stop_asked,
                    e_signal, e_error, e_peak, e_cpu)
                e (n, g, id, was, at, state, due, reason, code, ended, slot, slot_was, slot_state, slot_since, number,
                    incarnation, handle, commanded, ready, stop_asked, signal, error, peak, cpu)
                join slots s on s.name = e.slot and s.version = e.slot_was
            where held[e.g]),
        u as (
            update orders o set version = e.was + 1, state = e.state, state_since = e.at, due_at = e.due, dedupe_live =
                    case when e.ended is null then o.dedupe_live end, slot = null, incarnation = null, handle = null,
                commanded_at = null, command_until = null, ready_at = null, deadline = null, stop_reason = null,
                reason = e.reason, exit_code = e.code, ended_at = e.ended, boot = null
            from e where o.id = e.id and o.version = e.was
            returning e.*),
        s as (
            update slots s set version = u.slot_was + 1, state = u.slot_state, state_since = u.slot_since, uses = s.uses + 1,
                last_used_at = u.at
            from u where s.name = u.slot),
        r as (
            insert into runs (order_id, number, slot, incarnation, handle, commanded_at, ready_at, stop_asked_at, ended_at,
                reason, exit_code, signal, error, peak_memory_kb, cpu_ms)
            select u.id, u.number, u.slot, u.incarnation, u.handle, u.commanded, u.ready, u.stop_asked, u.at, u.reason, u.code,
                u.signal, u.error, u.peak, u.cpu
            from u)
        select saved || array_agg(u.n order by u.n) into saved from u;
    end if;

    if s_n is not null then
        with s as materialized (
            select s.* from unnest(s_n, s_id, s_project, s_pool, s_memory, s_at, s_rank, s_due, s_queue_due, s_dedupe, s_key)
                s (n, id, project, pool, memory, at, rank, due, queue_due, dedupe, key)
            where not exists (select 1 from orders o where o.id = s.id)
                and not exists (select 1 from specs p where p.order_id = s.id)
                and (s.dedupe is null or not exists (select 1 from orders d where d.dedupe_live = s.dedupe))
                and (s.key is null
                    or not exists (select 1 from idempotency i where i.project = s.project and i.key = s.key))),
        i as (
            insert into orders (id, version, project, pool, memory_mb, submitted_at, state, state_since, attempt, rank, due_at,
                queue_due, dedupe_live)
            select s.id, 1, s.project, s.pool, s.memory, s.at, 'pending', s.at, 0, s.rank, s.due, s.queue_due, s.dedupe from s)
        select saved || array_agg(s.n order by s.n) into saved from s;
    end if;

    select coalesce(max(e.seq), 0) into last_seq from events e;
    seqs := array_fill(0::bigint, array[cardinality(v_change)]);
    foreach place in array coalesce(saved, '{}') loop
        last_seq := last_seq + 1;
        seqs[place] := last_seq;
    end loop;
    if s_n is not null then
        insert into specs (seq, order_id, pool, project, body)
        select seqs[s.n], s.id, s.pool, s.project, s.body
        from unnest(s_n, s_id, s_pool, s_project, s_body) s (n, id, pool, project, body) where seqs[s.n] > 0;
        insert into envs (order_id, sealed)
        select s.id, decode(s.sealed, 'hex') from unnest(s_n, s_id, s_sealed) s (n, id, sealed)
        where s.sealed is not null and seqs[s.n] > 0;
        insert into idempotency (project, key, fingerprint, order_id, answer, at)
        select s.project, s.key, s.fingerprint, s.id, s.answer, s.at
        from unnest(s_n, s_id, s_project, s_at, s_key, s_fingerprint, s_answer) s (n, id, project, at, key, fingerprint, answer)
        where s.key is not null and seqs[s.n] > 0;
    end if;
    insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
    select seqs[v.n], v.at, v.kind, v.subject, v.from_state, v.to_state, v.trigger, v.actor, v.data, v.change
    from unnest(v_change, v_at, v_kind, v_subject, v_from, v_to, v_trigger, v_actor, v_data) with ordinality
        v (change, at, kind, subject, from_state, to_state, trigger, actor, data, n)
    where seqs[v.n] > 0;

    if cardinality(changes) > 0 then
        select s.answers, s.seqs, s.others into other_answers, other_seqs, others
        from save_changes(changes, new_orders, changed_orders, slots_in, runs_in, specs_in, replays_in, pools_in, hosts_in,
            projects_in, null) s;
    end if;
    if hint is not null then
        perform pg_notify('standby', hint);
    end if;
end $$;
