-- What each change of a batch has (v_) comes once, in the order ends, submits, claims, readies; what only its kind has comes by its
-- place among its kind. A group (g_) is what many changes have in common: their guards, and what their events say. Values are taken
-- out of their columns where they are written: to carry them from step to step in wide rows was an eighth of the work. All events
-- are written by one statement, in the order of `saved`, which has the places of the changes that were taken; the first is number
-- `before` + 1. Everything else is as it was.
drop function save_hot;

create function save_hot(
    g_host text[], g_epoch bigint[], g_pool text[], g_pool_version bigint[], g_host_version bigint[], g_trigger text[],
    g_actor text[], g_kind text[], g_from text[], g_to text[],
    v_g bigint[], v_change text[], v_id text[], v_at bigint[], v_data text[],
    e_was bigint[] = null, e_due bigint[] = null, e_reason text[] = null, e_code bigint[] = null, e_ended bigint[] = null,
    e_slot text[] = null, e_slot_was bigint[] = null, e_slot_state text[] = null, e_slot_since bigint[] = null,
    e_number bigint[] = null, e_incarnation text[] = null, e_handle text[] = null, e_commanded bigint[] = null,
    e_ready bigint[] = null, e_stop_asked bigint[] = null, e_signal bigint[] = null, e_error text[] = null,
    e_peak bigint[] = null, e_cpu bigint[] = null,
    s_project text[] = null, s_pool text[] = null, s_memory bigint[] = null, s_rank bigint[] = null, s_due bigint[] = null,
    s_queue_due bigint[] = null, s_dedupe text[] = null, s_concurrency text[] = null, s_body text[] = null,
    s_sealed text[] = null, s_key text[] = null, s_fingerprint text[] = null, s_answer text[] = null,
    c_was bigint[] = null, c_attempt bigint[] = null, c_slot text[] = null, c_slot_was bigint[] = null,
    c_incarnation text[] = null, c_until bigint[] = null, c_deadline bigint[] = null,
    r_was bigint[] = null, r_handle text[] = null, r_deadline bigint[] = null,
    changes change_in[] = null, new_orders order_in[] = null, changed_orders order_in[] = null, slots_in slot_in[] = null,
    runs_in run_in[] = null, specs_in spec_in[] = null, replays_in replay_in[] = null, pools_in rare_in[] = null,
    hosts_in rare_in[] = null, projects_in rare_in[] = null, hint text = null,
    out saved integer[], out before bigint, out other_answers integer[], out other_seqs bigint[], out others text[])
language plpgsql as $$
declare
    -- how many stand before the first submit, claim and ready
    b_s integer := coalesce(cardinality(e_was), 0);
    b_c integer := b_s + coalesce(cardinality(s_project), 0);
    b_r integer := b_c + coalesce(cardinality(c_was), 0);
    held boolean[];
    limited boolean;
    refused integer[] := '{}';
    crowded integer[] := '{}';
    claimed text[];
    taken integer[];
    with_claim integer[];
    claimed_by_now integer := 0;
    more integer[];
