-- Concurrency keys: of the orders of a project with one key, one has an open run.
alter table orders add column concurrency_key text collate "C";
create unique index orders_key_open on orders (project, concurrency_key)
    where concurrency_key is not null and slot is not null;
create index orders_key on orders (project, concurrency_key, rank, id)
    where concurrency_key is not null and ended_at is null;

-- A project's share of the turns, how many of its orders may wait, and what operators set over the configuration.
alter table projects add column weight bigint not null default 1;
alter table projects add column queue_max bigint;
alter table projects add column overrides text not null default '{}';

alter type order_in add attribute concurrency_key text;
alter type change_in add attribute concurrency_key text;

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

    if exists (select 1 from unnest(changes) c where c.concurrency_key is not null) then
        foreach refused in array array(
            with claim as materialized (
                select c.n, c.opens, c.concurrency_key,
                    row_number() over (partition by c.opens, c.concurrency_key order by c.n) as place
                from unnest(changes) c where c.concurrency_key is not null and answers[c.n] = 0)
            select k.n from claim k where k.place > 1 or exists (
                select 1 from orders o where o.project = k.opens and o.concurrency_key = k.concurrency_key
                    and o.slot is not null)) loop
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
            reason, exit_code, ended_at, boot, deploy_since, concurrency_key)
        select u.id, u.version, u.project, u.pool, u.memory_mb, u.submitted_at, u.state, u.state_since, u.attempt, u.rank,
            u.due_at, u.queue_due, u.dedupe_live, u.slot, u.incarnation, u.handle, u.commanded_at, u.command_until,
            u.ready_at, u.deadline, u.stop_reason, u.reason, u.exit_code, u.ended_at, u.boot, u.deploy_since,
            u.concurrency_key
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
