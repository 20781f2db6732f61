"""Every read of the store as SQL. Parameters are $1, $2, …; SQLite gets the same texts with ?1, ?2, …, and lists of
texts, `= any (cast($1 as text[]))`, as JSON.

`*` is safe here: columns are only ever added behind the last one, and a row is read as far as its value has fields.
"""

from typing import Final

# incarnation: who this database is
INCARNATION: Final = "select incarnation from meta"

# order: one order with its spec
ORDER: Final = "select s.body, o.* from orders o join specs s on s.order_id = o.id where o.id = $1"

# newest: orders by commit order of their submit, newest first, down to $5. $2 lists states: ",failed,cancelled,"; $6 is
# what one label looks like, and the caller still has to look for it
NEWEST: Final = """
select s.seq, s.body, o.* from specs s join orders o on o.id = s.order_id
where s.seq < $1 and s.seq >= $5 and (cast($2 as text) is null or $2 like '%,' || o.state || ',%')
    and (cast($3 as text) is null or s.pool = $3) and (cast($6 as text) is null or s.body like $6 escape '!')
order by s.seq desc limit $4
"""

# newest of project: the same within one project, by its own index
NEWEST_OF_PROJECT: Final = NEWEST.replace("order by", "    and s.project = $7\norder by")

# window: where a walk over the next $2 orders below $1 ends, and how many there are
WINDOW: Final = """
select coalesce(min(seq), 0), count(*) from (select seq from specs where seq < $1 order by seq desc limit $2) w
"""
WINDOW_OF_PROJECT: Final = WINDOW.replace("seq < $1", "seq < $1 and project = $3")

# newest by id: those with ids from $5 to below $6, which are few, not in the order of their submit
NEWEST_BY_ID: Final = """
select s.seq, s.body, o.* from orders o join specs s on s.order_id = o.id
where o.id >= $5 and o.id < $6 and s.seq < $1 and (cast($2 as text) is null or $2 like '%,' || o.state || ',%')
    and (cast($3 as text) is null or o.pool = $3) and (cast($7 as text) is null or o.project = $7)
order by o.id desc limit $4
"""

# named: some orders by their ids
NAMED_POSTGRES: Final = """
select s.seq, s.body, o.* from orders o join specs s on s.order_id = o.id
where o.id = any (cast($1 as text[])) and s.seq < $2 order by s.seq desc
"""
NAMED_SQLITE: Final = """
select s.seq, s.body, o.* from json_each($1) i join orders o on o.id = i.value join specs s on s.order_id = o.id
where s.seq < $2 order by s.seq desc
"""

# few unfinished: how many unfinished orders there are, counted no further than $1
FEW_UNFINISHED: Final = """
select (select count(*) from (select 1 from orders where rank is not null limit $1) r)
    + (select count(*) from (select 1 from orders where due_at is not null limit $1) d)
    + (select count(*) from (select 1 from orders where slot is not null limit $1) s)
"""

# newest unfinished: the listing of unfinished states when few orders are unfinished, so that history is not walked
NEWEST_UNFINISHED: Final = """
select s.seq, s.body, o.* from (
    select * from orders where rank is not null union all
    select * from orders where due_at is not null union all
    select * from orders where slot is not null) o
join specs s on s.order_id = o.id
where s.seq < $1 and $2 like '%,' || o.state || ',%' and (cast($3 as text) is null or o.pool = $3)
    and (cast($5 as text) is null or o.project = $5)
order by s.seq desc limit $4
"""

# brief: a spec that is short, or nothing of it: for whoever reads many of them and wants no payload
BRIEF: Final = """case when octet_length(s.body) <= 32768 then s.body else '{"order_id":""}' end"""

# open orders: those with an open run on the slots of a host
OPEN_ORDERS: Final = """
select s.body, o.* from slots p join orders o on o.slot = p.name join specs s on s.order_id = o.id
where p.host = $1 order by o.slot
"""

READY: Final = [
    "id",
    "version",
    "project",
    "pool",
    "memory_mb",
    "submitted_at",
    "state_since",
    "attempt",
    "rank",
    "queue_due",
    "dedupe_live",
    "reason",
    "exit_code",
    "deploy_since",
    "concurrency_key",
    "cpus",
]
"""What a ready order has besides its state: the only rows that are read by the hundred while others are written."""


def _ready(table: str) -> str:
    return ", ".join(f"{table}.{column}" for column in READY)