begin
    perform pg_advisory_xact_lock(x'5354414e444259'::bigint);

    if e_was is not null or c_was is not null or r_was is not null then
        held := array(
            select coalesce((select l.epoch from leases l where l.host = g.host) = g_epoch[g.i]
                and (g_pool[g.i] is null or (select p.version from pools p where p.name = g_pool[g.i]) = g_pool_version[g.i])
                and (g_host_version[g.i] is null
                    or (select h.version from hosts h where h.name = g.host) = g_host_version[g.i]), false)
            from unnest(g_host) with ordinality g (host, i));
    end if;
    limited := c_was is not null and exists (select 1 from projects p where p.running_max is not null);
    before := coalesce((select e.seq from events e order by e.seq desc limit 1), 0);
    saved := '{}';

    if e_was is not null then
        with u as (
            update orders o set version = e.was + 1, state = g_to[v_g[e.i]], state_since = v_at[e.i], due_at = e_due[e.i],
                dedupe_live = case when e_ended[e.i] is null then o.dedupe_live end, slot = null, incarnation = null, handle = null,
                commanded_at = null, command_until = null, ready_at = null, deadline = null, stop_reason = null,
                reason = e_reason[e.i], exit_code = e_code[e.i], ended_at = e_ended[e.i]
            from unnest(e_was) with ordinality e (was, i)
            where o.id = v_id[e.i] and o.version = e.was and held[v_g[e.i]] and (e_slot_was[e.i] is null
                or (select s.version from slots s where s.name = e_slot[e.i]) = e_slot_was[e.i])
            returning e.i)
        select coalesce(array_agg(u.i::integer), '{}') into saved from u;
        insert into runs (order_id, number, slot, incarnation, handle, commanded_at, ready_at, stop_asked_at, ended_at, reason,
            exit_code, signal, error, peak_memory_kb, cpu_ms)
        select v_id[i], e_number[i], e_slot[i], e_incarnation[i], e_handle[i], e_commanded[i], e_ready[i], e_stop_asked[i], v_at[i],
            e_reason[i], e_code[i], e_signal[i], e_error[i], e_peak[i], e_cpu[i]
        from unnest(saved) i;
        if e_slot_was is not null then
            update slots s set version = s.version + 1, state = e_slot_state[e.i], state_since = e_slot_since[e.i],
                uses = s.uses + 1, last_used_at = v_at[e.i]
            from unnest(saved) e (i) where s.name = e_slot[e.i] and e_slot_was[e.i] is not null;
        end if;
    end if;

    if s_project is not null then
        if s_dedupe is not null or s_key is not null then
            refused := array(
                select s.i from unnest(s_project, s_dedupe, s_key) with ordinality s (project, dedupe, key, i)
                where (select d.id from orders d where d.dedupe_live = s.dedupe) is not null
                    or (select i.order_id from idempotency i where i.project = s.project and i.key = s.key) is not null);
        end if;
        if not limited then
            claimed := v_id[b_c + 1:b_r];
        end if;
        select array_agg(s.i::integer), array_agg(c.i), count(c.i),
            array_agg(b_s + s.i::integer) || array_agg(b_c + c.i) filter (where c.i is not null)
        into taken, with_claim, claimed_by_now, more
        from unnest(s_project) with ordinality s (project, i)
            left join lateral (
                select p.i from array_position(claimed, v_id[b_s + s.i]) p (i)
                where s_rank[s.i] is not null and s_concurrency[s.i] is null and c_was[p.i] = 1 and held[v_g[b_c + p.i]]
                    and (select l.version from slots l where l.name = c_slot[p.i] and l.state = 'idle') = c_slot_was[p.i]
                    and (select h.id from orders h where h.slot = c_slot[p.i] and h.slot_noted = noted(c_slot[p.i])) is null
            ) c on true
        where not s.i = any (refused) and (select o.id from orders o where o.id = v_id[b_s + s.i]) is null;

        insert into orders (id, version, project, pool, memory_mb, submitted_at, state, state_since, attempt, rank, due_at,
            queue_due, dedupe_live, concurrency_key, slot, slot_noted, incarnation, commanded_at, command_until, deadline)
        select v_id[b_s + i], case when c is null then 1 else 2 end, s_project[i], s_pool[i], s_memory[i], v_at[b_s + i],
            case when c is null then 'pending' else 'preparing' end, coalesce(v_at[b_c + c], v_at[b_s + i]),
            coalesce(c_attempt[c], 0), case when c is null then s_rank[i] end, s_due[i], case when c is null then s_queue_due[i] end,
            s_dedupe[i], s_concurrency[i], c_slot[c], case when c is null then 0 else noted(c_slot[c]) end, c_incarnation[c],
            v_at[b_c + c], c_until[c], c_deadline[c]
        from unnest(taken, with_claim) s (i, c);
        insert into specs (seq, order_id, pool, project, body)
        select before + cardinality(saved) + n, v_id[b_s + i], s_pool[i], s_project[i], s_body[i]
        from unnest(taken) with ordinality s (i, n);
        if s_sealed is not null then
            insert into envs (order_id, sealed)
            select v_id[b_s + i], decode(s_sealed[i], 'hex') from unnest(taken) i where s_sealed[i] is not null;
        end if;
        if s_key is not null then
            insert into idempotency (project, key, fingerprint, order_id, answer, at)
            select s_project[i], s_key[i], s_fingerprint[i], v_id[b_s + i], s_answer[i], v_at[b_s + i]
            from unnest(taken) i where s_key[i] is not null;
        end if;
        saved := saved || more;
    end if;

    if b_r - b_c > claimed_by_now then
        if limited then
            crowded := array(
                with claim as materialized (
                    select c.i, o.project, row_number() over (partition by o.project order by c.i) as place
                    from unnest(c_was) with ordinality c (was, i) join orders o on o.id = v_id[b_c + c.i]),
                opened as materialized (
                    select o.project, count(*) as runs from orders o where o.slot is not null group by o.project),
                room as materialized (
                    select p.name, p.running_max - coalesce(o.runs, 0) as places
                    from (select distinct k.project from claim k) k
                        join projects p on p.name = k.project and p.running_max is not null
                        left join opened o on o.project = p.name)
                select k.i from claim k join room r on r.name = k.project where k.place > r.places);
        end if;
        with u as (
            update orders o set version = c.was + 1, state = 'preparing', state_since = v_at[b_c + c.i], attempt = c_attempt[c.i],
                rank = null, queue_due = null, slot = s.name, slot_noted = coalesce(s.last_used_at, 0),
                incarnation = c_incarnation[c.i], commanded_at = v_at[b_c + c.i], command_until = c_until[c.i],
                deadline = c_deadline[c.i]
            from unnest(c_was) with ordinality c (was, i)
                join slots s on s.name = c_slot[c.i] and s.version = c_slot_was[c.i] and s.state = 'idle'
            where o.id = v_id[b_c + c.i] and o.version = c.was and held[v_g[b_c + c.i]] and not c.i = any (crowded)
                and (select h.id from orders h where h.slot = s.name and h.slot_noted = coalesce(s.last_used_at, 0)) is null
                and (o.concurrency_key is null or (
                    select k.id from orders k where k.project = o.project and k.concurrency_key = o.concurrency_key
                        and k.slot is not null) is null)
            returning c.i)
        select array_agg(b_c + u.i::integer) into more from u;
        saved := saved || more;
    end if;

    if r_was is not null then
        with u as (
            update orders o set version = r.was + 1, state = 'running', state_since = v_at[b_r + r.i], ready_at = v_at[b_r + r.i],
                handle = r_handle[r.i], deadline = r_deadline[r.i]
            from unnest(r_was) with ordinality r (was, i)
            where o.id = v_id[b_r + r.i] and o.version = r.was and held[v_g[b_r + r.i]]
            returning r.i)
        select array_agg(b_r + u.i::integer) into more from u;
        saved := saved || more;
    end if;

    insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
    select before + n, v_at[i], g_kind[v_g[i]], v_id[i], g_from[v_g[i]], g_to[v_g[i]], g_trigger[v_g[i]], g_actor[v_g[i]],
        v_data[i], v_change[i]
    from unnest(saved) with ordinality v (i, n);

    if cardinality(changes) > 0 then
        select s.answers, s.seqs, s.others into other_answers, other_seqs, others
        from save_changes(changes, new_orders, changed_orders, slots_in, runs_in, specs_in, replays_in, pools_in, hosts_in,
            projects_in, null) s;
    end if;
    if hint is not null then
        perform pg_notify('standby', hint);
    end if;
end $$;
