-- An order that comes alone, with or without its claim, by plain statements: what is set up for a whole batch costs more than it
-- writes, and most of all where nothing else keeps the server awake. Null, with nothing written, where anything is not as it was;
-- then it is saved like others, and gets its exact verdict. Else the number of the event before it.
create function save_lone(
    s_change text, s_id text, s_project text, s_pool text, s_memory bigint, s_at bigint, s_rank bigint, s_due bigint,
    s_queue_due bigint, s_dedupe text, s_concurrency text, s_body text, s_sealed text, s_key text, s_fingerprint text,
    s_answer text, s_data text, s_trigger text, s_actor text, hint text,
    g_host text = null, g_epoch bigint = null, g_pool_version bigint = null, g_host_version bigint = null,
    c_change text = null, c_at bigint = null, c_attempt bigint = null, c_slot text = null, c_slot_was bigint = null,
    c_incarnation text = null, c_until bigint = null, c_deadline bigint = null, c_data text = null, c_trigger text = null,
    c_actor text = null)
returns bigint language plpgsql as $$
declare
    claimed boolean := c_slot is not null;
    noted_at bigint := 0;
    seq bigint;
begin
    perform pg_advisory_xact_lock(x'5354414e444259'::bigint);

    if (select o.id from orders o where o.id = s_id) is not null then
        return null;
    end if;
    if s_dedupe is not null and (select o.id from orders o where o.dedupe_live = s_dedupe) is not null then
        return null;
    end if;
    if s_key is not null and (select i.order_id from idempotency i where i.project = s_project and i.key = s_key) is not null then
        return null;
    end if;
    if claimed then
        noted_at := (
            select coalesce(s.last_used_at, 0) from slots s
            where s.name = c_slot and s.version = c_slot_was and s.state = 'idle'
                and (select l.epoch from leases l where l.host = g_host) = g_epoch
                and (select p.version from pools p where p.name = s_pool) = g_pool_version
                and (select h.version from hosts h where h.name = g_host) = g_host_version
                and (select p.running_max from projects p where p.name = s_project) is null);
        if noted_at is null or (select o.id from orders o where o.slot = c_slot and o.slot_noted = noted_at) is not null then
            return null;
        end if;
    end if;

    seq := coalesce((select e.seq from events e order by e.seq desc limit 1), 0);
    insert into orders (id, version, project, pool, memory_mb, submitted_at, state, state_since, attempt, rank, due_at, queue_due,
        dedupe_live, concurrency_key, slot, slot_noted, incarnation, commanded_at, command_until, deadline)
    values (s_id, case when claimed then 2 else 1 end, s_project, s_pool, s_memory, s_at,
        case when claimed then 'preparing' else 'pending' end, coalesce(c_at, s_at), coalesce(c_attempt, 0),
        case when not claimed then s_rank end, s_due, case when not claimed then s_queue_due end, s_dedupe, s_concurrency, c_slot,
        noted_at, c_incarnation, c_at, c_until, c_deadline);
    insert into specs (seq, order_id, pool, project, body) values (seq + 1, s_id, s_pool, s_project, s_body);
    if s_sealed is not null then
        insert into envs (order_id, sealed) values (s_id, decode(s_sealed, 'hex'));
    end if;
    if s_key is not null then
        insert into idempotency (project, key, fingerprint, order_id, answer, at)
        values (s_project, s_key, s_fingerprint, s_id, s_answer, s_at);
    end if;
    insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
    values (seq + 1, s_at, 'order.submitted', s_id, null, 'pending', s_trigger, s_actor, s_data, s_change);
    if claimed then
        insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
        values (seq + 2, c_at, 'order.claimed', s_id, 'pending', 'preparing', c_trigger, c_actor, c_data, c_change);
    end if;
    if hint is not null then
        perform pg_notify('standby', hint);
    end if;
    return seq;
end $$;