# candidates: a loose index scan, one step for each project that has a ready order in the pool; the heads of each lane,
# of those with one concurrency key only the first, and none while somebody holds it
CANDIDATES_POSTGRES: Final = """
with recursive lane (project) as (
    select min(project) from orders where pool = $1 and rank is not null
    union all
    select (select min(n.project) from orders n where n.pool = $1 and n.rank is not null and n.project > lane.project)
    from lane where lane.project is not null)
select s.body, {head} from lane cross join lateral (
    select * from orders o where o.pool = $1 and o.project = lane.project and o.rank is not null
        and o.memory_mb <= $3 and (o.cpus is null or o.cpus <= $4) and (o.concurrency_key is null or not exists (
            select 1 from orders k where k.project = o.project and k.concurrency_key = o.concurrency_key
                and k.ended_at is null and (k.slot is not null
                    or k.pool = o.pool and k.rank is not null and (k.rank, k.id) < (o.rank, o.id))))
    order by o.rank, o.id limit $2) head
join specs s on s.order_id = head.id
where lane.project is not null order by head.rank, head.id
""".replace("{head}", _ready("head"))

CANDIDATES_SQLITE: Final = """
with recursive lane (project) as (
    select min(project) from orders where pool = $1 and rank is not null
    union all
    select (select min(n.project) from orders n where n.pool = $1 and n.rank is not null and n.project > lane.project)
    from lane where lane.project is not null)
select s.body, {order} from lane cross join orders o cross join specs s
where lane.project is not null and o.id in (
    select h.id from orders h where h.pool = $1 and h.project = lane.project and h.rank is not null
        and h.memory_mb <= $3 and (h.cpus is null or h.cpus <= $4) and (h.concurrency_key is null or not exists (
            select 1 from orders k where k.project = h.project and k.concurrency_key = h.concurrency_key
                and k.ended_at is null and (k.slot is not null
                    or k.pool = h.pool and k.rank is not null and (k.rank, k.id) < (h.rank, h.id))))
    order by h.rank, h.id limit $2)
    and s.order_id = o.id
order by o.rank, o.id
""".replace("{order}", _ready("o"))

# candidates after: the next ones of known lanes, each from its own place on: what was claimed is not walked again
CANDIDATES_AFTER_POSTGRES: Final = """
select s.body, {head}
from unnest(cast($5 as text[]), cast($6 as bigint[]), cast($7 as text[])) as lane (project, rank, id)
cross join lateral (
    select * from orders o where o.pool = $1 and o.project = lane.project and o.rank is not null
        and (o.rank, o.id) > (lane.rank, lane.id) and o.memory_mb <= $3 and (o.cpus is null or o.cpus <= $4)
        and (o.concurrency_key is null or not exists (
            select 1 from orders k where k.project = o.project and k.concurrency_key = o.concurrency_key
                and k.ended_at is null and (k.slot is not null
                    or k.pool = o.pool and k.rank is not null and (k.rank, k.id) < (o.rank, o.id))))
    order by o.rank, o.id limit $2) head
join specs s on s.order_id = head.id
order by head.rank, head.id
""".replace("{head}", _ready("head"))

# as one JSON text: what a thread reads row by row, it waits for the interpreter at each of them
CANDIDATES_AFTER_SQLITE: Final = """
select '[' || coalesce(group_concat(row), '') || ']' from (
select json_array(s.body, {order}) as row
from json_each($5) p join json_each($6) r on r.key = p.key join json_each($7) i on i.key = p.key
cross join orders o cross join specs s
where o.id in (
    select h.id from orders h where h.pool = $1 and h.project = p.value and h.rank is not null
        and (h.rank, h.id) > (r.value, i.value) and h.memory_mb <= $3 and (h.cpus is null or h.cpus <= $4)
        and (h.concurrency_key is null or not exists (
            select 1 from orders k where k.project = h.project and k.concurrency_key = h.concurrency_key
                and k.ended_at is null and (k.slot is not null
                    or k.pool = h.pool and k.rank is not null and (k.rank, k.id) < (h.rank, h.id))))
    order by h.rank, h.id limit $2)
    and s.order_id = o.id
order by o.rank, o.id)
""".replace("{order}", _ready("o"))

# expired: ready orders that waited longer than they were willing to, oldest first. $4 lists projects that are left out:
# ",a,b,"
EXPIRED: Final = """
select * from orders where pool = $1 and rank is not null and queue_due is not null and queue_due <= $2
    and (cast($4 as text) is null or $4 not like '%,' || project || ',%')
order by queue_due, id limit $3
"""

# due: orders that become ready
DUE: Final = """
select s.body, o.* from orders o join specs s on s.order_id = o.id
where o.pool = $1 and o.due_at is not null and o.due_at <= $2 order by o.due_at, o.id limit $3
"""

# lanes: projects with a ready order in a pool, by a loose index scan; at most $2
LANES: Final = """
with recursive lane (project, n) as (
    select min(project), 1 from orders where pool = $1 and rank is not null
    union all
    select (select min(o.project) from orders o where o.pool = $1 and o.rank is not null and o.project > lane.project),
        lane.n + 1
    from lane where lane.project is not null and lane.n < $2)
select project from lane where project is not null
"""

