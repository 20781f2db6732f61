-- Processors that an order itself asks for; null is what its pool says.
alter table orders add column cpus double precision;
alter type order_in add attribute cpus double precision;

-- The one place of save_changes that writes all columns of a new order gets one more; everything else stays as it is.
do $$
declare
    before text := pg_get_functiondef('save_changes'::regproc);
    after text := replace(replace(before, 'deploy_since, concurrency_key)', 'deploy_since, concurrency_key, cpus)'),
        E'u.concurrency_key\n', E'u.concurrency_key, u.cpus\n');
begin
    if length(after) <> length(before) + length(', cpus') + length(', u.cpus') then
        raise exception 'save_changes is not as it was when this migration was written';
    end if;
    execute after;
end $$;
