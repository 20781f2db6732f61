-- As before, but for what a batch does not have: it need not be given, is not looked up, and its tables are not touched. Of a batch
-- that only takes orders in, no guards are read; envs and kept answers are written by statements of their own. An order that is
-- claimed as it comes is inserted as claimed, unless a project is limited: then, and where it does not fit, it is claimed as others.
-- What must not be there is asked for row by row, by a subquery that no plan made for an empty table turns into a walk.
drop function save_hot;

create function save_hot(
    g_host text[], g_epoch bigint[], g_pool text[], g_pool_version bigint[], g_host_version bigint[], g_trigger text[],
    g_actor text[],
    e_n bigint[] = null, e_g bigint[] = null, e_change text[] = null, e_id text[] = null, e_was bigint[] = null,
    e_from text[] = null, e_at bigint[] = null, e_state text[] = null, e_due bigint[] = null, e_reason text[] = null,
    e_code bigint[] = null, e_ended bigint[] = null, e_slot text[] = null, e_slot_was bigint[] = null,
    e_slot_state text[] = null, e_slot_since bigint[] = null, e_number bigint[] = null, e_incarnation text[] = null,
    e_handle text[] = null, e_commanded bigint[] = null, e_ready bigint[] = null, e_stop_asked bigint[] = null,
    e_signal bigint[] = null, e_error text[] = null, e_peak bigint[] = null, e_cpu bigint[] = null, e_data text[] = null,
    c_n bigint[] = null, c_g bigint[] = null, c_change text[] = null, c_id text[] = null, c_was bigint[] = null,
    c_at bigint[] = null, c_attempt bigint[] = null, c_slot text[] = null, c_slot_was bigint[] = null,
    c_incarnation text[] = null, c_until bigint[] = null, c_deadline bigint[] = null, c_data text[] = null,
    r_n bigint[] = null, r_g bigint[] = null, r_change text[] = null, r_id text[] = null, r_was bigint[] = null,
    r_at bigint[] = null, r_handle text[] = null, r_deadline bigint[] = null, r_data text[] = null,
    s_n bigint[] = null, s_g bigint[] = null, s_change text[] = null, s_id text[] = null, s_project text[] = null,
    s_pool text[] = null, s_memory bigint[] = null, s_at bigint[] = null, s_rank bigint[] = null, s_due bigint[] = null,
    s_queue_due bigint[] = null, s_dedupe text[] = null, s_concurrency text[] = null, s_body text[] = null,
    s_sealed text[] = null, s_key text[] = null, s_fingerprint text[] = null, s_answer text[] = null, s_data text[] = null,
    changes change_in[] = null, new_orders order_in[] = null, changed_orders order_in[] = null, slots_in slot_in[] = null,
    runs_in run_in[] = null, specs_in spec_in[] = null, replays_in replay_in[] = null, pools_in rare_in[] = null,
    hosts_in rare_in[] = null, projects_in rare_in[] = null, hint text = null,
    out saved bigint[], out seqs bigint[], out other_answers integer[], out other_seqs bigint[], out others text[])
language plpgsql as $$
declare
    held boolean[];
    refused bigint[] := '{}';
    limited boolean;
    crowded bigint[] := '{}';
    more bigint[];
    more_seqs bigint[];
    last_seq bigint;