# last start: when a run last began in a pool, found in the last events so that no index has to be kept for it
LAST_START: Final = """
select max(e.at) from events e join orders o on o.id = e.subject
where e.seq > (select max(seq) from events) - 5000 and e.kind = 'order.claimed' and o.pool = $1
"""

# contenders: unfinished orders of a project with a concurrency key, oldest first
CONTENDERS: Final = """
select s.seq, s.body, o.* from orders o join specs s on s.order_id = o.id
where o.project = $1 and o.concurrency_key = $2 and o.ended_at is null order by s.seq limit $3
"""

# depth: ready orders of a pool, or of a project in all pools; counted no further than $2
DEPTH_OF_POOL: Final = """
select count(*) from (select 1 from orders where pool = $1 and rank is not null limit $2) waiting
"""
DEPTH_OF_PROJECT: Final = """
select count(*) from (select 1 from pools p join orders o on o.pool = p.name
    where o.project = $1 and o.rank is not null limit $2) waiting
"""

# position: how many of its lane go before it, itself included; counted no further than $5
POSITION: Final = """
select count(*) from (select 1 from orders
    where pool = $1 and project = $2 and rank is not null and (rank, id) <= ($3, $4) limit $5) ahead
"""

# position at: how many of the lane go before an order that may not be saved yet; counted no further than $5
POSITION_AT: Final = """
select count(*) from (select 1 from orders
    where pool = $1 and project = $2 and rank is not null and (rank, id) < ($3, $4) limit $5) ahead
"""

# queues: how many ready orders each lane of a pool has, and how many of them are urgent; no more than $2 lanes, and in
# each no more than its part of $3
QUEUES: Final = """
with recursive lane (project, n) as (
    select min(project), 1 from orders where pool = $1 and rank is not null
    union all
    select (select min(o.project) from orders o where o.pool = $1 and o.rank is not null and o.project > lane.project),
        lane.n + 1
    from lane where lane.project is not null and lane.n <= $2)
select project,
    (select count(*) from (select 1 from orders r where r.pool = $1 and r.project = lane.project and r.rank is not null
        limit (select 1 + $3 / max(n) from lane)) ready),
    (select count(*) from (select 1 from orders r where r.pool = $1 and r.project = lane.project and r.rank < 0
        limit (select 1 + $3 / max(n) from lane)) urgent)
from lane where project is not null and n <= $2
"""

# wanted keys: concurrency keys of a pool's ready orders that one of them has to wait for; of the project $2 only those
# before ($3, $4), and no more than $5 orders
WANTED_KEYS: Final = """
select project, ready, held_since from (
    select o.project, count(*) as ready, (
        select h.commanded_at from orders h
        where h.project = o.project and h.concurrency_key = o.concurrency_key and h.slot is not null) as held_since
    from (
        select project, concurrency_key from orders
        where concurrency_key is not null and ended_at is null and pool = $1 and rank is not null
            and (project <> $2 or (rank, id) < ($3, $4)) limit $5) o
    group by o.project, o.concurrency_key) wanted
where ready > 1 or held_since is not null
"""

# lengths: what runs and slots that are made took, found by their events so that no index has to be kept for it; labels
# are read where that is no great work, because a payload may be long
LENGTHS_SQLITE: Final = """
select e.seq, o.pool, r.ended_at - r.commanded_at, r.ready_at - r.commanded_at, 0, e.at, o.project,
    case when octet_length(s.body) <= 32768 and s.body like '%"labels":{"%' then s.body ->> 'labels' end
from events e join orders o on o.id = e.subject join runs r on r.order_id = o.id and r.ended_at = e.at
    join specs s on s.order_id = o.id
where e.seq > $1 and e.seq <= $2 and e.kind in ('order.completed', 'order.failed', 'order.retry_waiting')
union all
select e.seq, s.pool, e.at - (
    select c.at from events c where c.subject = e.subject and c.seq < e.seq and c.kind = 'slot.creating'
    order by c.seq desc limit 1), null, 1, e.at, null, null
from events e join slots s on s.name = e.subject and s.template <> ''
where e.seq > $1 and e.seq <= $2 and e.kind = 'slot.idle'
order by 1
"""
LENGTHS_POSTGRES: Final = LENGTHS_SQLITE.replace("s.body ->>", "cast(s.body as json) ->>")

