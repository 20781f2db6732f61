-- A seat's row is not written at every end, and who has a slot is looked for only among the runs that it had since it was last
-- noted as used: of many short runs in one slot the index keeps all that a held snapshot could still see. `slot_noted` is the slot's
-- `last_used_at` when the order got it. Only an end changes that, so two open runs of a slot would have the same.
alter table orders add column slot_noted bigint not null default 0;
update orders o set slot_noted = coalesce(s.last_used_at, 0) from slots s where s.name = o.slot;
drop index orders_slot;
create unique index orders_slot on orders (slot, slot_noted) where slot is not null;

create function noted(slot text) returns bigint language sql stable as $$
    select coalesce((select s.last_used_at from slots s where s.name = noted.slot), 0)
$$;

-- Only some places of both functions change.
create function change_body(what regproc, variadic texts text[]) returns void language plpgsql as $$
declare
    body text := pg_get_functiondef(what);
begin
    for n in 1..cardinality(texts) by 2 loop
        if cardinality(string_to_array(body, texts[n])) <> 2 then
            raise exception '% is not as it was when this migration was written: %', what, texts[n];
        end if;
        body := replace(body, texts[n], texts[n + 1]);
    end loop;
    execute body;
end $$;

select change_body('save_changes',
    'slot = u.slot,',
    'slot = u.slot, slot_noted = case when u.slot is not distinct from o.slot then o.slot_noted else noted(u.slot) end,',
    -- nothing but an end moves it, whatever row a change was decided on
    'last_used_at = u.last_used_at,',
    'last_used_at = case when u.n in (select r.n from unnest(runs_in) r) then u.last_used_at else s.last_used_at end,',
    'dedupe_live, slot, incarnation,',
    'dedupe_live, slot, slot_noted, incarnation,',
    'u.slot, u.incarnation, u.handle, u.commanded_at, u.command_until,',
    'u.slot, noted(u.slot), u.incarnation, u.handle, u.commanded_at, u.command_until,');

select change_body('save_hot',
    -- an end
    'join slots s on s.name = e.slot and s.version = e.slot_was
            where held[e.g]),',
    'where held[e.g] and (e.slot_was is null or (select s.version from slots s where s.name = e.slot) = e.slot_was)),',
    'from t where s.name = t.slot),',
    'from t where s.name = t.slot and t.slot_was is not null),',
    -- an order that is claimed as it comes
    '(select h.id from orders h where h.slot = c_slot[c.i]) is null)',
    '(select h.id from orders h where h.slot = c_slot[c.i] and h.slot_noted = noted(c_slot[c.i])) is null)',
    'concurrency_key, slot, incarnation,',
    'concurrency_key, slot, slot_noted, incarnation,',
    'c_slot[s.i], c_incarnation[s.i],',
    'c_slot[s.i], case when s.i is null then 0 else noted(c_slot[s.i]) end, c_incarnation[s.i],',
    -- a claim
    'select c.* from unnest(c_n,',
    'select c.*, coalesce(s.last_used_at, 0) as noted from unnest(c_n,',
    'not exists (select 1 from orders h where h.slot = c.slot)',
    '(select h.id from orders h where h.slot = c.slot and h.slot_noted = coalesce(s.last_used_at, 0)) is null',
    'slot = c.slot, incarnation =',
    'slot = c.slot, slot_noted = c.noted, incarnation =');

drop function change_body;
