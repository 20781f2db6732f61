-- The changes that every order goes through, by column arrays and narrow updates: n is the place of a change among these, g the
-- place of what it has in common with others (guards, trigger, actor). Ends and submits go before claims, so that a slot is let
-- go and claimed in one transaction, and an order taken in and claimed. Then the other changes of the batch. seqs[i] is the event
-- of the change saved[i]; one that is not among them was not taken. Two claims of one concurrency key are never in one batch.
drop function save_hot;

create function save_hot(
    g_host text[], g_epoch bigint[], g_pool text[], g_pool_version bigint[], g_host_version bigint[], g_trigger text[],
    g_actor text[],
    e_n bigint[], e_g bigint[], e_change text[], e_id text[], e_was bigint[], e_from text[], e_at bigint[], e_state text[],
    e_due bigint[], e_reason text[], e_code bigint[], e_ended bigint[], e_slot text[], e_slot_was bigint[], e_slot_state text[],
    e_slot_since bigint[], e_number bigint[], e_incarnation text[], e_handle text[], e_commanded bigint[], e_ready bigint[],
    e_stop_asked bigint[], e_signal bigint[], e_error text[], e_peak bigint[], e_cpu bigint[], e_data text[],
    c_n bigint[], c_g bigint[], c_change text[], c_id text[], c_was bigint[], c_at bigint[], c_attempt bigint[], c_slot text[],
    c_slot_was bigint[], c_incarnation text[], c_until bigint[], c_deadline bigint[], c_data text[],
    r_n bigint[], r_g bigint[], r_change text[], r_id text[], r_was bigint[], r_at bigint[], r_handle text[],
    r_deadline bigint[], r_data text[],
    s_n bigint[], s_g bigint[], s_change text[], s_id text[], s_project text[], s_pool text[], s_memory bigint[], s_at bigint[],
    s_rank bigint[], s_due bigint[], s_queue_due bigint[], s_dedupe text[], s_concurrency text[], s_body text[],
    s_sealed text[], s_key text[], s_fingerprint text[], s_answer text[], s_data text[],
    changes change_in[], new_orders order_in[], changed_orders order_in[], slots_in slot_in[], runs_in run_in[],
    specs_in spec_in[], replays_in replay_in[], pools_in rare_in[], hosts_in rare_in[], projects_in rare_in[], hint text,
    out saved bigint[], out seqs bigint[], out other_answers integer[], out other_seqs bigint[], out others text[])