# peaks: of the runs that ended lately in each pool, how many said how much they took, how many took more than they
# declared, and the most
PEAKS: Final = """
select o.pool, count(*), sum(case when r.peak_memory_kb > o.memory_mb * 1024 then 1 else 0 end), max(r.peak_memory_kb)
from (
    select distinct subject from events where seq > (select max(seq) from events) - 5000
        and kind in ('order.completed', 'order.failed', 'order.cancelled', 'order.retry_waiting')) e
join orders o on o.id = e.subject join runs r on r.order_id = o.id
where r.peak_memory_kb is not null group by o.pool
"""

# by id: parts of many orders
ENVS: Final = "select order_id, sealed from envs where order_id = any (cast($1 as text[]))"

# runs: the ended attempts of an order
RUNS: Final = "select * from runs where order_id = $1 order by number"

# ended numbers: which attempts of many orders ended
ENDED_NUMBERS: Final = "select order_id, number from runs where order_id = any (cast($1 as text[]))"

# waiting: the first order of these pools that is ready or will be
WAITING: Final = """
select 1 where exists (select 1 from orders where pool = any (cast($1 as text[])) and rank is not null)
    or exists (select 1 from orders where pool = any (cast($1 as text[])) and due_at is not null)
"""

# open by project: open runs over all hosts
OPEN_BY_PROJECT: Final = "select project, count(*) from orders where slot is not null group by project"

# counts: unfinished orders, each found by the one index it is in
COUNTS: Final = """
select pool, 'pending', count(*) from orders where rank is not null group by pool
union all
select pool, state, count(*) from orders where due_at is not null group by pool, state
union all
select pool, state, count(*) from orders where slot is not null group by pool, state
"""

# places
SLOTS: Final = """
select * from slots where (cast($1 as text) is null or host = $1) and (cast($2 as text) is null or pool = $2)
order by name
"""
HOLDERS: Final = """
select o.* from slots s join orders o on o.slot = s.name
where (cast($1 as text) is null or s.host = $1) and (cast($2 as text) is null or s.pool = $2)
"""
POOLS: Final = "select * from pools order by name"
POOL: Final = "select * from pools where name = $1"
HOSTS: Final = "select * from hosts order by name"
HOST: Final = "select * from hosts where name = $1"
PROJECTS: Final = "select * from projects order by name"

# history, by cursor
EVENTS: Final = "select * from events where seq > $1 order by seq limit $2"
EVENTS_OF: Final = "select * from events where subject = $3 and seq > $1 order by seq limit $2"
EVENTS_BEFORE: Final = "select * from events where seq < $1 order by seq desc limit $2"
EVENTS_BEFORE_OF: Final = "select * from events where subject = $3 and seq < $1 order by seq desc limit $2"
LAST_SEQ: Final = "select coalesce(max(seq), 0) from events"
MARK: Final = "select substr(change, 1, 8) from events where seq = $1"
HISTORY: Final = """
select pruned_to, orders_pruned, events_pruned, (select at from events order by seq limit 1),
    (select coalesce(max(seq), 0) from events)
from meta
"""

# found: which of these changes are in the history after a seq
FOUND: Final = """
select change, seq from events
where subject = any (cast($1 as text[])) and seq > $3 and change = any (cast($2 as text[]))
"""

LEASES: Final = "select * from leases order by host"

# log tails: the last chunk of each run
LOG_TAILS_POSTGRES: Final = """
select r.run_id, l.first + l.count, l.cursor, l.closed
from unnest(cast($1 as text[])) as r (run_id)
cross join lateral (select * from logs where run_id = r.run_id order by first desc limit 1) l
"""
LOG_TAILS_SQLITE: Final = """
select l.run_id, l.first + l.count, l.cursor, l.closed
from json_each($1) r join logs l on l.run_id = r.value
    and l.first = (select max(x.first) from logs x where x.run_id = r.value)
"""

# read log: chunks from a line on, up to a number of bytes, at least one; the empty one that closes a log counts as well
READ_LOG: Final = """
select run_id, first, count, body, cursor, closed, bytes from (
    select *, sum(bytes) over (order by first) - bytes as bytes_before from (
        select * from logs where run_id = $1
            and first >= coalesce((select max(first) from logs where run_id = $1 and first <= $2), 0)
            and (first + count > $2 or (count = 0 and first >= $2))
        order by first limit 1000) page) page
where bytes_before < $3 or bytes_before = 0 order by first
"""

# seat: one slot, and the order in it
SLOT: Final = "select * from slots where name = $1"
ORDER_IN_SLOT: Final = "select s.body, o.* from orders o join specs s on s.order_id = o.id where o.slot = $1"

# reports: what workers said of these runs
REPORTS: Final = "select * from reports where run_id = any (cast($1 as text[]))"

READING: Final = "select at, body from readings where host = $1"
IMAGES: Final = "select * from images where host = $1 order by image"
KEYS: Final = "select * from keys order by name"
IDEMPOTENCY: Final = "select * from idempotency where project = $1 and key = $2"
