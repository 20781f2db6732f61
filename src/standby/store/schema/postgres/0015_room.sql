-- The CHECKs of orders proved the same one by one; each statement that writes an order reads and sets up all of them.
alter table orders drop constraint known_state, drop constraint open_holds_a_slot, drop constraint open_run_is_whole,
    drop constraint running_is_ready, drop constraint rank_while_pending, drop constraint due_while_waiting,
    drop constraint waiting_is_found_again, drop constraint ended_has_its_time, drop constraint dedupe_while_unfinished,
    add constraint state_tells_what_is_there check (case
        when slot is not null then state in ('preparing', 'running', 'stopping') and incarnation is not null
            and commanded_at is not null and rank is null and due_at is null and ended_at is null
            and (ready_at is not null or state <> 'running')
        when ended_at is not null then state in ('completed', 'failed', 'cancelled') and rank is null and due_at is null
            and dedupe_live is null
        when rank is null then state in ('pending', 'waiting_retry') and due_at is not null
        else state = 'pending' and due_at is null end);

-- Room for all three versions that an order has in its life, waiting, open and ended, on its page and in the leaf of its key: else
-- every second update looks for dead ones to take away, or for another page.
alter table orders set (fillfactor = 33);
alter index orders_pkey set (fillfactor = 30);