language plpgsql as $$
declare
    held boolean[];
    crowded bigint[] := '{}';
    more bigint[];
    more_seqs bigint[];
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
    select coalesce(max(e.seq), 0) into last_seq from events e;
    saved := '{}';
    seqs := '{}';

    if e_n is not null then
        with e as materialized (
            select e.* from unnest(e_n, e_g, e_change, e_id, e_was, e_from, e_at, e_state, e_due, e_reason, e_code, e_ended,
                    e_slot, e_slot_was, e_slot_state, e_slot_since, e_number, e_incarnation, e_handle, e_commanded, e_ready,
                    e_stop_asked, e_signal, e_error, e_peak, e_cpu, e_data)
                e (n, g, change, id, was, from_state, at, state, due, reason, code, ended, slot, slot_was, slot_state,
                    slot_since, number, incarnation, handle, commanded, ready, stop_asked, signal, error, peak, cpu, data)
                join slots s on s.name = e.slot and s.version = e.slot_was
            where held[e.g]),
        u as (
            update orders o set version = e.was + 1, state = e.state, state_since = e.at, due_at = e.due, dedupe_live =
                    case when e.ended is null then o.dedupe_live end, slot = null, incarnation = null, handle = null,
                commanded_at = null, command_until = null, ready_at = null, deadline = null, stop_reason = null,
                reason = e.reason, exit_code = e.code, ended_at = e.ended
            from e where o.id = e.id and o.version = e.was
            returning e.*),
        t as materialized (select u.*, last_seq + row_number() over () as seq from u),
        s as (
            update slots s set version = t.slot_was + 1, state = t.slot_state, state_since = t.slot_since, uses = s.uses + 1,
                last_used_at = t.at
            from t where s.name = t.slot),
        r as (
            insert into runs (order_id, number, slot, incarnation, handle, commanded_at, ready_at, stop_asked_at, ended_at,
                reason, exit_code, signal, error, peak_memory_kb, cpu_ms)
            select t.id, t.number, t.slot, t.incarnation, t.handle, t.commanded, t.ready, t.stop_asked, t.at, t.reason, t.code,
                t.signal, t.error, t.peak, t.cpu
            from t),
        v as (
            insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
            select t.seq, t.at, case t.state when 'waiting_retry' then 'order.retry_waiting' else 'order.' || t.state end,
                t.id, t.from_state, t.state, g_trigger[t.g], g_actor[t.g], t.data, t.change
            from t)
        select array_agg(t.n), array_agg(t.seq) into saved, seqs from t;
        last_seq := last_seq + coalesce(cardinality(saved), 0);
    end if;

    if s_n is not null then
        with s as materialized (
            select s.*, last_seq + row_number() over () as seq
            from unnest(s_n, s_g, s_change, s_id, s_project, s_pool, s_memory, s_at, s_rank, s_due, s_queue_due, s_dedupe,
                    s_concurrency, s_body, s_sealed, s_key, s_fingerprint, s_answer, s_data)
                s (n, g, change, id, project, pool, memory, at, rank, due, queue_due, dedupe, concurrency, body, sealed, key,
                    fingerprint, answer, data)
            where not exists (select 1 from orders o where o.id = s.id)
                and not exists (select 1 from specs p where p.order_id = s.id)
                and (s.dedupe is null or not exists (select 1 from orders d where d.dedupe_live = s.dedupe))
                and (s.key is null
                    or not exists (select 1 from idempotency i where i.project = s.project and i.key = s.key))),
        o as (
            insert into orders (id, version, project, pool, memory_mb, submitted_at, state, state_since, attempt, rank, due_at,
                queue_due, dedupe_live, concurrency_key)
            select s.id, 1, s.project, s.pool, s.memory, s.at, 'pending', s.at, 0, s.rank, s.due, s.queue_due, s.dedupe,
                s.concurrency
            from s),
        p as (
            insert into specs (seq, order_id, pool, project, body) select s.seq, s.id, s.pool, s.project, s.body from s),
        v as (
            insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
            select s.seq, s.at, 'order.submitted', s.id, null, 'pending', g_trigger[s.g], g_actor[s.g], s.data, s.change
            from s),
        x as (
            insert into envs (order_id, sealed) select s.id, decode(s.sealed, 'hex') from s where s.sealed is not null),
        i as (
            insert into idempotency (project, key, fingerprint, order_id, answer, at)
            select s.project, s.key, s.fingerprint, s.id, s.answer, s.at from s where s.key is not null)
        select array_agg(s.n), array_agg(s.seq) into more, more_seqs from s;
        saved := saved || more;
        seqs := seqs || more_seqs;
        last_seq := last_seq + coalesce(cardinality(more), 0);
    end if;

    if c_n is not null then
        if exists (select 1 from projects p where p.running_max is not null) then
            crowded := array(
                with claim as materialized (
                    select c.n, o.project, row_number() over (partition by o.project order by c.n) as place
                    from unnest(c_n, c_id) c (n, id) join orders o on o.id = c.id),
                opened as materialized (
                    select o.project, count(*) as runs from orders o where o.slot is not null group by o.project),
                room as materialized (
                    select p.name, p.running_max - coalesce(o.runs, 0) as places
                    from (select distinct k.project from claim k) k
                        join projects p on p.name = k.project and p.running_max is not null
                        left join opened o on o.project = p.name)
                select k.n from claim k join room r on r.name = k.project where k.place > r.places);
        end if;
        with c as materialized (
            select c.* from unnest(c_n, c_g, c_change, c_id, c_was, c_at, c_attempt, c_slot, c_slot_was, c_incarnation, c_until,
                    c_deadline, c_data)
                c (n, g, change, id, was, at, attempt, slot, slot_was, incarnation, until, deadline, data)
                join slots s on s.name = c.slot and s.version = c.slot_was and s.state = 'idle'
            where held[c.g] and not c.n = any (crowded) and not exists (select 1 from orders h where h.slot = c.slot)),
        u as (
            update orders o set version = c.was + 1, state = 'preparing', state_since = c.at, attempt = c.attempt, rank = null,
                queue_due = null, slot = c.slot, incarnation = c.incarnation, commanded_at = c.at, command_until = c.until,
                deadline = c.deadline
            from c where o.id = c.id and o.version = c.was and (o.concurrency_key is null or not exists (
                select 1 from orders k where k.project = o.project and k.concurrency_key = o.concurrency_key
                    and k.slot is not null))
            returning c.n, c.g, c.change, c.id, c.at, c.data),
        t as materialized (select u.*, last_seq + row_number() over () as seq from u),
        v as (
            insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
            select t.seq, t.at, 'order.claimed', t.id, 'pending', 'preparing', g_trigger[t.g], g_actor[t.g], t.data, t.change
            from t)
        select array_agg(t.n), array_agg(t.seq) into more, more_seqs from t;
        saved := saved || more;
        seqs := seqs || more_seqs;
        last_seq := last_seq + coalesce(cardinality(more), 0);
    end if;

    if r_n is not null then
        with u as (
            update orders o set version = r.was + 1, state = 'running', state_since = r.at, ready_at = r.at, handle = r.handle,
                deadline = r.deadline
            from unnest(r_n, r_g, r_change, r_id, r_was, r_at, r_handle, r_deadline, r_data)
                r (n, g, change, id, was, at, handle, deadline, data)
            where o.id = r.id and o.version = r.was and held[r.g] returning r.n, r.g, r.change, r.id, r.at, r.data),
        t as materialized (select u.*, last_seq + row_number() over () as seq from u),
        v as (
            insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
            select t.seq, t.at, 'order.ready', t.id, 'preparing', 'running', g_trigger[t.g], g_actor[t.g], t.data, t.change
            from t)
        select array_agg(t.n), array_agg(t.seq) into more, more_seqs from t;
        saved := saved || more;
        seqs := seqs || more_seqs;
        last_seq := last_seq + coalesce(cardinality(more), 0);
    end if;

    if cardinality(changes) > 0 then
        select s.answers, s.seqs, s.others into other_answers, other_seqs, others
        from save_changes(changes, new_orders, changed_orders, slots_in, runs_in, specs_in, replays_in, pools_in, hosts_in,
            projects_in, null) s;
    end if;
    if hint is not null then
        perform pg_notify('standby', hint);
    end if;
end $$;