begin
    perform pg_advisory_xact_lock(x'5354414e444259'::bigint);

    limited := c_n is not null and exists (select 1 from projects p where p.running_max is not null);
    if e_n is not null or c_n is not null or r_n is not null then
        held := array(
            select coalesce(l.epoch = g.epoch and (g.pool is null or p.version = g.pool_version)
                and (g.host_version is null or h.version = g.host_version), false)
            from unnest(g_host, g_epoch, g_pool, g_pool_version, g_host_version) with ordinality
                    as g (host, epoch, pool, pool_version, host_version, n)
                left join leases l on l.host = g.host
                left join pools p on p.name = g.pool
                left join hosts h on h.name = g.host
            order by g.n);
    end if;
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
        if s_dedupe is not null or s_key is not null then
            refused := array(
                select s.n from unnest(s_n, s_project, s_dedupe, s_key) s (n, project, dedupe, key)
                where (select d.id from orders d where d.dedupe_live = s.dedupe) is not null
                    or (select i.order_id from idempotency i where i.project = s.project and i.key = s.key) is not null);
        end if;
        with s as materialized (
            select s.*, c.i, last_seq + row_number() over () + count(c.i) over (rows unbounded preceding) - (c.i is not null)::int
                as seq
            from unnest(s_n, s_g, s_change, s_id, s_project, s_pool, s_memory, s_at, s_rank, s_due, s_queue_due, s_dedupe,
                    s_concurrency, s_body, s_data)
                s (n, g, change, id, project, pool, memory, at, rank, due, queue_due, dedupe, concurrency, body, data)
                left join lateral (
                    select c.i from array_position(c_id, s.id) c (i)
                    where c_n is not null and not limited and s.rank is not null and s.concurrency is null
                        and c_was[c.i] = 1 and held[c_g[c.i]]
                        and (select l.version from slots l where l.name = c_slot[c.i] and l.state = 'idle') = c_slot_was[c.i]
                        and (select h.id from orders h where h.slot = c_slot[c.i]) is null) c on true
            where not s.n = any (refused) and (select o.id from orders o where o.id = s.id) is null),
        o as (
            insert into orders (id, version, project, pool, memory_mb, submitted_at, state, state_since, attempt, rank, due_at,
                queue_due, dedupe_live, concurrency_key, slot, incarnation, commanded_at, command_until, deadline)
            select s.id, case when s.i is null then 1 else 2 end, s.project, s.pool, s.memory, s.at,
                case when s.i is null then 'pending' else 'preparing' end, coalesce(c_at[s.i], s.at), coalesce(c_attempt[s.i], 0),
                case when s.i is null then s.rank end, s.due, case when s.i is null then s.queue_due end, s.dedupe, s.concurrency,
                c_slot[s.i], c_incarnation[s.i], c_at[s.i], c_until[s.i], c_deadline[s.i]
            from s),
        p as (
            insert into specs (seq, order_id, pool, project, body) select s.seq, s.id, s.pool, s.project, s.body from s),
        v as (
            insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
            select s.seq, s.at, 'order.submitted', s.id, null, 'pending', g_trigger[s.g], g_actor[s.g], s.data, s.change
            from s
            union all
            select s.seq + 1, c_at[s.i], 'order.claimed', s.id, 'pending', 'preparing', g_trigger[c_g[s.i]], g_actor[c_g[s.i]],
                c_data[s.i], c_change[s.i]
            from s where s.i is not null)
        select array_agg(s.n) || array_agg(c_n[s.i]) filter (where s.i is not null),
            array_agg(s.seq) || array_agg(s.seq + 1) filter (where s.i is not null)
        into more, more_seqs from s;
        if s_sealed is not null then
            insert into envs (order_id, sealed)
            select s.id, decode(s.sealed, 'hex') from unnest(s_n, s_id, s_sealed) s (n, id, sealed)
            where s.sealed is not null and s.n = any (more);
        end if;
        if s_key is not null then
            insert into idempotency (project, key, fingerprint, order_id, answer, at)
            select s.project, s.key, s.fingerprint, s.id, s.answer, s.at
            from unnest(s_n, s_project, s_key, s_fingerprint, s_id, s_answer, s_at)
                s (n, project, key, fingerprint, id, answer, at)
            where s.key is not null and s.n = any (more);
        end if;
        saved := saved || more;
        seqs := seqs || more_seqs;
        last_seq := last_seq + coalesce(cardinality(more), 0);
    end if;

    if not c_n <@ saved then
        if limited then
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
